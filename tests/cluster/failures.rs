//! Workers fail: every node restarts, and only the budget of the node with the failed worker is spent.

use support::{free_port, seen::Dump};

use crate::{cluster, lines};

/// Rank 1 of round 0 fails when it is told to.
const RANK_1_FAILS: [&str; 4] = ["dump", "1@0 await fail", "1@0 exit 3", "await go"];

fn restarts(world: &[Dump]) -> Vec<&str> {
    world.iter().map(|worker| worker.var("TORCHELASTIC_RESTART_COUNT")).collect()
}

#[test]
fn a_failure_restarts_all_nodes_and_spends_the_budget_of_one() {
    let mut job = cluster();
    let steps = ["dump", "1@0 await fail 1", "1@0 exit 3", "0@1 await fail 0", "0@1 exit 4", "await go"];
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let first = job.await_world(2, 0);
    job.touch("fail 1");
    let second = job.await_world(2, 1);
    job.touch("fail 0");
    let third = job.await_world(2, 2);
    assert_eq!(restarts(&first), ["0", "0"]);
    assert_eq!(restarts(&second), ["0", "1"]);
    assert_eq!(restarts(&third), ["1", "1"], "both had one, and each spent its own");
    for worker in first.iter().chain(&second) {
        assert!(!support::cluster::alive(worker.pid), "{worker:#?}");
    }
    let outcomes = job.ends_well(nodes);
    let peer = &outcomes[0].stderr;
    assert!(peer.contains("workers of node rank 1 ("), "{peer}");
    assert!(peer.contains("exited with code 3; all nodes restart their workers"), "{peer}");
    let own = &outcomes[1].stderr;
    assert!(own.contains("exited with code 3; restarting all workers (restart 1 of 1)"), "{own}");
}

#[test]
fn a_spent_budget_on_torchrun_lines_fails_every_node_with_the_root_cause() {
    let job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint];
    let nodes = [1, 2].map(|place| job.node(place).flags(line).steps(&RANK_1_FAILS).start());
    let _world = job.await_world(2, 0);
    job.touch("fail");
    let outcomes = job.finish(nodes, 1);
    let peer = &outcomes[0].stderr;
    assert!(peer.contains("127.0.0.2) failed: rank 1 "), "{peer}");
    assert!(peer.contains("exited with code 3"), "{peer}");
    assert!(outcomes[1].stderr.contains("traceback : "), "its own report: {outcomes:#?}");
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn a_spent_budget_of_the_node_that_serves_the_master_is_reported_by_all() {
    let job = lines();
    let port = free_port().to_string();
    let steps = ["dump", "0@0 await fail", "0@0 kill SEGV", "await go"];
    let nodes = ["0", "1"].map(|rank| {
        let line = ["--nnodes=2", "--master-addr=127.0.0.1", "--master-port", &port, "--node-rank", rank];
        job.line().flags(line).steps(&steps).start()
    });
    let _world = job.await_world(2, 0);
    job.touch("fail");
    let outcomes = job.finish(nodes, 1);
    let peer = &outcomes[1].stderr;
    assert!(peer.contains("node rank 0 ("), "{peer}");
    assert!(peer.contains(" failed: rank 0 "), "{peer}");
    assert!(peer.contains("SIGSEGV"), "{peer}");
}

#[test]
fn with_dlrover_master_a_replacement_revives_the_job() {
    let mut job = cluster();
    let [first, second] =
        [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).steps(&RANK_1_FAILS).start());
    let _world = job.await_world(2, 0);
    job.touch("fail");
    let outcome = second.finish().expect_code(1);
    assert!(outcome.stderr.contains("rank 1 (local rank 0, pid "), "{outcome:#?}");
    let _waits = job.await_output(&first, "1 of 2 nodes joined, missing: node rank 1 (");
    let replacement = job.node(9).env("NODE_RANK", "1").flags(["--nnodes=2"]).start();
    let world = job.await_world(2, 1);
    assert_eq!(support::cluster::places(&world), [1, 9]);
    assert_eq!(restarts(&world), ["0", "0"], "a membership change spends no restart");
    job.ends_well([first, replacement]);
}

