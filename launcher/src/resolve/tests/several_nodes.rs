//! Jobs of several nodes: where they meet, which launcher serves, and the identity of this node.

use std::time::Duration;

use super::*;

const MASTER: (&str, &str) = ("DLROVER_MASTER_ADDR", "10.0.0.1:50001");

fn rank(plan: &LaunchPlan) -> Option<u32> {
    plan.agent.node_rank.map(|rank| rank.0)
}

#[test]
fn a_c10d_line_meets_at_its_endpoint_and_its_host_serves() {
    let plan =
        plan("--nnodes=2:4 --node-unit=2 --rdzv-backend=c10d --rdzv-endpoint=node-0:1234 --rdzv-id=j x");
    assert_eq!(plan.rendezvous, Rendezvous::C10d(at("node-0", 1234)));
    assert_eq!((plan.master.serve_master, rank(&plan)), (ServeMaster::IfLocal, None));
    let terms = &plan.agent.terms;
    assert_eq!((terms.run_id.0.as_str(), terms.min_nodes, terms.max_nodes, terms.node_unit), ("j", 2, 4, 2));
    assert_eq!((terms.last_call, terms.join_timeout), (Duration::from_secs(3), Duration::from_secs(600)));
    assert!(plan.notices.is_empty(), "{:?}", plan.notices);
}

#[test]
fn a_c10d_line_says_who_serves_and_needs_no_port_and_no_id() {
    let line = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node-0 x";
    assert_eq!(plan(line).rendezvous, Rendezvous::C10d(at("node-0", 29400)));
    assert_eq!(plan(line).agent.run_id.0, "none");
    assert_eq!(
        plan(&format!("--rdzv-id= {line}")).agent.run_id.0,
        "none",
        "a fresh one would keep nodes apart"
    );
    assert_eq!(plan(&format!("--rdzv-conf=is_host=true {line}")).master.serve_master, ServeMaster::Always);
    assert_eq!(plan(&format!("--rdzv-conf=is_host=0 {line}")).master.serve_master, ServeMaster::Never);
    let on_this_host = plan("--nnodes=2 --rdzv-backend=c10d x");
    assert_eq!(on_this_host.rendezvous, Rendezvous::C10d(at("localhost", 29400)));
    let elsewhere = plan("--rdzv-backend=c10d --rdzv-endpoint=elsewhere:1 x");
    assert_eq!(elsewhere.rendezvous, Rendezvous::C10d(at("elsewhere", 1)));
    let not_here = plan("--rdzv-backend=c10d --rdzv-endpoint=localhost:1 --rdzv-conf=is_host=false x");
    assert_eq!(not_here.rendezvous, Rendezvous::C10d(at("localhost", 1)));
    let error = refusal(&[], "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node-0:0 x");
    assert!(error.contains("--rdzv-endpoint=node-0:0"), "{error}");
}

#[test]
fn on_a_static_line_rank_zero_serves() {
    let line = "--nnodes=2 --master-addr=service --master-port=1234 x";
    for (rank_said, serve_master) in [
        ("", ServeMaster::IfLocal),
        ("--node-rank=0 ", ServeMaster::UnlessServed),
        ("--node-rank=1 ", ServeMaster::Never),
    ] {
        let plan = plan(&format!("{rank_said}{line}"));
        assert_eq!(
            (plan.rendezvous, plan.master.serve_master),
            (Rendezvous::Static(at("service", 1234)), serve_master)
        );
        assert_eq!(plan.agent.master_port, MasterPort::Served);
        assert_eq!(plan.agent.run_id.0, "none");
    }
    assert_eq!(plan("--nnodes=2 x").rendezvous, Rendezvous::Static(at("127.0.0.1", 29500)));
    assert!(
        refusal(&[], &format!("--node-rank=2 {line}"))
            .contains("is not a node rank of a job of 2 nodes: expected 0 to 1")
    );
    assert!(refusal(&[], &format!("--node-rank=-1 {line}")).contains("--node-rank=-1"));
}

