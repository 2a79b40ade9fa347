//! A network check over real sockets: orders, results, the verdict for the nodes, and the report on request.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{Master, Node, request, terms};
use diagnosis::network_check::{Deadlines, LocalCheck, OnBadPath, Probed, Tainting};
use master_proto::{convert::check_report, pb};
use rules::{
    NodeRank,
    check_order::{CheckOrder, CheckReport, Checked},
    check_terms::{CheckTerms, OnInconclusive},
    node::{JoinRequest, Terms},
    push::Push,
};

fn checked_terms() -> Terms {
    let check = CheckTerms {
        exclude_straggler: false,
        straggler_permille: 2000,
        max_rounds: 8,
        deadlines: Deadlines::native(),
        has_command: false,
        measures_bandwidth: false,
        reuse_for: Duration::ZERO,
        on_inconclusive: OnInconclusive::Fail,
        taint_flaky: Tainting::Confirmed,
        on_bad_path: OnBadPath::Exclude,
    };
    Terms { check: Some(check), ..terms(3, 4) }
}

async fn join(node: &mut Node, rank: u32) {
    let local = LocalCheck { compute: Some(Duration::from_millis(20).into()), ..LocalCheck::default() };
    let request = JoinRequest {
        wish: Some(NodeRank(rank)),
        checked: Some(Checked { local, port: 4000 }),
        ..request(&node.id, checked_terms())
    };
    node.join_as(request).await.unwrap();
}

/// What a node says of a test with these; `d` is broken.
fn report(node: &str, order: &CheckOrder) -> pb::CheckReport {
    let fails = node == "d" || order.partners.iter().any(|it| it.name.node_id == common::node_id("d"));
    let probed = match fails {
        true => Probed::Failed { reason: "connection refused".into() },
        false => Probed::Passed {
            comm: Duration::from_millis(9),
            latency: Duration::from_micros(40),
            bytes_per_second: 1 << 30,
        },
    };
    check_report(
        common::node_id(node).0,
        CheckReport { at: order.at, probed, compute: Some(Vec::new()) },
        false,
    )
}

/// Does what it is told until it has an assignment or must go; which of the two.
async fn live(mut node: Node) -> (Node, bool) {
    loop {
        match node.next().await {
            Push::Check(order) => {
                let report = report(&node.id, &order);
                let report = node.signed(report);
                node.client.report_check(report).await.unwrap();
            }
            Push::CheckOver { message } => {
                assert!(message.contains("excluded: node number 3 (host-d, 127.0.0.1) (fault)"), "{message}");
            }
            Push::Host { round, .. } => node.host(round).await.unwrap(),
            Push::Assigned(assignment) => {
                assert_eq!(assignment.nodes, 3);
                return (node, true);
            }
            Push::Excluded(exclusion) => {
                assert_eq!(exclusion.verdict, "fault");
                assert!(exclusion.evidence.contains("connection refused"), "{exclusion}");
                return (node, false);
            }
            Push::CancelCheck(_) | Push::Pending(_) => {}
            other => panic!("{} was told {other:?}", node.id),
        }
    }
}

#[tokio::test]
async fn the_broken_node_is_excluded_the_others_train_and_the_report_is_published() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taints.json");
    let told = file.clone();
    let master = Master::start(move |config| config.taints.file = Some(told));
    let mut nodes = Vec::new();
    for (rank, id) in (0..).zip(["a", "b", "c", "d"]) {
        let mut node = master.subscribe(id).await;
        assert_eq!(
            node.client.show_taint_report(pb::ShowTaintReportRequest {}).await.unwrap().into_inner().json,
            ""
        );
        join(&mut node, rank).await;
        nodes.push(node);
    }
    // Each on its own task: the master decides which node is tested when.
    let lives: Vec<_> = nodes.into_iter().map(|node| tokio::spawn(live(node))).collect();
    let mut nodes = Vec::new();
    for (number, life) in lives.into_iter().enumerate() {
        let (node, is_assigned) = life.await.unwrap();
        assert_eq!(is_assigned, number < 3, "{}", node.id);
        nodes.push(node);
    }
    let shown =
        nodes[0].client.show_taint_report(pb::ShowTaintReportRequest {}).await.unwrap().into_inner().json;
    let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(document["schema"], "dlrover.taint-report/v1");
    assert_eq!(document["nodes"][3]["verdict"], "fault");
    assert_eq!(document["nodes"][3]["taint"]["key"], "dlrover.io/node-check");
    assert_eq!(document["nodes"][0]["taint"], serde_json::Value::Null);
    nodes.truncate(3);
    for node in &mut nodes {
        node.succeed(0).await;
    }
    for node in nodes {
        node.leave().await;
    }
    master.ended().await.unwrap();
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written.trim_end(), shown, "the master does not end before the file is written");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no half-written file is left");
}
