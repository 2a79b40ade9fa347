//! The warning about a job that any host can join.

use std::fmt;

/// The warning, for the log of the process that serves the job.
pub(crate) fn warning(reached_at: impl fmt::Display, hint: &str) -> String {
    format!("warning: this job accepts connections without a token: {}", consequence(reached_at, hint))
}

/// The warning of a job master that listens on all interfaces of its host: nodes need it, and need not come from one
/// network.
pub(crate) fn warning_on_all_interfaces(hint: &str) -> String {
    format!(
        "warning: this job master listens on all interfaces and accepts connections without a token: {}; --bind ADDR listens \
         on one address only",
        consequence("its port", hint)
    )
}

fn consequence(reached_at: impl fmt::Display, hint: &str) -> String {
    format!(
        "any host that can reach {reached_at} can list the nodes, join the job as a node, and so restart the workers of all nodes; \
         to admit only nodes of the job, give every node and the job master the same {hint}"
    )
}
