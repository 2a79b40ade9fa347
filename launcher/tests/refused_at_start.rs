//! What cannot be done is said at the start, before anybody waits for it.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

use std::process::{Command, Stdio};

/// What a program that must not go on says, and its exit code.
fn refusal_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn master(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-master"));
    refusal_of(command.args(["--bind", "127.0.0.1"]).args(args))
}

fn run(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-run"));
    refusal_of(command.args(args))
}

#[test]
fn a_taint_report_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (path, why) in
        [("/nonexistent/x.json", "No such file"), (folder, "no plain file"), ("/dev/null", "no plain file")]
    {
        let (code, words) = master(&["--taint-report", path]);
        assert_eq!(code, Some(2), "{words}");
        let told = format!("error: cannot write the taint report {path}: ");
        assert!(words.contains(&told) && words.contains(why), "{words}");
        let report = format!("--taint-report={path}");
        for line in [
            &["--standalone", "--network-check", &report, "--no-python", "true"][..],
            &["--master-port=0", "--network-check", &report, "--no-python", "true"],
        ] {
            let (code, words) = run(line);
            assert_eq!(code, Some(1), "{words}");
            assert!(words.contains(&told) && words.contains(why), "{words}");
        }
    }
}

#[test]
fn a_bad_number_is_told_with_what_is_wanted() {
    let diag = |args: &[&str]| refusal_of(Command::new(env!("CARGO_BIN_EXE_dlrover-diag")).args(args));
    for ((code, words), value, range) in [
        (master(&["--port", "x"]), "'x'", "a whole number from 0 to 65535"),
        (master(&["--restart-count=-1"]), "'-1'", "a whole number from 0 to 4294967295"),
        (diag(&["pair", "--listen", "::1", "--repeat=0"]), "'0'", "a whole number from 1 to 4294967295"),
        (diag(&["pair", "--listen", "::1", "--patience=1.5"]), "'1.5'", "a whole number from 0 to 86400"),
        (diag(&["switchbox", "--min-bandwidth=fast"]), "'fast'", "a number of MB/s above 0"),
        (diag(&["switchbox", "--min-channels=two"]), "'two'", "a whole number from 1 to 4294967295"),
    ] {
        assert_eq!(code, Some(2), "{words}");
        assert!(words.contains(value) && words.contains(&format!("expected {range}")), "{words}");
        assert!(!words.contains("invalid digit"), "{words}");
    }
}
