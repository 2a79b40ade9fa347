//! A job that strangers can reach: what they could do, and how it is closed to them.

use std::fmt;

/// The first thing that whoever serves such a job says.
pub(crate) fn words(reached_at: impl fmt::Display, hint: &str) -> String {
    format!(
        "warning: this job is open to the network: anybody who reaches {reached_at} can see who takes part, take part as a \
         node, and so stop and start the workers of all nodes again; {hint}, the same for every node and the job master, \
         keeps strangers out"
    )
}
