//! `dlrover-diag pair`: no end waits for ever.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    process::{Child, ChildStderr, Output},
};

use super::diag;

/// A listener, and where it says that it listens.
struct Listening {
    child: Child,
    stderr: BufReader<ChildStderr>,
    words: String,
    address: String,
}

fn listen(args: &[&str]) -> Listening {
    let mut child = diag(&[&["pair", "--listen"], args].concat()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut words = String::new();
    stderr.read_line(&mut words).unwrap();
    let address = words.strip_prefix("dlrover-diag: listening at ").and_then(|it| it.split(',').next());
    let address = address.unwrap_or_else(|| panic!("{words}")).to_owned();
    Listening { child, stderr, words, address }
}

impl Listening {
    /// Exit code, lines of standard output, and the rest of standard error.
    fn end(mut self) -> (Option<i32>, usize, String) {
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).lines().count(), stderr)
    }
}

fn connect(address: &str, args: &[&str]) -> Output {
    diag(&[&["pair", "--connect", address], args].concat()).output().unwrap()
}

#[test]
fn who_answers_nothing_is_given_up_and_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = connect(&address, &["--patience", "1"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("what answers at {address} is not dlrover-diag")), "{stderr}");
}

#[test]
fn an_end_that_has_fewer_checks_to_do_is_told_to_have_left() {
    let left = "the other end has left after 1 of 3 checks";
    let listening = listen(&["localhost", "--repeat", "3", "--patience", "2"]);
    assert!(listening.words.ends_with(", for 2 s\n"), "{}", listening.words);
    assert!(connect(&listening.address, &[]).status.success());
    let (code, results, stderr) = listening.end();
    assert!(stderr.contains(left), "{stderr}");
    assert_eq!((code, results), (Some(1), 1), "{stderr}");

    let listening = listen(&["127.0.0.1"]);
    assert!(
        listening.words.ends_with(", until the other end comes; Ctrl-C ends it\n"),
        "{}",
        listening.words
    );
    let output = connect(&listening.address, &["--repeat", "3", "--patience", "1"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains(left), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(listening.end().0, Some(0));
}

#[test]
fn a_listener_that_was_given_a_limit_keeps_it() {
    let (code, results, stderr) = listen(&["127.0.0.1", "--patience", "1"]).end();
    assert_eq!((code, results, &*stderr), (Some(1), 0, "dlrover-diag: error: nobody came within 1 s\n"));
}
