//! The progress of ranks, and their stacks in a hang.

use std::time::Duration;

use rules::{
    LocalRank, NodeId, Rank, Round,
    hang::{HangNotice, HangSources, HangTerms, OnHang},
    progress::{ProgressReport, RankProgress, RankState},
};

use super::{ConvertError, MAX_WORKERS, cut, millis, node_id, round};
use crate::pb;

/// The bytes of one [`StacksPart`], which must fit into [a request](crate::MAX_REQUEST_BYTES).
pub const MAX_STACKS_PART: usize = 48 << 10;

/// The shortest timeout. Shorter ones would be those of a slow step.
const MIN_TIMEOUT_MILLIS: u64 = 100;

/// A report of a node about its ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressMessage {
    pub node: NodeId,
    pub report: ProgressReport,
}

/// A part of the stacks of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StacksPart {
    pub node: NodeId,
    pub episode: u32,
    pub rank: Rank,
    pub document: Vec<u8>,
    /// The rank's document is complete.
    pub is_last: bool,
    /// The node has no further rank.
    pub is_all: bool,
}

impl TryFrom<pb::HangTerms> for HangTerms {
    type Error = ConvertError;

    fn try_from(wire: pb::HangTerms) -> Result<Self, ConvertError> {
        let on_hang = match wire.on_hang() {
            pb::OnHang::Dump => OnHang::Dump,
            pb::OnHang::Restart => OnHang::Restart,
            pb::OnHang::Exit => OnHang::Exit,
            pb::OnHang::Unspecified => {
                return Err(ConvertError::Missing { field: "terms.hang.on_hang" });
            }
        };
        if wire.timeout_millis < MIN_TIMEOUT_MILLIS {
            let (field, value) = ("terms.hang.timeout_millis", wire.timeout_millis);
            return Err(ConvertError::Range { field, value, expected: "at least 100" });
        }
        Ok(Self {
            timeout: Duration::from_millis(wire.timeout_millis),
            grace: Duration::from_millis(wire.grace_millis),
            sources: HangSources { output: wire.watches_output, cpu: wire.watches_cpu },
            on_hang,
        })
    }
}

impl From<HangTerms> for pb::HangTerms {
    fn from(HangTerms { timeout, grace, sources, on_hang }: HangTerms) -> Self {
        let on_hang = match on_hang {
            OnHang::Dump => pb::OnHang::Dump,
            OnHang::Restart => pb::OnHang::Restart,
            OnHang::Exit => pb::OnHang::Exit,
        };
        Self {
            timeout_millis: millis(timeout),
            grace_millis: millis(grace),
            watches_output: sources.output,
            watches_cpu: sources.cpu,
            on_hang: on_hang.into(),
        }
    }
}

impl From<HangNotice> for pb::Hang {
    fn from(HangNotice { round, idle, sentence, folder, restart }: HangNotice) -> Self {
        let (sentence, folder) = (cut(sentence), cut(folder));
        Self { round: round.0, idle_millis: millis(idle), sentence, folder, restart }
    }
}

impl From<pb::Hang> for HangNotice {
    fn from(pb::Hang { round, idle_millis, sentence, folder, restart }: pb::Hang) -> Self {
        Self { round: Round(round), idle: Duration::from_millis(idle_millis), sentence, folder, restart }
    }
}

impl TryFrom<pb::TrainingReport> for ProgressMessage {
    type Error = ConvertError;

    fn try_from(wire: pb::TrainingReport) -> Result<Self, ConvertError> {
        if wire.ranks.len() > MAX_WORKERS as usize {
            let (field, length) = ("ranks", wire.ranks.len());
            return Err(ConvertError::TooMany { field, length, max: MAX_WORKERS as usize });
        }
        let ranks = wire.ranks.into_iter().map(RankProgress::try_from).collect::<Result<_, _>>()?;
        let report = ProgressReport { round: round(wire.round, "round")?, ranks };
        Ok(Self { node: node_id(wire.node_id, "node_id")?, report })
    }
}

impl TryFrom<pb::RankTraining> for RankProgress {
    type Error = ConvertError;

    fn try_from(wire: pb::RankTraining) -> Result<Self, ConvertError> {
        let state = match wire.state() {
            pb::RankState::Starting => RankState::Starting,
            pb::RankState::Overdue => RankState::Overdue,
            pb::RankState::Advancing => RankState::Advancing,
            pb::RankState::Stalled => RankState::Stalled,
            pb::RankState::Busy => RankState::Busy,
            pb::RankState::Ended => RankState::Ended,
            pb::RankState::Unspecified => return Err(ConvertError::Missing { field: "ranks.state" }),
        };
        if wire.local_rank >= MAX_WORKERS {
            let (field, value) = ("ranks.local_rank", u64::from(wire.local_rank));
            return Err(ConvertError::Range { field, value, expected: "below 65536" });
        }
        Ok(Self {
            local_rank: LocalRank(wire.local_rank),
            state,
            step: wire.step,
            steps_per_1000_s: wire.steps_per_1000_s,
            idle: Duration::from_millis(wire.idle_millis),
        })
    }
}

/// A report of this node's ranks.
#[must_use]
pub fn progress_report(node_id: String, report: ProgressReport) -> pb::TrainingReport {
    let ranks = report.ranks.into_iter().map(|rank| {
        let state = match rank.state {
            RankState::Starting => pb::RankState::Starting,
            RankState::Overdue => pb::RankState::Overdue,
            RankState::Advancing => pb::RankState::Advancing,
            RankState::Stalled => pb::RankState::Stalled,
            RankState::Busy => pb::RankState::Busy,
            RankState::Ended => pb::RankState::Ended,
        };
        pb::RankTraining {
            local_rank: rank.local_rank.0,
            state: state.into(),
            step: rank.step,
            steps_per_1000_s: rank.steps_per_1000_s,
            idle_millis: millis(rank.idle),
        }
    });
    pb::TrainingReport { node_id, round: report.round.0, ranks: ranks.collect() }
}

impl TryFrom<pb::StacksPart> for StacksPart {
    type Error = ConvertError;

    fn try_from(wire: pb::StacksPart) -> Result<Self, ConvertError> {
        if wire.document.len() > MAX_STACKS_PART {
            let (field, length) = ("document", wire.document.len());
            return Err(ConvertError::TooLong { field, length, max: MAX_STACKS_PART });
        }
        Ok(Self {
            node: node_id(wire.node_id, "node_id")?,
            episode: wire.episode,
            rank: Rank(wire.rank),
            document: wire.document,
            is_last: wire.is_last,
            is_all: wire.is_all,
        })
    }
}

impl From<StacksPart> for pb::StacksPart {
    fn from(part: StacksPart) -> Self {
        let StacksPart { node, episode, rank, document, is_last, is_all } = part;
        Self { node_id: node.0, episode, rank: rank.0, document, is_last, is_all }
    }
}
