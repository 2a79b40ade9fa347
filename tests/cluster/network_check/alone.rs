//! One node has nobody to be tested with.

use support::launch::Outcome;

use super::report::Report;
use crate::lines;

#[test]
fn a_node_alone_is_checked_by_itself_and_says_that_the_network_was_not() {
    let job = lines();
    let file = job.dir().join("report.json");
    let flags = ["--standalone".to_owned(), "--network-check".to_owned()];
    let node = job.line().flags(flags).flags([format!("--taint-report={}", file.display())]).start();
    let _world = job.await_world(1, 0);
    let report = job.wait("the report", || Report::read(&std::fs::read_to_string(&file).ok()?));
    report.blames(&[]);
    assert!(report.network_untested && report.rounds.is_empty(), "{report:#?}");
    let said = job.await_said(&node, "this node is fit; the network was not tested, which takes two nodes");
    assert!(said.contains("network check: self-test passed ("), "{said}");
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
fn a_node_alone_runs_the_check_command() {
    let answer = r#"{"version":1,"comm_ms":1.5}"#;
    let said = with_command(&format!("[ $RANK/$WORLD_SIZE = 0/1 ] && echo '{answer}'"), &[], 0).stderr;
    assert!(said.contains("the check command passed on this node, tested alone (1.5 ms)"), "{said}");

    let said = with_command("./nope", &[], 1).stderr;
    assert!(said.contains("error: the check command cannot be run (exit code 127 of /bin/sh): "), "{said}");

    for (command, more, words) in [
        ("echo on fire >&2; exit 3", &[][..], "the check command exited with code 3: on fire"),
        ("true", &[], "the check command exited with 0, but printed no result"),
        ("sleep 1000", &["--network-check-timeout=1"], "the check command gave no answer within 1 s"),
    ] {
        let said = with_command(command, more, 201).stderr;
        assert!(said.contains(words), "{said}");
        assert!(said.contains("Look first at the command line of --check-command"), "{said}");
        assert!(!said.contains("no byte moved") && !said.contains("cable"), "{said}");
    }
}

#[test]
fn of_two_nodes_a_command_that_fails_is_named_and_not_the_network() {
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
    for said in end("echo on fire >&2; exit 3", 202) {
        let words =
            "the check command exited with code 3: on fire; no node is tainted. Look first at that command";
        assert!(said.contains(words), "{said}");
    }
    for said in end("sleep 1000", 202) {
        assert!(
            said.contains("the check command gave no answer within ") && !said.contains("no byte"),
            "{said}"
        );
    }
    // Where it is not there no node is suspected: the first that notices ends, and the job with it.
    let said: String = end("./nope", 1).collect();
    assert!(said.contains("error: the check command cannot be run (exit code 127 of /bin/sh): "), "{said}");
    assert!(!said.contains("not proven good"), "{said}");
}