#[test]
fn a_spent_budget_with_enough_nodes_left_shrinks_the_job() {
    let mut job = cluster();
    let [first, second] =
        [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=1:2"]).steps(&RANK_1_FAILS).start());
    let _world = job.await_world(2, 0);
    job.touch("fail");
    let _outcome = second.finish().expect_code(1);
    let _alone = job.await_world(1, 1);
    job.ends_well([first]);
}

#[test]
fn a_node_that_has_succeeded_restarts_with_its_peers() {
    let mut job = cluster();
    let steps = ["dump", "0@0 exit 0", "1@0 await fail", "1@0 exit 3", "await go"];
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let first = job.await_world(2, 0);
    job.await_death(&first[0]);
    job.touch("fail");
    let second = job.await_world(2, 1);
    assert_eq!(restarts(&second), ["0", "1"]);
    job.ends_well(nodes);
}

#[test]
fn a_node_that_has_succeeded_keeps_its_success_when_a_peer_is_lost() {
    let mut job = cluster();
    let steps = ["dump", "0@0 exit 0", "await go"];
    let line = ["--nnodes=2", "--rdzv-conf=join_timeout=5"];
    let [done, lost] = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let first = job.await_world(2, 0);
    job.await_death(&first[0]);
    support::cluster::kill_node(lost);
    let _done = done.finish().expect_code(0);
    let master = job.finish_master().expect_code(1);
    assert!(master.stderr.contains("1 of 2 nodes joined within 5 s"), "{master:#?}");
}

/// The first line of a launcher's report.
fn root_cause(stderr: &str) -> &str {
    let line = stderr.lines().find(|line| line.starts_with("dlrover-run: root cause: "));
    line.unwrap_or_else(|| panic!("no root cause in {stderr}"))
}

#[test]
fn the_exception_of_one_rank_is_in_the_report_of_every_node() {
    let job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=3", "--rdzv-backend=c10d", &endpoint];
    // The one of rank 1 follows from that of rank 2, and is noticed when the end of the job is on its way. The reports of
    // both may pass each other on a busy host.
    let steps = [
        "dump",
        "2@0 await fail",
        "2@0 raise no data in shard 13",
        "1@0 await noticed",
        "1@0 exit 4",
        "hang",
    ];
    let document = |place: u8| job.dir().join(format!("report-{place}.json"));
    let nodes = [1, 2, 3].map(|place| {
        let document = format!("--report-json={}", document(place).display());
        job.node(place).flags(line).flags([document]).steps(&steps).start()
    });
    let world = job.await_world(3, 0);
    job.touch("fail");
    let _said = job.await_output(&nodes[2], "exited with code 1; not restarting");
    job.touch("noticed");
    let outcomes = job.finish(nodes, 1);
    let failed = &world[2];
    for place in [1, 2, 3] {
        let document = std::fs::read_to_string(document(place)).expect("a report");
        let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
        let first = &document["first_failure"];
        assert_eq!(
            (&first["rank"], &first["node_rank"], &first["pid"]),
            (&2.into(), &2.into(), &failed.pid.into()),
            "place {place}: {document:#}\n{outcomes:#?}"
        );
        let lines = first["last_lines"].as_array().expect("lines");
        assert_eq!(lines.last().expect("lines"), "RuntimeError: no data in shard 13", "{document:#}");
    }
    let summary = format!(
        "dlrover-run: root cause: rank 2 (local rank 0, node rank 2, host {}, pid {}): exited with code 1: RuntimeError: no \
         data in shard 13",
        hostname(),
        failed.pid
    );
    for outcome in &outcomes {
        assert_eq!(root_cause(&outcome.stderr), summary, "{outcome:#?}");
        assert!(outcome.stderr.contains("    | RuntimeError: no data in shard 13\n"), "{outcome:#?}");
        assert!(outcome.stderr.contains("    | Traceback (most recent call last):\n"), "{outcome:#?}");
    }
    let quoted = "  last lines of the standard error of rank 2 on node rank 2 (";
    assert!(outcomes[0].stderr.contains(quoted), "{:#?}", outcomes[0]);
    let own = &outcomes[2].stderr;
    let (summary, report) = (own.find(&summary).unwrap(), own.find("ChildFailedError: \n").unwrap());
    assert!(summary < report && !own.contains(quoted), "before torch's report, and its lines once: {own}");
}

#[test]
fn the_words_of_an_earlier_failure_are_not_those_of_the_last() {
    let mut job = cluster();
    let steps =
        ["dump", "1@0 await fail 0", "1@0 raise the first", "0@1 await fail 1", "0@1 kill KILL", "hang"];
    let line = ["--nnodes=2", "--rdzv-conf=join_timeout=5"];
    let failing = job.ranked(0).flags(line).steps(&steps).start();
    let waiting = job.ranked(1).flags(line).flags(["--max-restarts=1"]).steps(&steps).start();
    let _first = job.await_world(2, 0);
    job.touch("fail 0");
    let _second = job.await_world(2, 1);
    let _ = job.await_master_log("root cause: rank 1 (");
    job.touch("fail 1");
    let failed = failing.finish().expect_code(1).stderr;
    assert!(root_cause(&failed).ends_with("): killed by SIGKILL"), "{failed}");
    let waited = waiting.finish().expect_code(75).stderr;
    assert!(
        root_cause(&waited).starts_with("dlrover-run: root cause: rank 0 (local rank 0, node rank 0, "),
        "{waited}"
    );
    assert!(root_cause(&waited).ends_with("): killed by SIGKILL"), "{waited}");
    let master = job.finish_master().expect_code(1).stderr;
    assert!(master.contains("): exited with code 1: RuntimeError: the first\n"), "{master}");
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").expect("every host has one").trim().to_owned()
}
