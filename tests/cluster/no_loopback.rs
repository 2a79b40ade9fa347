//! Hosts with the loopback interface down: they reach none of their own addresses, and so no master that they serve.

use support::{
    cluster::Cluster,
    launch::{Launch, Outcome},
};

use crate::{hosts::Network, lines};

/// An interface beside `lo`, which is up.
const ONE_MORE: &str = "ip link add one type veth peer name other; ip addr add 10.79.0.1/24 dev one; \
                        ip link set one up; ip link set other up";

/// A launcher in a network namespace of its own, set up by these commands.
fn inside(job: &Cluster, commands: &str) -> Launch {
    let script = format!("{commands}; exec \"$@\"");
    job.line_in(&["unshare", "--net", "sh", "-c", &script, "sh"], "a host of its own")
}

fn is_refused_at_once(outcome: Outcome, place: &str) {
    let outcome = outcome.expect_code(1);
    let sentence = format!("the loopback interface `lo` is down, so this node cannot reach {place}");
    assert!(outcome.stderr.contains(&sentence), "{outcome:#?}");
    assert!(outcome.stderr.contains("run `ip link set lo up`"), "{outcome:#?}");
    assert_eq!(outcome.dumps(), [], "no worker was started");
}

#[test]
fn a_launcher_that_cannot_reach_its_own_master_fails_at_once() {
    if Network::of(0).is_none() {
        return;
    }
    let job = lines();
    let alone = inside(&job, "true").flags(["--standalone"]).finish();
    is_refused_at_once(alone, "the job master of its run");
    let c10d = |endpoint: &str| {
        let endpoint = format!("--rdzv-endpoint={endpoint}");
        inside(&job, ONE_MORE).flags(["--nnodes=1:2", "--rdzv-backend=c10d", &*endpoint]).finish()
    };
    is_refused_at_once(c10d("127.0.0.1:29400"), "127.0.0.1:29400");
    is_refused_at_once(c10d("localhost:29400"), "localhost:29400");
    is_refused_at_once(c10d("10.79.0.1:29400"), "10.79.0.1:29400");
    let fixed = ["--nnodes=2", "--node-rank=1", "--master-addr=10.79.0.1", "--master-port=29500"];
    is_refused_at_once(inside(&job, ONE_MORE).flags(fixed).finish(), "10.79.0.1:29500");
    let master = inside(&job, ONE_MORE).env("DLROVER_MASTER_ADDR", "10.79.0.1:50001");
    is_refused_at_once(master.flags(["--nnodes=2"]).finish(), "10.79.0.1:50001");
}

#[test]
fn a_launcher_with_a_remote_master_only_warns() {
    if Network::of(0).is_none() {
        return;
    }
    let job = lines();
    let node = inside(&job, ONE_MORE).env("DLROVER_MASTER_ADDR", "10.79.0.2:50001").flags(["--nnodes=2"]);
    let node = node.start();
    let _said = job.await_output(&node, "the workers' store (if this node serves it)");
    let _said = job.await_output(&node, "10.79.0.2:50001");
}

#[test]
fn with_loopback_up_the_same_command_runs() {
    if Network::of(0).is_none() {
        return;
    }
    let job = lines();
    job.go();
    for line in [["--standalone"].as_slice(), &["--rdzv-backend=c10d", "--rdzv-endpoint=10.79.0.1:29400"]] {
        let both = format!("ip link set lo up; {ONE_MORE}");
        let _outcome = inside(&job, &both).flags(line).finish().expect_code(0);
    }
}
