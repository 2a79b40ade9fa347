//! Events for tests.

use std::time::Duration;

use rules::{
    NodeId, Round, RunId,
    job::{Event, OnGiveUp, Policy},
    node::{JoinRequest, NodeAttributes, Terms},
};

pub(crate) fn policy() -> Policy {
    Policy {
        restart_count: 3,
        on_give_up: OnGiveUp::Replace,
        host: None,
        has_topology: false,
        host_timeout: Duration::from_secs(60),
        reconnect_grace: Duration::from_secs(2),
        terms: None,
        is_open: false,
        taint_guard_permille: 300,
        lease: Some(std::time::Duration::from_secs(15)),
    }
}

pub(crate) fn joined(node: &str) -> Event {
    Event::Joined(JoinRequest {
        node_id: NodeId(node.into()),
        wish: None,
        local_world_size: 2,
        role: "default".into(),
        address: "127.0.0.1".into(),
        node_ip: None,
        terms: Terms {
            run_id: RunId("job".into()),
            min_nodes: 4,
            max_nodes: 4,
            node_unit: 1,
            last_call: Duration::from_secs(1),
            join_timeout: Duration::from_secs(600),
            require_uniform: false,
            check: None,
            hang: None,
            save_at_breakpoint: false,
        },
        attributes: NodeAttributes::default(),
        after: None,
        checked: None,
        question_port: 0,
        shards: Vec::new(),
    })
}

pub(crate) fn failed(node: &str, length: usize) -> Event {
    let reason = "x".repeat(length);
    Event::WorkersFailed {
        node: NodeId(node.into()),
        round: Round(0),
        reason,
        gives_up: false,
        has_detail: false,
        age: std::time::Duration::ZERO,
    }
}