#[test]
fn unset_is_no_wish_and_only_a_masters_line_reads_node_rank() {
    let torchrun = "--nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=h:1 x";
    let env = [("NODE_RANK", "2"), ("WORKER_RANK", "3")];
    assert_eq!(rank(&plan_in(&env, torchrun)), None);
    assert_eq!(rank(&plan_in(&env, &format!("--node-rank=0 {torchrun}"))), Some(0));
    assert_eq!(rank(&plan_in(&[("PET_NODE_RANK", "1")], torchrun)), Some(1));
    assert_eq!(rank(&plan_in(&[MASTER], "--nnodes=4 x")), None);
    assert_eq!(rank(&plan_in(&[MASTER, env[0], env[1]], "--nnodes=4 x")), Some(2));
    assert_eq!(rank(&plan_in(&[MASTER, env[1]], "--nnodes=4 x")), Some(3));
    assert_eq!(rank(&plan_in(&[MASTER, env[0]], "--node-rank=1 --nnodes=4 x")), Some(1));
    let error = refusal(&[MASTER, ("NODE_RANK", "first")], "--nnodes=4 x");
    assert_eq!(error, "`NODE_RANK=first` is not a rank: give a non-negative whole number, or leave it out");
}

#[test]
fn a_masters_address_beats_the_options_of_the_rendezvous() {
    let env = [("DLROVER_MASTER_ADDR", "http://master:50001/"), ("ELASTIC_JOB_NAME", "llm")];
    let line = "--nnodes=2 --rdzv-backend=etcd --rdzv-endpoint=h:1 --rdzv-id=j --master-port=5 x";
    let plan = plan_in(&env, line);
    assert_eq!(
        (plan.rendezvous, plan.master.serve_master),
        (Rendezvous::Master(at("master", 50001)), ServeMaster::IfLocal)
    );
    assert_eq!(plan.agent.run_id.0, "llm");
    assert_eq!(
        plan.notices,
        [
            "`--rdzv-id=j` is ignored: `ELASTIC_JOB_NAME=llm` is the run id",
            "`--rdzv-backend=etcd`, `--rdzv-endpoint=h:1`, `--master-port=5` are ignored: \
             `DLROVER_MASTER_ADDR=http://master:50001/` is the address of the job master"
        ]
    );
    assert_eq!(plan_in(&[MASTER], "--rdzv-id=j x").agent.run_id.0, "j");
    assert_eq!(plan_in(&[MASTER], "x").agent.run_id.0, "none");
    assert_eq!(plan_in(&[("DLROVER_MASTER_ADDR", "")], "x").rendezvous, Rendezvous::Loopback);
    for bad in ["master", "master:0", "::1:5", "a b:1"] {
        let error = refusal(&[("DLROVER_MASTER_ADDR", bad)], "x");
        assert!(error.starts_with(&format!("`DLROVER_MASTER_ADDR={bad}` is not an address")), "{error}");
    }
}

#[test]
fn etcd_is_refused_with_what_to_do_instead() {
    let error = refusal(&[], "--nnodes=2 --rdzv-backend=etcd-v2 --rdzv-endpoint=h:2379 x");
    assert!(error.contains("--rdzv-backend=c10d") && error.contains("DLROVER_MASTER_ADDR"), "{error}");
}

#[test]
fn the_waits_are_told_to_every_node() {
    let line = "--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=h:1";
    let waits = |env: &[(&str, &str)], conf: &str| {
        let terms = plan_in(env, &format!("{line} --rdzv-conf={conf} x")).agent.terms;
        (terms.join_timeout.as_secs(), terms.last_call.as_millis())
    };
    assert_eq!(waits(&[], "join_timeout=60,last_call_timeout=30"), (60, 30_000));
    assert_eq!(waits(&[], "lastcall_timeout=0.5"), (600, 500));
    assert_eq!(waits(&[], "lastcall_timeout=9,last_call_timeout=0"), (600, 0));
    assert_eq!(waits(&[("GANG_SCHEDULE_TIMEOUT", "100")], "a=b"), (100, 3000));
    assert_eq!(waits(&[("GANG_SCHEDULE_TIMEOUT", "100")], "join_timeout=7"), (7, 3000));
    assert!(
        refusal(&[("GANG_SCHEDULE_TIMEOUT", "soon"), MASTER], "x").contains("GANG_SCHEDULE_TIMEOUT=soon")
    );
    assert_eq!(plan_in(&[("GANG_SCHEDULE_TIMEOUT", "soon")], "x").rendezvous, Rendezvous::Loopback);
    for bad in ["last_call_timeout=-1", "lastcall_timeout=soon", "join_timeout=0"] {
        for line in [line, "--nnodes=2 --master-addr=h"] {
            assert!(
                refusal(&[], &format!("{line} --rdzv-conf={bad} x")).contains("rendezvous configuration")
            );
        }
    }
}

