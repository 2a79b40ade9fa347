//! Ranks by switch: nodes below one access switch get adjacent ranks.

use std::fs;

use support::{
    cluster::{Cluster, places},
    launch::Running,
    programs,
    seen::Dump,
};

/// The guide's ten nodes, `asw psw ip`.
fn guide() -> String {
    (0..10).map(|node| format!("asw-{} psw-0 192.168.0.{node}\n", node % 4)).collect()
}

/// A master that reads this, and its file.
fn cluster(dir: &tempfile::TempDir, text: &str) -> (Cluster, std::path::PathBuf) {
    let file = dir.path().join("topology");
    fs::write(&file, text).expect("a file in our own directory");
    let flag = format!("--topology-config={}", file.display());
    (Cluster::with_master(programs!(), &["--reconnect-grace=0.5", &flag]), file)
}

/// Node i at 192.168.0.i; its workers say `PLACE` i + 1.
fn nodes<const N: usize>(job: &Cluster, flags: &[&str], steps: &[&str]) -> [Running; N] {
    std::array::from_fn(|rank| {
        let node = job.ranked(u8::try_from(rank).expect("few")).flags(flags).steps(steps);
        node.flags([format!("--nnodes={N}"), format!("--node-ip=192.168.0.{rank}")]).start()
    })
}

/// The nodes by rank.
fn order(world: &[Dump]) -> Vec<u8> {
    places(world).into_iter().map(|place| place - 1).collect()
}

/// Ranks of the workers that must restore their state from disk.
fn from_disk(world: &[Dump]) -> Vec<usize> {
    (0..world.len()).filter(|&rank| world[rank].var("DLROVER_RESTORE") == "disk").collect()
}

#[test]
fn the_guides_ten_nodes_get_the_guides_ranks() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut job, _) = cluster(&dir, &guide());
    let nodes = nodes::<10>(&job, &[], &["dump", "await go"]);
    let world = job.await_world(10, 0);
    let expected = [0, 4, 8, 1, 5, 9, 2, 6, 3, 7];
    assert_eq!(order(&world), expected);
    let output = job.await_master_log("round 0: 10 nodes");
    let mut rest = &*output;
    for (rank, node) in expected.iter().enumerate() {
        let line = format!("node rank {rank}: 192.168.0.{node} ");
        let at = rest.find(&line).unwrap_or_else(|| panic!("{line} in order: {output}"));
        rest = &rest[at..];
    }
    job.ends_well(nodes);
}

#[test]
fn the_file_is_read_again_for_each_round() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let listed = |switches: [&str; 3]| -> String {
        let lines = switches.iter().enumerate();
        lines.map(|(node, switch)| format!("{switch} psw 192.168.0.{node}\n")).collect()
    };
    let (mut job, file) = cluster(&dir, &listed(["a", "b", "a"]));
    let steps = ["dump", "0@0 await fail 0", "0@0 exit 1", "0@1 await fail 1", "0@1 exit 1", "await go"];
    let nodes = nodes::<3>(&job, &["--max-restarts=2"], &steps);
    let first = job.await_world(3, 0);
    assert_eq!(order(&first), [0, 2, 1]);
    fs::write(&file, listed(["a", "b", "b"])).expect("our own file");
    job.touch("fail 0");
    let second = job.await_world(3, 1);
    assert_eq!(order(&second), [0, 1, 2]);
    assert_eq!(from_disk(&second), [1, 2], "those that have another rank than before");
    // An invalid file is not used; the last valid one stays.
    fs::write(&file, "a psw 192.168.0.0\na psw\n").expect("our own file");
    job.touch("fail 1");
    let third = job.await_world(3, 2);
    assert_eq!(order(&third), [0, 1, 2]);
    assert_eq!(from_disk(&third), [] as [usize; 0]);
    let output = job.await_master_log("; node ranks follow its last usable content");
    assert!(output.contains("line 2 has 2 columns instead of 3"), "{output}");
    job.ends_well(nodes);
}

#[test]
fn unlisted_nodes_are_ranked_last_and_logged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (mut job, _) = cluster(&dir, "a psw 192.168.0.1\na psw 192.168.0.2\n");
    let nodes = nodes::<3>(&job, &[], &["dump", "await go"]);
    let world = job.await_world(3, 0);
    assert_eq!(order(&world), [1, 2, 0]);
    let _said =
        job.await_master_log("addresses that the topology file does not list, ordered last: 192.168.0.0");
    job.ends_well(nodes);
}

#[test]
fn a_bad_line_is_refused_at_the_start_with_its_number() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("topology");
    fs::write(&file, "# asw psw ip\na psw 192.168.0.0\na psw host-b\n").expect("a file in our own directory");
    let flag = format!("--topology-config={}", file.display());
    let outcome = Cluster::of_lines(programs!()).master_line().flags(["--port=0", &flag]).finish();
    assert_eq!(outcome.signal, None);
    assert_ne!(outcome.code, Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("line 3: `host-b` is not an IP address"), "{outcome:#?}");
}
