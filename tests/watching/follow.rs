//! `dlrover-diag status --watch` into a pipe: a line for each change.

use std::{
    fs::{self, File},
    process::{Child, Stdio},
};

use support::{
    cluster::{Cluster, kill_node},
    programs,
};

use crate::diag_command;

/// Ended when it goes out of scope.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn a_spare_that_comes_and_goes_is_a_line_of_a_follower_in_a_pipe() {
    let mut job = Cluster::with_master(programs!(), &["--reconnect-grace=0.5"]);
    let first = job.ranked(0).flags(["--nnodes=1"]).start();
    let _world = job.await_world(1, 0);
    let followed = job.dir().join("followed");
    let mut follower = Follower(
        diag_command(&["status", job.address(), "--watch"])
            .stdout(File::create(&followed).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let text = || fs::read_to_string(&followed).unwrap();
    let until = |words: &str| job.wait(words, || text().contains(words).then_some(()));
    until(": running, round 0 on 1 node, 1 worker\n");
    let spare = job.node(9).flags(["--nnodes=1"]).start();
    until("127.0.0.9) joined\n");
    kill_node(spare);
    until("127.0.0.9) was lost: ");
    job.ends_well([first]);
    assert_eq!(follower.0.wait().unwrap().code(), Some(0));
    let text = text();
    assert_eq!(text.matches(" joined\n").count(), 1, "only what is new since it began: {text}");
    assert_eq!(text.matches(" was lost: ").count(), 1, "{text}");
    assert!(text.ends_with(": succeeded\n"), "{text}");
}
