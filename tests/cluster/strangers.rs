//! What somebody on the network who has no part in a job, and no token, can do to it: nothing that ends it, fakes its
//! end or holds it up. Each case is an attack that was once run with success.

use master_proto::pb::{self, end_report::End};
use support::{
    cluster::{Cluster, alive},
    free_port, programs,
    stranger::Stranger,
};
use tonic::Code;

use crate::{cluster, lines};

#[test]
fn a_stranger_does_not_make_a_job_succeed() {
    let mut job = cluster();
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    let mut stranger = Stranger::at(job.address());
    let shown = stranger.world();
    assert_eq!(shown.members.len(), 2);
    for member in &shown.members {
        let end = End::Succeeded(pb::NodeSucceeded { round: 0 });
        let refused = stranger.say_end(&member.node_id, end).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let _said = job.await_master_said("127.0.0.1: refused its end report: ");
    assert!(world.iter().all(|worker| alive(worker.pid)), "nobody was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn a_stranger_reports_no_failure_of_a_node() {
    let mut job = cluster();
    let line = ["--nnodes=2", "--max-restarts=1"];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).start());
    let world = job.await_world(2, 0);
    let mut stranger = Stranger::at(job.address());
    for member in stranger.world().members {
        for gives_up in [false, true] {
            let refused =
                stranger.say_failure(&member.node_id, 0, gives_up).expect_err("it is not that node");
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        }
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "nobody was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn a_stranger_does_not_make_the_node_leave_that_serves_the_master() {
    let mut job = lines();
    let address = format!("127.0.0.1:{}", free_port());
    let endpoint = format!("--rdzv-endpoint={address}");
    let line = ["--nnodes=2", "--rdzv-backend=c10d", &endpoint];
    let nodes = [1, 2].map(|place| job.node(place).flags(line).start());
    let world = job.await_world(2, 0);
    let mut stranger = Stranger::at(&address);
    for member in stranger.world().members {
        let left = End::Left(pb::NodeLeft { signal: 15 });
        let refused = stranger.say_end(&member.node_id, left).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    assert!(world.iter().all(|worker| alive(worker.pid)), "nobody was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}

#[test]
fn who_has_the_token_still_does_not_speak_for_another_node() {
    let mut job = Cluster::of_lines(programs!());
    let token = "s3cret";
    let master = job.master_line().flags(["--port=0", "--reconnect-grace=0.5"]);
    job.start_master(master.env("DLROVER_JOB_TOKEN", token));
    let nodes =
        [0, 1].map(|rank| job.ranked(rank).env("DLROVER_JOB_TOKEN", token).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    let mut stranger = Stranger::with_token(job.address(), Some(token));
    for member in stranger.world().members {
        let refused = stranger.attend(&member.node_id).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        let join = pb::JoinRequest { node_id: member.node_id, ..stranger.join_request("none", 2, 2) };
        let refused = stranger.join(join).expect_err("it is not that node");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    // No stream was taken over: none of the nodes had to come back.
    assert!(nodes.iter().all(|node| !node.stderr().contains("the workers go on")));
    assert!(world.iter().all(|worker| alive(worker.pid)), "nobody was disturbed");
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
}
