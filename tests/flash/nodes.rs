//! Two nodes with one shard of the state each, and a job master of its own.

use nix::sys::signal::Signal;
use support::{
    cluster::{Cluster, kill_node},
    launch::{Launch, Running},
    programs,
};

use crate::{Folder, flash, from, kill_pid, loaded};

const LINE: [&str; 2] = ["--nnodes=2", "--max-restarts=3"];

/// The node of this rank.
fn node(job: &Cluster, folder: &Folder, rank: u8, steps: &[&str]) -> Launch {
    flash(job.ranked(rank), folder.path(), steps).env("FLASH_SHARDS", "2").flags(LINE)
}

fn loaded_by(job: &Cluster, rank: u32, round: u32) -> (String, Option<u64>) {
    loaded(&job.await_file(&format!("{rank}.{round}.loaded")))
}

#[test]
fn ranks_that_are_not_equally_far_restore_the_newest_step_of_both() {
    let folder = Folder::new();
    let mut job = Cluster::with_master(programs!(), &[]);
    let steps = [
        "load",
        "@0 disk 10",
        "@0 wait",
        "@0 memory 30",
        "0@0 memory 40",
        "@0 say saved",
        "@0 hang",
        "disk 50",
        "exit 0",
    ];
    let nodes = [0, 1].map(|rank| node(&job, &folder, rank, &steps).start());
    let pids = [0, 1].map(|rank| job.await_file(&format!("{rank}.0.saved")));
    assert_eq!(folder.step(), Some(10));
    kill_pid(&pids[1]);
    assert_eq!([0, 1].map(|rank| loaded_by(&job, rank, 1)), [from("memory", 30), from("memory", 30)]);
    let _outcomes = job.finish(nodes, 0);
    let _master = job.finish_master().expect_code(0);
    assert_eq!(folder.step(), Some(50), "all shards of the last step are on disk, and so is its manifest");
    folder.assert_swept();
}

/// Node 1 is lost when both have saved, and replaced: both ranks then restore this.
#[track_caller]
fn both_restore_after_a_replacement(
    saving: &[&str],
    (variable, value): (&str, &str),
    expected: (String, Option<u64>),
) {
    let folder = Folder::new();
    let mut job = Cluster::with_master(programs!(), &[]);
    let saving = ["load", "@0 disk 10", "@0 wait", "@0 memory 20"].iter().chain(saving);
    let steps: Vec<&str> = saving.chain(&["@0 say saved", "@0 hang", "disk 30", "exit 0"]).copied().collect();
    let start = |rank| node(&job, &folder, rank, &steps).env(variable, value).start();
    let [first, second] = [0, 1].map(start);
    for rank in [0, 1] {
        let _saved = job.await_file(&format!("{rank}.0.saved"));
    }
    kill_node(second);
    let replacement = start(1);
    assert_eq!([0, 1].map(|rank| loaded_by(&job, rank, 1)), [expected.clone(), expected]);
    let _outcomes = job.finish([first, replacement], 0);
    let _master = job.finish_master().expect_code(0);
    assert_eq!(folder.step(), Some(30));
}

#[test]
fn when_a_node_is_replaced_all_ranks_restore_from_disk() {
    both_restore_after_a_replacement(&[], ("FLASH_SHARDS", "2"), from("disk", 10));
}

/// The state is the same on both nodes: the new one has it from the other.
#[test]
fn a_replaced_node_fetches_what_every_node_has_from_another_one() {
    both_restore_after_a_replacement(&[], ("FLASH_SHARDS", "1"), from("memory", 20));
}

/// Each node has a part of the state, and a replica of the other's.
#[test]
fn a_replaced_node_fetches_its_own_part_from_the_node_with_the_replica() {
    both_restore_after_a_replacement(&["@0 replica 20"], ("FLASH_REPLICAS", "1"), from("memory", 20));
}

/// The state is the same on both nodes: what is left of the job has it in memory.
#[test]
fn a_node_that_is_left_alone_goes_on_from_memory() {
    let folder = Folder::new();
    let mut job = Cluster::with_master(programs!(), &["--reconnect-grace=0.5"]);
    let steps =
        ["load", "@0 disk 10", "@0 wait", "@0 memory 20", "@0 say saved", "@0 hang", "disk 30", "exit 0"];
    let start = |rank| flash(job.ranked(rank), folder.path(), &steps).flags(["--nnodes=1:2"]).start();
    let [first, second] = [0, 1].map(start);
    for rank in [0, 1] {
        let _saved = job.await_file(&format!("{rank}.0.saved"));
    }
    kill_node(second);
    assert_eq!(loaded_by(&job, 0, 1), from("memory", 20));
    let _outcomes = job.finish([first], 0);
    let _master = job.finish_master().expect_code(0);
    assert_eq!(folder.step(), Some(30));
}

