//! The report of a hang as JSON.

use rules::hang::{HangReport, HangingNode};
use serde_json::{Value, json};

/// The version of the document.
const SCHEMA: &str = "dlrover.hang-report/v1";

/// The document: `hang.json` beside the stacks.
pub(super) fn document(report: &HangReport, key: &str, unix_millis: u64) -> String {
    let nodes: Vec<Value> = report.nodes.iter().map(|node| self::node(node, key)).collect();
    let HangReport { job, hang, round, idle, sentence, folder, nodes: _ } = report;
    json!({
        "schema": SCHEMA,
        "job": job.0,
        "hang": hang,
        "round": round.0,
        "written_unix_ms": unix_millis,
        "idle_seconds": idle.as_secs_f64(),
        "sentence": sentence,
        "folder": folder,
        "nodes": nodes,
    })
    .to_string()
}

/// A node of the document; also what `--on-fault-node` reads.
pub(super) fn node(node: &HangingNode, key: &str) -> Value {
    let suspects = node.suspects.iter().map(|it| json!({ "rank": it.rank.0, "is": it.reason }));
    let taint = node.tainted.then(|| json!({ "key": key, "value": "hang", "effect": "NoSchedule" }));
    json!({
        "id": node.name.node_id.0,
        "rank": node.name.rank.map(|rank| rank.0),
        "host": node.name.host,
        "ip": node.name.address,
        "k8s_node": node.k8s_node,
        "pod": node.pod,
        "verdict": "hang",
        "suspects": suspects.collect::<Vec<_>>(),
        "times_named": node.times_named,
        "taint": taint,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rules::{NodeId, NodeRank, Rank, Round, RunId, hang::Suspect, node::NodeName};

    use super::*;

    #[test]
    fn only_a_machine_that_was_named_before_has_a_taint() {
        let node = |times_named| HangingNode {
            name: NodeName {
                rank: Some(NodeRank(1)),
                host: "b".into(),
                address: "10.0.0.2".into(),
                node_id: NodeId("id".into()),
            },
            k8s_node: Some("gpu-7".into()),
            pod: None,
            suspects: vec![Suspect { rank: Rank(6), reason: "in train.py:7 load".into() }],
            times_named,
            tainted: times_named > 1,
        };
        let report = HangReport {
            job: RunId("j".into()),
            hang: 1,
            round: Round(3),
            idle: Duration::from_secs(300),
            sentence: "rank 6 is in train.py:7 load".into(),
            folder: "/stacks".into(),
            nodes: vec![node(1), node(2)],
        };
        let document: Value = serde_json::from_str(&document(&report, "k", 7)).unwrap();
        assert_eq!(document["schema"], SCHEMA);
        assert_eq!(document["nodes"][0]["taint"], Value::Null);
        let taint = json!({ "key": "k", "value": "hang", "effect": "NoSchedule" });
        assert_eq!(document["nodes"][1]["taint"], taint);
        assert_eq!(document["nodes"][1]["suspects"], json!([{ "rank": 6, "is": "in train.py:7 load" }]));
    }
}
