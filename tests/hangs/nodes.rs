//! Hangs of jobs of several nodes, and of jobs whose master dies.

use std::fs::{self, OpenOptions};

use support::{
    cluster::Cluster,
    free_port,
    launch::{Launch, Running},
    programs, trainer,
};

use crate::observed::{REPORT, all_files, await_hang, diag, files, hang_lines};

/// The line of a node whose worker `who` reads a FIFO at step 3.
fn reading(line: Launch, who: u32) -> Launch {
    let args =
        ["--kind=fifo".to_owned(), format!("--who={who}"), "--at=3".to_owned(), "--steps=8".to_owned()];
    line.flags(["--hang-timeout=2"]).script(trainer("hang.py")).args(args)
}

/// The rank reads on: the hang is over.
fn release(job: &Cluster, who: u32) {
    let fifo = job.dir().join(format!("fifo.{who}"));
    let _closed = OpenOptions::new().write(true).open(fifo).expect("a rank reads it");
}

#[test]
fn every_node_prints_the_hang_of_another() {
    let job = Cluster::of_lines(programs!());
    let stacks = job.dir().join("stacks");
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=hangs", &endpoint];
    let nodes: Vec<Running> = [0, 1]
        .map(|_| reading(job.line(), 3).flags(line).env("XPU_TIMER_TIMELINE_PATH", &stacks).start())
        .into();
    for node in &nodes {
        let line = await_hang(node);
        assert!(line.contains("rank 3 is in hang.py:"), "{line}");
        assert!(
            line.contains(
                "read_shard_list; 0-2 wait in all_reduce; stacks of all ranks, written by the job master: "
            ),
            "{line}"
        );
    }
    assert_eq!(files(&stacks), all_files(4));
    let report = job.wait("the report", || std::fs::read_to_string(stacks.join(REPORT)).ok());
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let node = &report["nodes"][0];
    assert_eq!((&node["rank"], &node["suspects"][0]["rank"]), (&1.into(), &3.into()), "{report:#}");
    assert_eq!(node["taint"], serde_json::Value::Null, "the first hang that names it");
    release(&job, 3);
    for node in job.finish(nodes, 0) {
        assert_eq!(hang_lines(&node.stderr).len(), 1, "{node:#?}");
    }
}

#[test]
fn a_master_that_is_killed_does_not_declare_the_same_hang_again() {
    let mut job = Cluster::of_lines(programs!());
    let (state, stacks) = (job.dir().join("state"), job.dir().join("stacks"));
    fs::create_dir(&state).expect("a directory of our own");
    let flags = [format!("--state-dir={}", state.display()), "--reconnect-grace=60".to_owned()];
    let master = |job: &Cluster, port: u16| {
        let line = job.master_line().flags([format!("--port={port}")]).flags(&flags);
        line.env("XPU_TIMER_TIMELINE_PATH", &stacks)
    };
    job.start_master(master(&job, 0));
    let port = job.address().rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let node = reading(job.ranked(0), 1).flags(["--nnodes=1", "--nproc-per-node=2"]).start();
    let line = await_hang(&node);
    assert!(line.contains("read_shard_list; 0 waits in all_reduce"), "{line}");

    job.kill_master();
    job.start_master(master(&job, port));
    let _reconnected = job.await_output(&node, "reconnected to the job master");
    // Its ranks are reported anew, as stalled, and the hang is the one that was declared.
    let status = job.wait("the ranks' states", || {
        let text = diag(&["status", &format!("127.0.0.1:{port}"), "--json"]);
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let stalled = status.to_string().matches(r#""state":"stalled""#).count();
        (stalled == 2).then_some(status)
    });
    assert_eq!(status["hang"]["count"], 1, "{status:#}");
    assert_eq!(status["hang"]["is_over"], false, "{status:#}");
    assert_eq!(status["hang"]["ranks"], serde_json::json!([1]), "{status:#}");

    release(&job, 1);
    let outcomes = job.finish([node], 0);
    assert_eq!(hang_lines(&outcomes[0].stderr).len(), 1, "{outcomes:#?}");
    let master = job.finish_master().expect_code(0);
    assert_eq!(hang_lines(&master.stderr).len(), 0, "{master:#?}");
}
