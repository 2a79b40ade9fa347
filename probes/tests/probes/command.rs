//! The check command.

use std::time::Duration;

use diagnosis::network_check::Probed;
use probes::{CommandPlan, ProbeHandle, ProbeProgram, start_command};
use tokio::sync::mpsc;

use crate::support::{ignores_sigterm, in_time, is_alive, number_in, program, until};

fn shell(script: &str) -> CommandPlan {
    CommandPlan {
        argv: ["sh", "-c", script].map(Into::into).into(),
        rank: 1,
        world_size: 2,
        master_addr: "127.0.0.1".into(),
        master_port: 4321,
        seed: u64::MAX,
        env: vec![("EXTRA".into(), "more".into()), ("RANK".into(), "overruled".into())],
        grace: Duration::from_secs(1),
        output: None,
        program: program(),
    }
}

async fn end(script: &str) -> Probed {
    in_time(start_command(shell(script), None).end()).await.unwrap()
}

async fn reason(script: &str) -> String {
    match end(script).await {
        Probed::Failed { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_good_answer_passes() {
    let script = r#"
        read -r request
        [ "$request" = '{"version":1,"rank":1,"world_size":2,"master_addr":"127.0.0.1","master_port":4321,"seed":9007199254740991}' ] || exit 9
        [ "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE" = "1 2 0 1" ] || exit 10
        [ "$MASTER_ADDR:$MASTER_PORT $EXTRA" = "127.0.0.1:4321 more" ] || exit 11
        [ "$DLROVER_CHECK $DLROVER_CHECK_SEED" = "1 9007199254740991" ] || exit 12
        for fd in 3 4 5 6 7 8 9 10 11 12; do [ -e /proc/$$/fd/$fd ] && exit 13; done
        echo starting up
        echo '{"progress":{"bytes":5,"total":10}}'
        echo '{"version":1,"comm_ms":12.5,"latency_us":50,"bytes_per_second":1e9,"checksum_ok":true}'
        echo done >&2
    "#;
    let (comm, latency) = (Duration::from_micros(12_500), Duration::from_micros(50));
    assert_eq!(end(script).await, Probed::Passed { comm, latency, bytes_per_second: 1_000_000_000 });
}

#[tokio::test]
async fn standard_error_is_forwarded() {
    let (output, mut lines) = mpsc::channel(8);
    let script = "echo one >&2; printf 'two \\377' >&2; echo '{\"version\":1,\"comm_ms\":1}'";
    let handle = start_command(CommandPlan { output: Some(output), ..shell(script) }, None);
    assert!(matches!(in_time(handle.end()).await.unwrap(), Probed::Passed { .. }));
    assert_eq!(in_time(lines.recv()).await.as_deref(), Some("one"));
    assert_eq!(in_time(lines.recv()).await.as_deref(), Some("two \u{fffd}"));
    assert_eq!(in_time(lines.recv()).await, None);
}

#[tokio::test]
async fn invalid_results_fail() {
    let good = r#"{"version":1,"comm_ms":1}"#;
    for (script, message) in [
        ("exit 0".to_owned(), "printed no result"),
        (
            format!("echo '{good}'; echo bye"),
            "its last line is not a result: expected value at line 1 column 1: bye",
        ),
        (format!("echo '{good}'; echo lost the wire >&2; exit 3"), "exited with code 3: lost the wire"),
        (format!("echo '{good}'; kill -SEGV $$"), "was killed by SIGSEGV"),
        (r#"echo '{"version":1,"checksum_ok":false}'"#.to_owned(), "received wrong bytes"),
        ("head -c 300000 /dev/zero | tr '\\0' '['".to_owned(), "its last line is not a result"),
        ("printf '\\377\\376'".to_owned(), "its last line is not a result"),
    ] {
        let reason = reason(&script).await;
        assert!(reason.contains(message) && reason.len() < 1000, "{script}: {reason}");
    }
}

#[tokio::test]
async fn a_command_that_the_shell_cannot_run_has_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let no_program = format!("exec {}", folder.path().display());
    for (script, code) in [("/nowhere/check", 127), (no_program.as_str(), 126)] {
        let cannot_run = in_time(start_command(shell(script), None).end()).await.unwrap_err();
        assert_eq!(cannot_run.code, code, "{cannot_run}");
        assert!(!cannot_run.said.is_empty());
        let said =
            format!("the check command cannot be run (exit code {code} of /bin/sh): {}", cannot_run.said);
        assert_eq!(cannot_run.to_string(), said);
    }
}

#[tokio::test]
async fn the_words_of_a_command_do_not_decide_whether_it_ran() {
    let reason = reason("echo 'the check command cannot be run' >&2; exit 1").await;
    assert_eq!(reason, "the check command exited with code 1: the check command cannot be run");
}

#[tokio::test]
async fn a_missing_program_is_named() {
    let plan = CommandPlan { argv: vec!["/nowhere/check".into()], ..shell("") };
    let Probed::Failed { reason } = in_time(start_command(plan, None).end()).await.unwrap() else { panic!() };
    assert!(reason.starts_with("cannot start the check command `/nowhere/check`: No such file"), "{reason}");
    let plan = CommandPlan { argv: Vec::new(), ..shell("") };
    let end = in_time(start_command(plan, None).end()).await.unwrap();
    assert_eq!(end, Probed::Failed { reason: "the check command is empty".into() });
}

#[tokio::test]
async fn a_hanging_command_is_cancelled_with_its_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (progress, mut subscribers) = mpsc::channel(8);
    let plan = CommandPlan {
        grace: Duration::from_millis(100),
        ..shell(&ignores_sigterm(&folder, "while :; do sleep 0.01; done"))
    };
    let handle = start_command(plan, Some(progress));
    loop {
        let message = in_time(subscribers.recv()).await.unwrap();
        if matches!(message, Probed::Unfinished { bytes: 5, total: 10, .. }) {
            break;
        }
    }
    until("the program has written its process id", || number_in(&folder.path().join("leader")).is_some());
    handle.cancel();
    let end = in_time(handle.end()).await.unwrap();
    assert!(matches!(end, Probed::Unfinished { bytes: 5, total: 10, .. }), "{end:?}");
    for name in ["leader", "daemon"] {
        assert!(!is_alive(number_in(&folder.path().join(name)).unwrap()), "{name}");
    }
}

#[tokio::test]
async fn a_daemon_of_an_ended_command_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = ignores_sigterm(&folder, r#"echo '{"version":1,"comm_ms":1}'"#);
    assert!(matches!(end(&script).await, Probed::Passed { .. }));
    assert!(!is_alive(number_in(&folder.path().join("daemon")).unwrap()));
}

#[tokio::test]
async fn a_command_may_handle_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cleared");
    let ready = folder.path().join("ready");
    let script = format!(
        "trap 'echo 1 > {}; exit 0' TERM; echo 1 > {}; while :; do sleep 0.01; done",
        file.display(),
        ready.display()
    );
    let plan = CommandPlan { grace: crate::support::TIMEOUT, ..shell(&script) };
    let handle = start_command(plan, None);
    until("the program runs", || number_in(&ready).is_some());
    handle.cancel();
    assert!(matches!(in_time(handle.end()).await.unwrap(), Probed::Unfinished { .. }));
    assert_eq!(number_in(&file), Some(1));
}

#[tokio::test]
async fn a_command_carries_the_launcher_id() {
    let script = r#"[ "$DLROVER_LAUNCHER_ID" = "some mark" ] && echo '{"version":1,"comm_ms":1}'"#;
    let program = ProbeProgram { launcher_id: Some("some mark".into()), ..program() };
    let handle: ProbeHandle = start_command(CommandPlan { program, ..shell(script) }, None);
    assert!(matches!(in_time(handle.end()).await.unwrap(), Probed::Passed { .. }));
}
