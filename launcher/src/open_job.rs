//! A job that strangers can reach: what they could do, and how it is closed to them.

use std::fmt;

/// The first thing that whoever serves such a job says.
pub(crate) fn words(reached_at: impl fmt::Display, hint: &str) -> String {
    format!(
        "warning: this job accepts connections without a token: any host that reaches {reached_at} can list the nodes, join \
         as one, and so restart the workers of all nodes; to require a token, give every node and the job master the \
         same {hint}"
    )
}
