//! The warning about a job that any host can join.

use std::fmt;

/// The warning, for the log of the process that serves the job.
pub(crate) fn warning(reached_at: impl fmt::Display, hint: &str) -> String {
    format!(
        "warning: this job accepts connections without a token: any host that reaches {reached_at} can list the nodes, join \
         as one, and so restart the workers of all nodes; to require a token, give every node and the job master the \
         same {hint}"
    )
}