#[test]
fn a_gang_says_how_many_nodes_when_the_line_does_not() {
    let nodes = |env: &[(&str, &str)], line: &str| {
        let plan = plan_in(env, line);
        (plan.agent.terms.min_nodes, plan.agent.terms.max_nodes, plan.notices)
    };
    let gang = ("GANG_MIN_AVAILABLE", "4");
    let (min, max, notices) = nodes(&[MASTER, gang], "x");
    assert_eq!((min, max), (4, 4));
    assert_eq!(notices, ["`GANG_MIN_AVAILABLE=4`: --nnodes is not given and becomes 4"]);
    assert_eq!(nodes(&[MASTER, gang, ("NODE_NUM", "6")], "x").1, 6);
    assert_eq!(nodes(&[MASTER, gang], "--nnodes=2 x"), (2, 2, Vec::new()));
    assert_eq!(nodes(&[gang], "x"), (1, 1, Vec::new()), "a line of this node alone");
    assert_eq!(nodes(&[MASTER, gang], "--standalone x").1, 1);
    assert!(refusal(&[MASTER, ("GANG_MIN_AVAILABLE", "0")], "x").contains("GANG_MIN_AVAILABLE=0"));
    let (_, max, notices) = nodes(&[MASTER, ("NODE_NUM", "4")], "x");
    assert_eq!(max, 1);
    assert!(notices[0].contains("give --nnodes=4"), "{notices:?}");
}

#[test]
fn the_address_is_the_local_one_then_the_pods_then_the_hosts() {
    let both = |env: &[(&str, &str)], line: &str| {
        let mut env = env.to_vec();
        env.push(MASTER);
        let agent = plan_in(&env, &format!("--nnodes=2 {line} x")).agent;
        (agent.address.unwrap_or_default(), agent.node_ip.unwrap_or_default())
    };
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    let env = [("POD_IP", "10.1.0.7"), ("NODE_IP", "192.168.0.7"), ("HOST_IP", "192.168.0.8")];
    assert_eq!(both(&[], ""), pair("", ""));
    assert_eq!(both(&env, ""), pair("10.1.0.7", "192.168.0.7"));
    assert_eq!(both(&env, "--local-addr=node-7"), pair("node-7", "192.168.0.7"));
    assert_eq!(both(&env[1..], ""), pair("192.168.0.7", "192.168.0.7"));
    assert_eq!(both(&env[2..], "--node-ip=[fd00::7]"), pair("fd00::7", "fd00::7"));
    assert_eq!(both(&env[..1], ""), pair("10.1.0.7", "10.1.0.7"));
    let error = refusal(&[MASTER, ("POD_IP", "10.1.0.7 ;rm")], "x");
    assert!(error.starts_with("`POD_IP=10.1.0.7 ;rm` is not an address"), "{error}");
}

#[test]
fn what_is_told_of_the_machine() {
    let env =
        [PATH, MASTER, ("POD_NAME", "w-3"), ("MY_NODE_NAME", "gpu-07"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    // A node that is alone tells the same: its accelerators are watched too.
    for (line, env) in [("--nnodes=2 x", &env[..]), ("x", &env[2..]), ("--standalone x", &env[2..])] {
        let attributes = plan_on(&four_gpus(), line, env).unwrap().agent.attributes;
        assert_eq!(attributes.pod_name.as_deref(), Some("w-3"), "{line}");
        assert_eq!(attributes.k8s_node_name.as_deref(), Some("gpu-07"), "{line}");
        let accelerators = attributes.accelerators.unwrap();
        assert_eq!((accelerators.kind.as_str(), accelerators.count), ("nvidia", 2), "{line}");
    }
    assert_eq!(plan_in(&[], "x").agent.attributes, rules::node::NodeAttributes::default());
}

#[test]
fn the_store_is_left_to_rank_zero_on_a_c10d_line_too() {
    let env = [("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")];
    let plan = plan_in(&env, "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h:1 x");
    assert_eq!(plan.agent.master_port, MasterPort::LeftToRankZero);
}
