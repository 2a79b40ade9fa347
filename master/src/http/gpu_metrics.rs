//! The metrics of the nodes' accelerators, as the nodes reported them.

use std::{collections::BTreeMap, fmt};

use prometheus_client::encoding::EncodeLabelSet;
use rules::job_status::{JobStatus, NodeStatus};

use super::{
    label::Label,
    metrics::{Families, NodeLabel},
};

/// Troubles that are a metric: a series each.
const MAX_TROUBLES: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AcceleratorsLabel {
    node: Label,
    accelerators: Label,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TroubleLabel {
    node: Label,
    trouble: Label,
}

pub(super) fn encode(families: &mut Families<'_, '_>, status: &JobStatus) -> fmt::Result {
    let nodes = by_node_rank(status);
    let label = |rank: &u32| Label::from(rank.to_string());
    families.gauge(
        "dlrover_gpus",
        "Accelerators by node rank, as the node reported them",
        nodes.iter().map(|(rank, node)| (NodeLabel { node: label(rank) }, f64::from(node.gpus))),
    )?;
    families.gauge(
        "dlrover_gpus_broken",
        "Accelerators that the node reported as broken, by node rank",
        nodes.iter().map(|(rank, node)| (NodeLabel { node: label(rank) }, f64::from(node.broken_gpus))),
    )?;
    families.gauge(
        "dlrover_gpu_info",
        "The accelerators of the node in one line, by node rank",
        nodes.iter().filter_map(|(rank, node)| {
            let accelerators = node.accelerators.as_deref()?.into();
            Some((AcceleratorsLabel { node: label(rank), accelerators }, 1.0))
        }),
    )?;
    let troubles = nodes.iter().flat_map(|(rank, node)| {
        let of = |trouble: &String| TroubleLabel { node: label(rank), trouble: trouble.as_str().into() };
        node.gpu_troubles.iter().map(move |trouble| (of(trouble), 1.0))
    });
    families.gauge(
        "dlrover_gpu_trouble",
        &format!("What is wrong with accelerators of the node, by node rank; at most {MAX_TROUBLES}"),
        troubles.take(MAX_TROUBLES),
    )
}

/// The nodes with accelerators, or with a trouble in the place of them. Of those with one node rank, the one that runs
/// workers: a spare may ask for the rank of another node.
fn by_node_rank(status: &JobStatus) -> BTreeMap<u32, &NodeStatus> {
    let mut nodes = BTreeMap::new();
    for node in &status.nodes {
        if node.gpus == 0 && node.gpu_troubles.is_empty() {
            continue;
        }
        let Some(rank) = node.node_rank else { continue };
        if node.first_rank.is_some() || !nodes.contains_key(&rank) {
            nodes.insert(rank, node);
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use rules::job_status::NodeState;

    use super::*;
    use crate::http::metrics::{Format, GreatestTrainingTime, encode, tests::status};

    fn node(node_rank: u32, accelerators: &str, troubles: &[&str]) -> NodeStatus {
        NodeStatus {
            node_rank: Some(node_rank),
            host: "h".into(),
            address: "10.0.0.1".into(),
            state: NodeState::Running,
            workers: 8,
            first_rank: Some(node_rank * 8),
            restarts: 0,
            replacements: 0,
            max_replacements: 0,
            seconds: 1.0,
            accelerators: Some(accelerators.into()),
            gpus: 8,
            broken_gpus: 1,
            gpu_troubles: troubles.iter().map(|it| (*it).to_owned()).collect(),
            ranks: Vec::new(),
        }
    }

    #[test]
    fn a_trouble_is_a_series_of_its_node() {
        let lost = "GPU 3 (a \"b\"): it has fallen off the bus";
        let spare = NodeStatus { first_rank: None, ..node(1, "1 x other", &["GPU 0: Xid 79"]) };
        let driver =
            NodeStatus { gpus: 0, broken_gpus: 0, ..node(2, "no accelerator", &["the query stopped"]) };
        let without = NodeStatus { gpus: 0, broken_gpus: 0, ..node(3, "no accelerator", &[]) };
        let nodes = vec![node(0, "8 x H", &[lost]), node(1, "8 x H", &[]), spare, driver, without];
        let status = JobStatus { nodes, ..status() };
        let text = encode(&status, None, Format::Text, &GreatestTrainingTime::default()).unwrap();
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("dlrover_gpu")).collect();
        let expected = [
            r#"dlrover_gpus{node="0"} 8.0"#,
            r#"dlrover_gpus{node="1"} 8.0"#,
            r#"dlrover_gpus{node="2"} 0.0"#,
            r#"dlrover_gpus_broken{node="0"} 1.0"#,
            r#"dlrover_gpus_broken{node="1"} 1.0"#,
            r#"dlrover_gpus_broken{node="2"} 0.0"#,
            r#"dlrover_gpu_info{node="0",accelerators="8 x H"} 1.0"#,
            r#"dlrover_gpu_info{node="1",accelerators="8 x H"} 1.0"#,
            r#"dlrover_gpu_info{node="2",accelerators="no accelerator"} 1.0"#,
            r#"dlrover_gpu_trouble{node="0",trouble="GPU 3 (a \"b\"): it has fallen off the bus"} 1.0"#,
            r#"dlrover_gpu_trouble{node="2",trouble="the query stopped"} 1.0"#,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_troubles_of_a_large_job_are_bounded() {
        let troubles: Vec<String> = (0..16).map(|gpu| format!("GPU {gpu}: broken")).collect();
        let troubles: Vec<&str> = troubles.iter().map(String::as_str).collect();
        let status =
            JobStatus { nodes: (0..100).map(|rank| node(rank, "8 x H", &troubles)).collect(), ..status() };
        let text = encode(&status, None, Format::Text, &GreatestTrainingTime::default()).unwrap();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("dlrover_gpu_trouble{")).count(),
            MAX_TROUBLES
        );
    }
}
