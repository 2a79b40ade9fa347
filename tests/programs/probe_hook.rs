//! Each program runs as a probe when it is started as one.

use std::{
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

#[test]
fn every_program_runs_as_a_probe_when_asked() {
    for program in [
        env!("CARGO_BIN_EXE_dlrover-run-under-test"),
        env!("CARGO_BIN_EXE_dlrover-master-under-test"),
        env!("CARGO_BIN_EXE_dlrover-diag-under-test"),
    ] {
        let mut probe = Command::new(program)
            .arg0(probes::NAME)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        probe.stdin.take().unwrap().write_all(br#"{"Local":{"accelerators":false,"places":{}}}"#).unwrap();
        let output = probe.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let end = text.lines().last().unwrap();
        assert!(end.starts_with(r#"{"End":{"Local":{"fault":null,"compute":{"#), "{program}: {text}");
    }
}
