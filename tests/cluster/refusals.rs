//! Nodes that may not take part, and are told why.

use support::{cluster::Cluster, launch::Launch, programs};

use crate::cluster;

#[test]
fn a_node_of_another_job_is_refused_with_the_difference() {
    // A master with a token; without one the nodes wait (`unknown_peers`).
    let mut job = Cluster::of_lines(programs!());
    let token = |line: Launch| line.env("DLROVER_JOB_TOKEN", "s3cret");
    let master = token(job.master_line().flags(["--port=0"]));
    job.start_master(master);
    let line = ["--nnodes=2:4", "--rdzv-conf=lastcall_timeout=500"];
    let first = token(job.ranked(0)).flags(line).start();
    let _waits = job.await_output(&first, "1 of 2-4 nodes joined");
    let differing = [
        (
            vec![line[0], line[1], "--rdzv-id=other"],
            "the job has rdzv-id=none, the joining node has rdzv-id=other",
        ),
        (vec!["--nnodes=2:3", line[1]], "the job has nnodes=2:4, the joining node has nnodes=2:3"),
        (
            vec![line[0], line[1], "--node-unit=2"],
            "the job has node-unit=1, the joining node has node-unit=2",
        ),
        (
            vec![line[0], "--rdzv-conf=lastcall_timeout=7"],
            "the job has lastcall_timeout=500, the joining node has lastcall_timeout=7",
        ),
        (
            vec![line[0], "--rdzv-conf=lastcall_timeout=500,join_timeout=9"],
            "the job has join_timeout=600, the joining node has join_timeout=9",
        ),
        (
            vec![line[0], line[1], "--require-uniform"],
            "the job has require-uniform=false, the joining node has require-uniform=true",
        ),
    ];
    let refused = differing.map(|(flags, sentence)| (token(job.ranked(1)).flags(flags).start(), sentence));
    for (node, sentence) in refused {
        let outcome = node.finish().expect_code(1);
        assert!(outcome.stderr.contains(sentence), "{sentence}: {outcome:#?}");
        assert!(outcome.stderr.contains("; give every node the same command line"), "{outcome:#?}");
    }
    let rest = [1, 2, 3].map(|rank| token(job.ranked(rank)).flags(line).start());
    let _world = job.await_world(4, 0);
    job.ends_well([first].into_iter().chain(rest));
}

#[test]
fn with_require_uniform_another_number_of_workers_is_refused() {
    let mut job = cluster();
    let line = ["--nnodes=2", "--require-uniform"];
    let first = job.ranked(0).flags(line).start();
    let _waits = job.await_output(&first, "1 of 2 nodes joined");
    let outcome = job.ranked(1).flags(line).flags(["--nproc-per-node=2"]).finish().expect_code(1);
    let sentence =
        "the job's nodes must have the same number of workers: they have 1, the joining node has 2";
    assert!(outcome.stderr.contains(sentence), "{outcome:#?}");
    let second = job.ranked(1).flags(line).start();
    let _world = job.await_world(2, 0);
    job.ends_well([first, second]);
}

#[test]
fn a_rank_of_a_live_node_is_not_given_away() {
    let mut job = cluster();
    let [first, second] = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    let outcome = job.node(9).env("NODE_RANK", "1").flags(["--nnodes=2"]).finish().expect_code(1);
    let output = &outcome.stderr;
    assert!(output.contains("node rank 1 is held by node rank 1 ("), "{outcome:#?}");
    assert!(output.contains("127.0.0.2), which is connected, so node rank 1 ("), "{outcome:#?}");
    assert!(output.contains("127.0.0.9) cannot take it"), "{outcome:#?}");
    assert!(world.iter().all(|worker| support::cluster::alive(worker.pid)), "no worker was disturbed");
    job.ends_well([first, second]);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}
