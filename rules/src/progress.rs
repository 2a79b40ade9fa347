//! The progress of ranks: what a worker shows, and what a node reports of it to the master.
//!
//! A rank advances when its worker declares progress (docs/progress.md); with wider
//! [`HangSources`](crate::hang::HangSources) also when it writes or uses CPU time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{LocalRank, Round};

/// What a worker has shown of its progress up to now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub local_rank: LocalRank,
    /// The last step that it has declared.
    pub step: Option<u64>,
    /// Grows whenever it declares progress; 0: never yet.
    pub changes: u64,
    /// It is busy with something that is no step, such as a checkpoint, by its own words.
    pub busy: Option<String>,
    /// Bytes that it has written, where that is a source.
    pub written: Option<u64>,
    /// CPU time that it has used, in ticks, where that is a source.
    pub cpu: Option<u64>,
}

/// What a rank does, as far as its progress tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankState {
    /// It has not declared progress yet, and may take its time.
    Starting,
    /// It has not declared progress within the grace period. Many programs never do.
    Overdue,
    /// It has advanced within the timeout.
    Advancing,
    /// It has not.
    Stalled,
    /// It is busy with something that is no step.
    Busy,
    /// It has exited.
    Ended,
}

impl RankState {
    /// As the document and the metrics name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Overdue => "overdue",
            Self::Advancing => "advancing",
            Self::Stalled => "stalled",
            Self::Busy => "busy",
            Self::Ended => "ended",
        }
    }
}

/// A rank, as its node reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgress {
    pub local_rank: LocalRank,
    pub state: RankState,
    /// The last step that it has declared.
    pub step: Option<u64>,
    /// Steps in 1000 seconds, over the last minute; `None`: not known yet.
    pub steps_per_1000_s: Option<u64>,
    /// How long ago it advanced last; since its start, if it never has.
    pub idle: Duration,
}

/// The ranks of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    pub round: Round,
    pub ranks: Vec<RankProgress>,
}
