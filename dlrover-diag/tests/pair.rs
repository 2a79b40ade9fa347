//! `dlrover-diag pair`, both ends.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

fn diag(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag"));
    command.arg("pair").args(arguments);
    command
}

fn connect(address: &str, more: &[&str]) -> Output {
    diag(&["--connect", address]).args(more).output().unwrap()
}

/// An end that listens.
struct Listening {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    /// The printed time limit.
    limit: String,
}

fn listen(at: &str, more: &[&str]) -> Listening {
    let mut end = diag(&["--listen", at]);
    let mut child = end.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let (mut line, mut limit) = (String::new(), String::new());
    stderr.read_line(&mut line).unwrap();
    stderr.read_line(&mut limit).unwrap();
    let address = line.trim().strip_prefix("dlrover-diag: listening on ").unwrap().to_owned();
    Listening { child, stderr, address, limit }
}

impl Listening {
    /// How it ended, and the rest of its standard error.
    fn end(mut self) -> (Output, String) {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        (self.child.wait_with_output().unwrap(), text)
    }
}

#[test]
fn both_ends_print_their_measurements() {
    let listening = listen("127.0.0.1", &["--json", "--repeat", "2"]);
    let connected = connect(&listening.address, &["--json", "--repeat", "2"]);
    let (listened, _) = listening.end();
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
fn a_missing_peer_is_a_failure_and_a_bad_address_a_usage_error() {
    let mut listening = listen("127.0.0.1", &[]);
    listening.child.kill().unwrap();
    let address = listening.address.clone();
    let _killed = listening.end();
    let output = connect(&address, &["--patience", "0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains(&format!("cannot connect to peer {address}: connection refused")), "{words}");
    assert_eq!(connect("nowhere", &[]).status.code(), Some(2));
    assert_eq!(diag(&[]).output().unwrap().status.code(), Some(2));
}

#[test]
fn an_address_that_cannot_be_listened_at_is_named_as_people_write_it() {
    // Of the block for documentation: no host has it.
    let output = diag(&["--listen", "2001:db8::1", "--patience", "0"]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.starts_with("dlrover-diag: error: cannot listen on [2001:db8::1]:0: "), "{words}");
}

#[test]
fn a_silent_peer_times_out_and_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = connect(&address, &["--patience", "0"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(
        words.contains(&format!("no `dlrover-diag pair --listen` of this version answers at {address}: ")),
        "{words}"
    );
}

#[test]
fn an_end_with_fewer_checks_is_missed_by_the_other() {
    let left = "no connection to the peer after 1 of 3 checks (if the peer has exited, ";
    let listening = listen("localhost", &["--repeat", "3", "--patience", "2"]);
    assert_eq!(listening.limit, "dlrover-diag: waiting up to 2 s for the peer\n");
    assert!(connect(&listening.address, &[]).status.success());
    let (output, words) = listening.end();
    assert!(words.contains(left), "{words}");
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1, "{output:?}");

    let listening = listen("127.0.0.1", &[]);
    assert_eq!(listening.limit, "dlrover-diag: waiting for the peer; press Ctrl-C to stop\n");
    let output = connect(&listening.address, &["--repeat", "3", "--patience", "1"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains(left), "{words}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(listening.end().0.status.code(), Some(0));
}

#[test]
fn a_listener_keeps_its_time_limit() {
    let (output, words) = listen("127.0.0.1", &["--patience", "1"]).end();
    assert_eq!(
        (output.status.code(), &*words),
        (Some(1), "dlrover-diag: error: no peer connected within 1 s\n")
    );
}
