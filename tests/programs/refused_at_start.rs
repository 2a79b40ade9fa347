//! Options that cannot work are refused at the start.

use std::process::{Command, Stdio};

/// Returns the output of a program that must refuse to start, and its exit code.
fn refusal_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn master(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-master-under-test"));
    refusal_of(command.args(["--bind", "127.0.0.1"]).args(args))
}

fn run(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-run-under-test"));
    refusal_of(command.args(args))
}

#[test]
fn a_taint_report_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (path, why) in [
        ("/nonexistent/x.json", "No such file"),
        (folder, "not a regular file"),
        ("/dev/null", "not a regular file"),
    ] {
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
fn a_bad_number_is_reported_with_the_valid_range() {
    let diag =
        |args: &[&str]| refusal_of(Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test")).args(args));
    for ((code, words), value, range) in [
        (master(&["--port", "x"]), "'x'", "a whole number from 0 to 65535"),
        (master(&["--restart-count=-1"]), "'-1'", "a whole number from 0 to 4294967295"),
        (diag(&["pair", "--listen", "::1", "--repeat=0"]), "'0'", "a whole number from 1 to 4294967295"),
        (diag(&["pair", "--listen", "::1", "--patience=1.5"]), "'1.5'", "a whole number from 0 to 86400"),
        (diag(&["switchbox", "--min-bandwidth=fast"]), "'fast'", "a bandwidth in MB/s above 0"),
        (diag(&["switchbox", "--min-channels=two"]), "'two'", "a whole number from 1 to 4294967295"),
    ] {
        assert_eq!(code, Some(2), "{words}");
        assert!(words.contains(value) && words.contains(&format!("expected {range}")), "{words}");
        assert!(!words.contains("invalid digit"), "{words}");
    }
}

/// A program that is not refused would serve.
fn slip_of_master(args: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-master-under-test"));
    command.args(["--bind", "127.0.0.1"]).args(args).stdin(Stdio::null());
    let stderr = folder.path().join("stderr");
    let mut master = command.stderr(std::fs::File::create(&stderr).unwrap()).spawn().unwrap();
    let log = || std::fs::read_to_string(&stderr).unwrap();
    let code = loop {
        if let Some(status) = master.try_wait().unwrap() {
            break status.code();
        }
        if log().contains("listening on ") {
            master.kill().unwrap();
            master.wait().unwrap();
            break None;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    (code, log())
}

#[test]
fn a_master_refuses_unknown_options() {
    for (args, hint) in [
        (&["--prot", "50083"][..], "'--prot' found (did you mean --port?)"),
        (&["--state_dri=/tmp"], "'--state-dri' found (did you mean --state-dir?)"),
        (&["--pending_timeuot", "9"], "'--pending-timeuot' found (did you mean --pending-timeout?)"),
        (&["--service-type=gprc"], "(did you mean grpc?)"),
        (&["bare"], "unexpected argument 'bare' found"),
    ] {
        let (code, words) = slip_of_master(args);
        assert_eq!(code, Some(2), "{words}");
        assert!(words.starts_with("dlrover-master: error: "), "{words}");
        assert!(words.contains(hint), "{words}");
    }
    let (code, words) = slip_of_master(&["--pending_timeout", "900", "--pre_check_bypass=True"]);
    assert_eq!(code, None, "it serves: {words}");
    assert!(!words.contains("pending"), "{words}");
}

#[test]
fn dlrover_diag_suggests_the_right_command() {
    let diag =
        |args: &[&str]| refusal_of(Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test")).args(args));
    for (args, hint) in [
        (&["pair", "--reapeat", "2"][..], "'--reapeat' found (did you mean --repeat?)"),
        (&["topo", "--exlpain"], "'--exlpain' found (did you mean --explain?)"),
        (&["rehaerse"], "'rehaerse' (did you mean rehearse?)"),
        (&["pair", "--listen", "::1", "--repeat=0"], "invalid value '0'"),
    ] {
        let (code, words) = diag(args);
        assert_eq!(code, Some(2), "{words}");
        assert!(words.starts_with("dlrover-diag: error: ") && words.contains(hint), "{words}");
    }
    let (code, words) = diag(&["--help"]);
    assert_eq!((code, &*words), (Some(0), ""), "help goes to standard output");
}
