//! Where a job of one node, or of a static line, meets.

use std::time::Duration;

use super::*;

#[test]
fn a_line_that_says_nothing_is_one_worker_on_the_loopback_with_a_fresh_id() {
    let plan = plan("--rdzv-id=mine x.py");
    assert_eq!(plan.rendezvous, Rendezvous::Loopback);
    assert_eq!(plan.agent.run_id.0, "fresh-id");
    assert_eq!(
        (plan.agent.terms.min_nodes, plan.agent.terms.max_nodes, plan.agent.local_world_size),
        (1, 1, 1)
    );
    assert_eq!(argv(&plan), ["/usr/bin/python3", "-u", "x.py"]);
    assert_eq!(plan.agent.master_port, MasterPort::Served);
    assert_eq!((plan.agent.max_restarts, plan.agent.shutdown_timeout), (0, Duration::from_secs(30)));
    assert_eq!(plan.agent.role, "default");
    assert_eq!(plan.agent.node_rank, None);
    let ignored =
        "`--rdzv-id=mine` is ignored: a run of this node alone gets an id of its own, as with torchrun";
    assert_eq!(plan.notices, [ignored]);
    assert!(!plan.propagate_exit_code);
}

#[test]
fn a_misspelt_rendezvous_setting_is_named() {
    let plan = plan("--rdzv-conf=join_timout=4,my_key=1 x.py");
    assert_eq!(
        plan.notices,
        ["--rdzv-conf: unknown key 'join_timout' is ignored (did you mean join_timeout?)"]
    );
}

#[test]
fn a_port_makes_it_a_static_meeting_at_exactly_that_port() {
    let plan = plan("--master-port=1234 --rdzv-id=j1 x.py");
    assert_eq!(plan.rendezvous, Rendezvous::Static(at("127.0.0.1", 1234)));
    assert_eq!((plan.agent.run_id.0.as_str(), plan.agent.node_rank), ("j1", None));
    let plan = plan_in(&[("PET_MASTER_PORT", "77"), ("PET_MASTER_ADDR", "[::1]")], "x.py");
    assert_eq!(plan.rendezvous, Rendezvous::Static(at("::1", 77)));
    assert_eq!(plan.agent.run_id.0, "none");
}

#[test]
fn an_endpoint_makes_it_a_static_meeting_there() {
    let plan = plan("--rdzv-endpoint=node-0:99 x.py");
    assert_eq!(plan.rendezvous, Rendezvous::Static(at("node-0", 99)));
}

#[test]
fn c10d_on_this_node_alone_is_a_loopback_that_keeps_its_id() {
    for endpoint in [
        "",
        "--rdzv-endpoint=localhost:0",
        "--rdzv-endpoint=127.0.0.1:29400",
        "--rdzv-endpoint=[::1]:1",
        "--rdzv-endpoint=localhost",
        "--rdzv-endpoint=node-7:29500",
    ] {
        let plan = plan(&format!("--nnodes=1 --rdzv-backend=c10d --rdzv-id=j1 {endpoint} x.py"));
        assert_eq!(
            (plan.rendezvous, plan.agent.run_id.0.as_str()),
            (Rendezvous::Loopback, "j1"),
            "{endpoint}"
        );
    }
}

#[test]
fn port_zero_is_any_free_port_of_one_node() {
    for line in ["--master-port=0 --rdzv-id=j1 x.py", "--rdzv-endpoint=localhost:0 --rdzv-id=j1 x.py"] {
        let plan = plan(line);
        assert_eq!((plan.rendezvous, plan.agent.run_id.0.as_str()), (Rendezvous::Loopback, "j1"), "{line}");
    }
    let elsewhere = plan_on(&FakeHost::new(), "--master-addr=10.0.0.1 --master-port=0 x.py", &[PATH]);
    assert!(elsewhere.is_err_and(|error| error.contains("--master-port=0")));
}

#[test]
fn an_endpoint_that_is_not_opened_is_said() {
    let line = "--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29471 x.py";
    let notices = plan(line).notices;
    assert_eq!(notices.len(), 1, "{notices:?}");
    let ignored = "`--rdzv-endpoint=127.0.0.1:29471` is ignored: this node is alone";
    assert!(notices[0].starts_with(ignored), "{notices:?}");
    for asks_for_none in ["localhost:0", "localhost"] {
        let line = format!("--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint={asks_for_none} x.py");
        assert_eq!(plan(&line).notices, [""; 0], "{asks_for_none}");
    }
}

#[test]
fn standalone_ignores_every_other_word_about_the_rendezvous() {
    let plan =
        plan("--standalone --rdzv-backend=bogus --rdzv-endpoint=: --rdzv-id=j1 --master-port=99999 x.py");
    assert_eq!((plan.rendezvous, plan.agent.run_id.0.as_str()), (Rendezvous::Loopback, "fresh-id"));
}

#[test]
fn standalone_says_what_it_ignores() {
    let plan = plan_in(&[("DLROVER_MASTER_ADDR", "master:50001"), ("NODE_RANK", "3")], "--standalone x.py");
    assert_eq!(
        plan.notices,
        [
            "--standalone runs on this node alone: `DLROVER_MASTER_ADDR=master:50001` is ignored",
            "--standalone runs on this node alone: `NODE_RANK=3` is ignored",
        ]
    );
}

#[test]
fn standalone_of_an_elastic_job_is_one_node() {
    let plan = plan("--standalone --nnodes=1:4 x.py");
    assert_eq!((plan.agent.terms.min_nodes, plan.agent.terms.max_nodes), (1, 1));
    assert_eq!(plan.notices.len(), 1);
}

#[test]
fn the_store_is_left_to_rank_zero_when_asked_but_not_on_a_static_line() {
    let env = [("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")];
    assert_eq!(plan_in(&env, "x").agent.master_port, MasterPort::LeftToRankZero);
    assert_eq!(plan_in(&env, "--master-port=9 x").agent.master_port, MasterPort::Served);
    assert_eq!(
        plan_in(&[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "true")], "x").agent.master_port,
        MasterPort::Served
    );
}

#[test]
fn host_ports_are_ports_and_ranges() {
    assert_eq!(
        plan_in(&[("HOST_PORTS", "20000, 20010-20012")], "x").agent.port_choices,
        [20000..=20000, 20010..=20012]
    );
    assert!(plan_in(&[("HOST_PORTS", "")], "x").agent.port_choices.is_empty());
}

#[test]
fn a_rendezvous_setting_is_held_to_what_it_means() {
    let fine = "--rdzv-conf=join_timeout=5,is_host=True,store_type=FILE,cas_backoff_max_seconds=0.5,mine=x x";
    assert_eq!(plan(fine).rendezvous, Rendezvous::Loopback);
    for bad in
        ["join_timeout=0", "read_timeout=a", "is_host=maybe", "store_type=disk", "cas_backoff_max_seconds=-1"]
    {
        let answer = plan_on(&FakeHost::new(), &format!("--rdzv-conf={bad} x"), &[PATH]);
        assert!(answer.is_err_and(|error| error.contains("is not a rendezvous configuration")), "{bad}");
    }
    assert!(plan_on(&FakeHost::new(), "--master-port=1 --rdzv-conf=timeout=soon x", &[PATH]).is_err());
}
