//! What every program prints: `--version`, with the release, the commit where it is known and the target; completion
//! scripts.

use std::{fs::File, process::Command};

#[test]
fn every_program_prints_release_and_target() {
    for (program, name) in [
        (env!("CARGO_BIN_EXE_dlrover-run-under-test"), "dlrover-run"),
        (env!("CARGO_BIN_EXE_dlrover-master-under-test"), "dlrover-master"),
        (env!("CARGO_BIN_EXE_dlrover-diag-under-test"), "dlrover-diag"),
    ] {
        let output = Command::new(program).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let build = text
            .strip_prefix(&format!("{name} {} (", env!("CARGO_PKG_VERSION")))
            .and_then(|rest| rest.strip_suffix(")\n"));
        let Some(build) = build else { panic!("{program}: {text}") };
        let (commit, target) = build.split_once(", ").unwrap_or(("", build));
        assert!(target.ends_with("-linux-gnu") || target.ends_with("-linux-musl"), "{text}");
        let digits = commit.split('-').next().unwrap();
        assert!(digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    }
}

#[test]
fn a_full_disk_is_named_with_the_stream() {
    for (program, name) in [
        (env!("CARGO_BIN_EXE_dlrover-run-under-test"), "dlrover-run"),
        (env!("CARGO_BIN_EXE_dlrover-master-under-test"), "dlrover-master"),
        (env!("CARGO_BIN_EXE_dlrover-diag-under-test"), "dlrover-diag"),
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(program).arg("--version").stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let error = format!("{name}: error: cannot write to standard output: No space left on device");
        assert!(stderr.starts_with(&error), "{stderr}");
    }
}

#[test]
fn every_program_prints_its_completion_script() {
    for (program, arguments, function) in [
        (
            env!("CARGO_BIN_EXE_dlrover-run-under-test"),
            &["--print-completion", "bash"][..],
            "_dlrover__run() {",
        ),
        (env!("CARGO_BIN_EXE_dlrover-master-under-test"), &["--print-completion=zsh"], "_dlrover-master() {"),
        (env!("CARGO_BIN_EXE_dlrover-diag-under-test"), &["completion", "fish"], "complete -c dlrover-diag "),
    ] {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(function), "{program}: {arguments:?}");
    }
}
