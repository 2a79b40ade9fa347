//! A status for people: the lines under the first one.

use diagnosis::counted::{counted, named_and_more};
use rules::job_status::{CheckpointStatus, CheckpointWriteStatus, JobStatus, NodeStatus};

use super::{progress, screen::duration};

/// Nodes whose accelerators are named as troubled, and troubles of each.
const GPU_NODES: usize = 4;
const GPU_TROUBLES: usize = 3;

/// The lines under the first one.
pub(super) fn of(status: &JobStatus) -> Vec<String> {
    let mut facts = Vec::new();
    let totals = &status.totals;
    if let Some(ratio) = totals.effective_training_ratio {
        let causes = totals.lost_seconds.by_cause();
        let causes: Vec<String> = causes
            .iter()
            .filter(|(_, seconds)| *seconds >= 0.05)
            .map(|(cause, seconds)| format!("{cause} {}", duration(*seconds)))
            .collect();
        let causes = if causes.is_empty() { String::new() } else { format!("; {}", causes.join(", ")) };
        facts.push(format!("workers ran {:.1} % of {}{causes}", ratio * 100.0, duration(status.age_seconds)));
    }
    let mut sums = vec![
        counted(totals.rounds, "round"),
        format!("{} after failures", counted(totals.worker_restarts, "restart")),
        format!("{} lost", counted(totals.node_losses, "node")),
    ];
    if let (Some(min), Some(max)) = (status.min_nodes, status.max_nodes) {
        let range = if min == max { min.to_string() } else { format!("{min}:{max}") };
        sums.push(format!("--nnodes={range}"));
    }
    facts.push(sums.join(", "));
    facts.extend(progress::facts(status));
    facts.extend(status.checkpoints.iter().map(checkpoint_fact));
    facts.extend(of_accelerators(status));
    if let Some(check) = &status.check {
        let healthy = check.nodes.iter().filter(|node| node.verdict == "healthy").count();
        let ago = duration(check.seconds_ago);
        let mut text = format!(
            "network check {} ({ago} ago): {healthy} of {} healthy",
            check.check,
            counted(check.nodes.len(), "node")
        );
        for node in check.nodes.iter().filter(|node| node.verdict != "healthy").take(4) {
            let taint = if node.tainted { ", tainted" } else { "" };
            text.push_str(&format!(
                "; node number {} ({}): {}{taint}",
                node.number, node.address, node.verdict
            ));
        }
        facts.push(text);
    }
    let master = &status.master;
    facts.push(format!(
        "job master {}, up {}, epoch {}, {}",
        master.version,
        // It is counted in whole seconds.
        if master.seconds == 0 { "less than 1 s".to_owned() } else { duration(master.seconds as f64) },
        master.epoch,
        if master.has_state_dir { "with a state directory" } else { "without a state directory" }
    ));
    // Last: its lines follow.
    if let Some(failure) = &status.last_failure {
        let round = failure.round.map_or_else(String::new, |round| format!(", round {round}"));
        let ago = duration(failure.seconds_ago);
        let what = match &failure.root_cause {
            Some(root_cause) => root_cause.clone(),
            None => format!("{}: {}", failure.node, failure.reason),
        };
        facts.push(format!("last failure {ago} ago{round}: {what}"));
    }
    facts
}

/// A line for each node whose accelerators have a trouble.
pub(super) fn of_accelerators(status: &JobStatus) -> Vec<String> {
    let troubled: Vec<&NodeStatus> =
        status.nodes.iter().filter(|node| !node.gpu_troubles.is_empty()).collect();
    let shown = troubled.iter().take(GPU_NODES).map(|node| {
        let rank = node.node_rank.map_or_else(String::new, |rank| format!("node rank {rank}, "));
        let named = node.gpu_troubles.iter().take(GPU_TROUBLES);
        format!("accelerators of {rank}{}: {}", node.host, named_and_more(named, node.gpu_troubles.len()))
    });
    let more = troubled.len().saturating_sub(GPU_NODES);
    let more =
        (more > 0).then(|| format!("accelerators of {} have troubles too", counted(more, "more node")));
    shown.chain(more).collect()
}

/// One checkpoint directory.
fn checkpoint_fact(checkpoint: &CheckpointStatus) -> String {
    let step = |step: Option<u64>| step.map_or_else(|| "none".to_owned(), |step| format!("step {step}"));
    let mut text = format!(
        "checkpoints in {}: {} in memory, {} on disk",
        checkpoint.folder,
        step(checkpoint.memory_step),
        step(checkpoint.disk_step)
    );
    if let Some(CheckpointWriteStatus { step, bytes, total_bytes }) = &checkpoint.writing {
        let megabytes = |bytes: u64| bytes / 1_000_000;
        text.push_str(&format!(
            "; writing step {step}, {} of {} MB",
            megabytes(*bytes),
            megabytes(*total_bytes)
        ));
    }
    text
}