/// All shards are on disk and the master knows it, but it dies before it has told a node to write the manifest.
#[test]
fn a_master_that_dies_before_the_manifest_is_written_has_it_written_later() {
    let folder = Folder::new();
    let state = tempfile::tempdir().expect("a temporary directory");
    let flags = ["--reconnect-grace=30", &format!("--state-dir={}", state.path().display())];
    let mut job = Cluster::with_crashing_master(programs!(), &flags, "before-commit");
    let steps = ["load", "disk 10", "wait", "exit 0"];
    let nodes = [0, 1].map(|rank| node(&job, &folder, rank, &steps).start());
    for rank in [0, 1] {
        assert_eq!(job.await_file(&format!("{rank}.0.waited")), "true");
    }
    assert_eq!(folder.step(), Some(10));
    assert_eq!(job.deaths(), 1);
    let _outcomes = job.finish(nodes, 0);
    let _master = job.finish_master().expect_code(0);
}

/// The same without a state: the nodes report again.
#[test]
fn a_master_without_state_hears_of_the_shards_again() {
    let folder = Folder::new();
    let flags = ["--reconnect-grace=30"];
    let mut job = Cluster::with_crashing_master(programs!(), &flags, "before-commit");
    let steps = ["load", "disk 10", "wait", "exit 0"];
    let nodes = [0, 1].map(|rank| node(&job, &folder, rank, &steps).start());
    for rank in [0, 1] {
        assert_eq!(job.await_file(&format!("{rank}.0.waited")), "true");
    }
    assert_eq!(folder.step(), Some(10));
    let _outcomes = job.finish(nodes, 0);
    let _master = job.finish_master().expect_code(0);
}

/// Two nodes of one job have saved step 20 in memory only.
fn saved_by_both(folder: &Folder, job: &Cluster, launch: impl Fn(u8, &[&str]) -> Launch) -> [Running; 2] {
    let steps = ["load", "disk 10", "wait", "memory 20", "say saved", "hang"];
    let start = |rank| launch(rank, &steps).env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20").start();
    let nodes = [0, 1].map(start);
    for rank in [0, 1] {
        let _saved = job.await_file(&format!("{rank}.0.saved"));
    }
    assert_eq!(folder.step(), Some(10));
    nodes
}

/// These launchers receive SIGTERM, each after the one before has ended where it `ends_alone`. The first one serves the job
/// master, unless `has_master`.
#[track_caller]
fn the_step_in_memory_is_on_disk_after_sigterm(signalled: &[usize], ends_alone: bool, has_master: bool) {
    let folder = Folder::new();
    let job =
        if has_master { Cluster::with_master(programs!(), &[]) } else { Cluster::of_lines(programs!()) };
    let port = format!("--master-port={}", support::free_port());
    let mut nodes = saved_by_both(&folder, &job, |rank, steps| {
        if has_master {
            return node(&job, &folder, rank, steps);
        }
        let line = ["--master-addr=127.0.0.1", &port, &format!("--node-rank={rank}")].map(str::to_owned);
        let launch = flash(job.node(rank + 1), folder.path(), steps).env("FLASH_SHARDS", "2");
        launch.flags(LINE).flags(line)
    });
    for rank in signalled {
        nodes[*rank].signal(Signal::SIGTERM);
        if ends_alone {
            nodes[*rank].wait();
        }
    }
    let outcomes = job.finish(nodes, 1);
    assert_eq!(folder.step(), Some(20), "{outcomes:#?}");
    if has_master {
        job.signal_master(Signal::SIGTERM);
    }
    job.touch("go");
}

#[test]
fn after_sigterm_to_all_nodes_the_common_step_in_memory_is_on_disk() {
    for signalled in [[0, 1], [1, 0]] {
        the_step_in_memory_is_on_disk_after_sigterm(&signalled, false, false);
    }
}

/// The other node hears of it by the end of the job, and may do so before a signal of its own.
#[test]
fn after_sigterm_to_the_node_with_the_job_master_the_common_step_in_memory_is_on_disk() {
    the_step_in_memory_is_on_disk_after_sigterm(&[0], false, false);
}

#[test]
fn after_sigterm_to_one_node_after_the_other_the_common_step_in_memory_is_on_disk() {
    for signalled in [[0, 1], [1, 0]] {
        the_step_in_memory_is_on_disk_after_sigterm(&signalled, true, true);
    }
}
