//! The same job in the status document, in the metrics and in what `dlrover-diag` prints.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::Value;
use support::cluster::Cluster;

use crate::{check, diag, get, status};

/// How long the three may differ: they are asked one after the other, and the job goes on meanwhile.
const LIMIT: Duration = Duration::from_secs(60);

/// What all of them say of a job.
#[derive(Debug, PartialEq, Eq)]
struct View {
    phase: String,
    round: Option<u64>,
    /// Nodes by state, without the states that no node is in.
    nodes: BTreeMap<String, u64>,
    restarts: u64,
    /// By node rank, without those that never restarted.
    restarts_of: BTreeMap<String, u64>,
    losses: u64,
}

impl View {
    fn of_document(document: &Value) -> Self {
        let mut nodes = BTreeMap::new();
        for node in document["nodes"].as_array().expect("nodes") {
            *nodes.entry(node["state"].as_str().expect("a state").to_owned()).or_default() += 1;
        }
        let totals = &document["totals"];
        let of_rank = |entry: &Value| {
            (entry["node_rank"].to_string(), entry["restarts"].as_u64().expect("a number of restarts"))
        };
        let restarts_of = totals["restarts_by_node"].as_array().into_iter().flatten().map(of_rank);
        Self {
            phase: document["phase"].as_str().expect("a phase").to_owned(),
            round: document["round"].as_u64(),
            nodes,
            restarts: totals["worker_restarts"].as_u64().expect("a number of restarts"),
            restarts_of: restarts_of.collect(),
            losses: totals["node_losses"].as_u64().expect("a number of losses"),
        }
    }

    fn of_metrics(text: &str) -> Self {
        let one = |name: &str| series(text, name).into_iter().next().map(|(_, value)| value);
        let is_not_0 = |(_, value): &(String, u64)| *value != 0;
        let phases: Vec<_> = series(text, "dlrover_phase").into_iter().filter(is_not_0).collect();
        let [(phase, 1)] = &phases[..] else { panic!("{phases:?} in\n{text}") };
        let restarts = series(text, "dlrover_worker_restarts_total");
        Self {
            phase: phase.clone(),
            round: one("dlrover_round"),
            nodes: series(text, "dlrover_nodes").into_iter().filter(is_not_0).collect(),
            restarts: restarts.iter().map(|(_, value)| value).sum(),
            restarts_of: restarts.into_iter().filter(is_not_0).collect(),
            losses: one("dlrover_node_losses_total").expect("a number of losses"),
        }
    }
}

/// The series of a metric with at most one label: the label's value, and the number.
fn series(text: &str, name: &str) -> Vec<(String, u64)> {
    let lines = text.lines().filter_map(|line| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        let is_one = labels.is_empty() || labels.starts_with('{');
        is_one.then(|| (labels.split('"').nth(1).unwrap_or_default().to_owned(), whole(value)))
    });
    lines.collect()
}

fn whole(value: &str) -> u64 {
    value.strip_suffix(".0").unwrap_or(value).parse().unwrap_or_else(|_| panic!("{value}"))
}

/// Waits until the job is at this stage, and status, page and metrics say the same of it; gives the page's document.
///
/// # Panics
/// They never do; with all of them.
pub(crate) fn seen_alike(job: &Cluster, port: u16, stage: &str, is_there: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let page = status(port);
        let metrics = get(port, "/metrics", "").1;
        let asked = diag(&["status", job.address(), "--json"]);
        let asked: Value = serde_json::from_slice(&asked.stdout).unwrap_or_else(|_| panic!("{asked:?}"));
        check(&asked);
        let views = [View::of_document(&page), View::of_metrics(&metrics), View::of_document(&asked)];
        if is_there(&page) && views.windows(2).all(|pair| pair[0] == pair[1]) {
            return page;
        }
        assert!(
            start.elapsed() < LIMIT,
            "{stage}: the page, the metrics and dlrover-diag do not agree:\n{views:#?}\n{page:#}\n{metrics}\n{asked:#}"
        );
    }
}
