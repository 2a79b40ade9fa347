//! The lines by which nodes find each other.

use support::{free_port, launch::Launch};

use crate::{cluster, lines};

/// Workers that meet at the store of their world.
const MEET: [&str; 4] = ["dump", "0 set word hello", "1 get word", "await go"];

#[test]
fn unchanged_c10d_commands_rendezvous() {
    for host in ["127.0.0.1", "localhost"] {
        let mut job = lines();
        let endpoint = format!("--rdzv-endpoint={host}:{}", free_port());
        let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "--rdzv-id=same"];
        // The same command line everywhere, without a node rank.
        let nodes = [(); 2].map(|()| job.node(1).flags(line).steps(&MEET).start());
        let world = job.await_world(2, 0);
        assert!(world.iter().all(|worker| worker.var("TORCHELASTIC_RUN_ID") == "same"), "{world:#?}");
        assert_eq!(job.await_file("1.0.get.word"), "hello");
        job.ends_well(nodes);
    }
}

/// A line without an address of its own.
fn bare(job: &support::cluster::Cluster) -> Launch {
    job.line().steps(&MEET)
}

#[test]
fn c10d_commands_need_no_local_address() {
    let mut job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=1:2", "--rdzv-backend=c10d", &endpoint, "--rdzv-id=same"];
    let nodes = [(); 2].map(|()| bare(&job).flags(line).start());
    let _world = job.await_world(2, 0);
    assert_eq!(job.await_file("1.0.get.word"), "hello");
    job.ends_well(nodes);
}

#[test]
fn unchanged_static_commands_rendezvous_in_any_order() {
    for order in [[0, 1], [1, 0]] {
        let mut job = lines();
        let port = free_port().to_string();
        let line = ["--nnodes=2", "--master-addr=127.0.0.1", "--master-port", &port];
        let nodes = order.map(|rank| bare(&job).flags(line).flags([format!("--node-rank={rank}")]).start());
        let world = job.await_world(2, 0);
        for worker in &world {
            assert_eq!((worker.var("MASTER_ADDR"), worker.var("MASTER_PORT")), ("127.0.0.1", &*port));
        }
        assert_eq!(job.await_file("1.0.get.word"), "hello");
        job.ends_well(nodes);
    }
}

#[test]
fn kubeflow_commands_rendezvous_in_any_order() {
    for order in [[0, 1], [1, 0]] {
        let mut job = lines();
        let address = format!("127.0.0.1:{}", free_port());
        let nodes = order.map(|rank: u32| {
            let node = bare(&job).env("DLROVER_MASTER_ADDR", &address).env("NODE_RANK", rank.to_string());
            node.flags(["--nnodes=2"]).start()
        });
        let _world = job.await_world(2, 0);
        assert_eq!(job.await_file("1.0.get.word"), "hello");
        job.ends_well(nodes);
    }
}

#[test]
fn a_page_that_is_not_served_here_is_said() {
    let mut job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint, "--http=0"];
    let nodes = [1, 2].map(|place| job.node(place).flags(line).start());
    let _world = job.await_world(2, 0);
    let outcomes = job.ends_well(nodes);
    let count = |words: &str| outcomes.iter().filter(|it| it.stderr.contains(words)).count();
    assert_eq!(count("page and metrics of the job: "), 1, "{outcomes:#?}");
    assert_eq!(
        count("`--http=0` is ignored: the page and metrics are served by the launcher"),
        1,
        "{outcomes:#?}"
    );
}

#[test]
fn the_launcher_that_serves_the_master_leaves_last() {
    let mut job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=1:2", "--rdzv-backend=c10d", &endpoint, "--rdzv-conf=lastcall_timeout=0"];
    let steps = ["dump", "0@1 exit 0", "await go"];
    let mut host = job.node(1).flags(line).steps(&steps).start();
    let _alone = job.await_world(1, 0);
    let other = job.node(2).flags(line).steps(&steps).start();
    let both = job.await_world(2, 1);
    job.await_death(&both[0]);
    assert!(support::cluster::alive(both[1].pid) && !host.has_ended());
    job.ends_well([other, host]);
}

#[test]
fn nodes_of_torchrun_lines_all_end_when_terminated() {
    let job = lines();
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let line = ["--nnodes=3", "--rdzv-backend=c10d", &endpoint];
    let nodes = [1, 2, 3].map(|place| job.node(place).flags(line).start());
    let _world = job.await_world(3, 0);
    for node in &nodes {
        node.signal(nix::sys::signal::Signal::SIGTERM);
    }
    // Each ends by its own signal or with the others; either way it fails, and none waits longer.
    let outcomes = job.finish(nodes, 1);
    let notice = "this launcher serves the job master: the job ends on all nodes";
    let told = outcomes.iter().filter(|it| it.stderr.contains(notice)).count();
    assert_eq!(told, 1, "the one that serves: {outcomes:#?}");
}

#[test]
fn a_master_address_overrides_rendezvous_options() {
    let mut job = cluster();
    let line = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=192.0.2.1:1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let _world = job.await_world(2, 0);
    let outcomes = job.ends_well(nodes);
    assert!(outcomes[0].stderr.contains("DLROVER_MASTER_ADDR"), "a notice: {outcomes:#?}");
}

/// An address that no launcher takes for its own, at which a master of this host is found.
fn unanswered(port: &str) -> String {
    format!("0.0.0.0:{port}")
}

#[test]
fn nodes_may_start_before_their_master() {
    let mut job = lines();
    let port = free_port().to_string();
    let nodes = [0, 1].map(|rank| {
        let node = job.ranked(rank).env("DLROVER_MASTER_ADDR", unanswered(&port));
        node.flags(["--nnodes=2"]).start()
    });
    for node in &nodes {
        let _tries = job.await_output(node, "cannot connect to the job master");
    }
    let master = job.master_line().flags(["--port", &port]);
    job.start_master(master);
    let _world = job.await_world(2, 0);
    job.ends_well(nodes);
}
