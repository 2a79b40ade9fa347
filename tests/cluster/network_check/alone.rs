//! A single node, which no other can test.

use support::launch::Outcome;

use super::report::Report;
use crate::lines;

#[test]
fn a_single_node_runs_its_self_test_and_reports_that_the_network_was_not_checked() {
    let job = lines();
    let file = job.dir().join("report.json");
    let flags = ["--standalone".to_owned(), "--network-check".to_owned()];
    let node = job.line().flags(flags).flags([format!("--taint-report={}", file.display())]).start();
    let _world = job.await_world(1, 0);
    let report = job.wait("the report", || Report::read(&std::fs::read_to_string(&file).ok()?));
    report.blames(&[]);
    assert!(report.network_untested && report.rounds.is_empty(), "{report:#?}");
    let output =
        job.await_output(&node, "this node is healthy; the network was not tested: that requires two nodes");
    assert!(output.contains("network check: self-test passed ("), "{output}");
    job.go();
    let _outcomes = job.finish([node], 0);
}

/// A job of one node with this program in place of the built-in test.
fn with_command(command: &str, more: &[&str], code: i32) -> Outcome {
    let job = lines();
    let flags = ["--standalone", "--network-check", "--check-command", command];
    job.go();
    let node = job.line().flags(flags).flags(more).start();
    let outcome = job.finish([node], code).remove(0);
    assert_eq!(job.ran().is_empty(), code != 0, "{outcome:#?}");
    outcome
}

#[test]
fn a_single_node_runs_the_check_command() {
    let answer = r#"{"version":1,"comm_ms":1.5}"#;
    let output = with_command(&format!("[ $RANK/$WORLD_SIZE = 0/1 ] && echo '{answer}'"), &[], 0).stderr;
    assert!(output.contains("the check command passed on this node, tested alone (1.5 ms)"), "{output}");

    let output = with_command("./nope", &[], 1).stderr;
    assert!(
        output.contains("error: the check command cannot be run (exit code 127 of /bin/sh): "),
        "{output}"
    );

    for (command, more, words) in [
        ("echo on fire >&2; exit 3", &[][..], "the check command exited with code 3: on fire"),
        ("true", &[], "the check command exited with code 0, but printed no result"),
        ("sleep 1000", &["--network-check-timeout=1"], "the check command timed out after 1 s"),
    ] {
        let output = with_command(command, more, 201).stderr;
        assert!(output.contains(words), "{output}");
        assert!(output.contains("Check first: the output of the check command when run by hand"), "{output}");
        assert!(!output.contains("no bytes transferred") && !output.contains("cable"), "{output}");
    }
}

#[test]
fn of_two_nodes_the_failed_command_is_named_and_not_the_network() {
    let end = |command: &str, code: i32| {
        let job = lines();
        let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", support::free_port());
        let flags =
            ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "--network-check", "--network-check-timeout=1"];
        let nodes = [0, 1].map(|_| job.line().flags(flags).flags(["--check-command", command]).start());
        let outcomes = job.finish(nodes, code);
        assert_eq!(job.ran(), [], "{outcomes:#?}");
        outcomes.into_iter().map(|outcome| outcome.stderr)
    };
    for output in end("echo on fire >&2; exit 3", 202) {
        let words =
            "the check command exited with code 3: on fire; no node is tainted. Run the check command";
        assert!(output.contains(words), "{output}");
    }
    for output in end("sleep 1000", 202) {
        assert!(
            output.contains("the check command timed out after ") && !output.contains("no byte"),
            "{output}"
        );
    }
    // Without the command no node is suspected: the first that notices fails, and the job with it.
    let output: String = end("./nope", 1).collect();
    assert!(
        output.contains("error: the check command cannot be run (exit code 127 of /bin/sh): "),
        "{output}"
    );
    assert!(!output.contains("unverified"), "{output}");
}
