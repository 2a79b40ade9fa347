//! `dlrover-diag pair`, both ends.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
};

fn diag(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag"));
    command.arg("pair").args(arguments);
    command
}

fn connect(address: &str, more: &[&str]) -> Output {
    diag(&["--connect", address]).args(more).output().unwrap()
}

/// An end that listens, and where.
fn listen(more: &[&str]) -> (Child, String) {
    let mut end = diag(&["--listen", "127.0.0.1"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(end.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("dlrover-diag: listening at ").unwrap().to_owned();
    (end, address)
}

#[test]
fn both_ends_say_what_they_measured() {
    let (end, address) = listen(&["--json", "--repeat", "2"]);
    let connected = connect(&address, &["--json", "--repeat", "2"]);
    let listened = end.wait_with_output().unwrap();
    for output in [connected, listened] {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        for line in text.lines() {
            let figures: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(figures["verified_bytes"], 35_782_656, "{line}");
            for name in ["latency_us", "sent_bytes_per_second", "received_bytes_per_second", "comm_ms"] {
                assert!(figures[name].as_f64().unwrap() > 0.0, "{line}");
            }
        }
    }
}

#[test]
fn an_end_that_is_not_there_is_a_failure_and_a_bad_line_is_no_use() {
    let (mut end, address) = listen(&[]);
    end.kill().unwrap();
    end.wait().unwrap();
    let output = connect(&address, &["--patience", "0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains(&format!("cannot connect to neighbour {address}: connection refused")), "{words}");
    assert_eq!(connect("nowhere", &[]).status.code(), Some(2));
    assert_eq!(diag(&[]).output().unwrap().status.code(), Some(2));
}
