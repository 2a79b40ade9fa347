//! What the job master sends to a node without being asked: [`crate::job`] decides it, [`crate::worker_group`] receives
//! it, and `master-proto` carries it.

use checkpoint::job::Order;
use serde::{Deserialize, Serialize};

use crate::{
    check_order::{CheckOrder, CheckRound},
    hang::HangNotice,
    ids::Round,
    job,
    pending::Pending,
    root_cause::RootCause,
    verdict::JobVerdict,
    world::Assignment,
};
use diagnosis::exclusion::Exclusion;

/// A message from the job master to one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Serve the store of this round, which is complete; on another port than before, when workers of a lost node may
    /// still use the old one.
    Host { round: Round, fresh_port: bool },
    /// The node's place in a round.
    Assigned(Assignment),
    /// The round is over for all its members: stop the workers and join again. `is_secondary`: a failure of this node's
    /// own workers follows from it, and is not counted.
    Regroup { round: Round, why: String, is_secondary: bool },
    /// The node cannot take part. It leaves for good.
    Refused { reason: String },
    /// The failure that ends the job. Sent before the end, if it is known.
    RootCause(Box<RootCause>),
    /// The job is over.
    JobEnd(JobVerdict),
    /// Why there is no assignment yet.
    Pending(Pending),
    /// Take part in a test.
    Check(CheckOrder),
    /// End the test of this round now, and report how far it came.
    CancelCheck(CheckRound),
    /// The check is over and this node passed.
    CheckOver { message: String },
    /// A check keeps this node out of the job. It leaves for good.
    Excluded(Exclusion),
    /// Take the stacks of the workers of this round, and send them.
    DumpStacks { round: Round, episode: u32 },
    /// The job hangs.
    Hang(HangNotice),
    /// What is to be done with a checkpoint.
    Checkpoint(Order),
}

impl Push {
    /// The end of a round, and why.
    pub(crate) fn regroup(round: Round, why: &job::Regroup) -> Self {
        Self::Regroup { round, why: why.to_string(), is_secondary: why.is_secondary() }
    }
}
