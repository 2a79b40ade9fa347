//! The progress of training: the terms of hang detection, and what a node reports of its ranks.
//!
//! A rank advances when its worker declares progress (docs/progress.md); with wider [`HangSources`] also when it writes
//! or uses CPU time. The node decides which of its ranks are stalled ([`crate::worker_group`]), the master whether the
//! job hangs ([`crate::training_watch`]).

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{LocalRank, Rank, Round, RunId},
    node::NodeName,
};

/// The longest of [`HangTerms::dump_interval`]: a dump may take 8 s, stops each thread for a moment, and writes files.
const LONGEST_DUMP_INTERVAL: Duration = Duration::from_secs(30);

/// The settings of hang detection that the nodes of a job agree on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangTerms {
    /// A rank that has not advanced for so long is stalled.
    pub timeout: Duration,
    /// How long a rank may take from its start to its first progress.
    pub grace: Duration,
    /// What counts as progress besides what a worker declares.
    pub sources: HangSources,
    /// What follows from a hang.
    pub on_hang: OnHang,
}

/// What counts as progress besides what a worker declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HangSources {
    /// Bytes that it writes.
    pub output: bool,
    /// CPU time that it uses.
    pub cpu: bool,
}

impl HangSources {
    /// Whether a worker that declares nothing may show progress.
    #[must_use]
    pub fn are_wide(self) -> bool {
        self.output || self.cpu
    }
}

/// What follows from a hang, after the stacks are taken and every node is notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnHang {
    /// Nothing.
    Dump,
    /// All workers are restarted; the node that is named has failed.
    Restart,
    /// The job fails.
    Exit,
}

impl fmt::Display for OnHang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dump => "dump",
            Self::Restart => "restart",
            Self::Exit => "exit",
        })
    }
}

impl fmt::Display for HangSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.output, self.cpu) {
            (false, false) => "progress",
            (true, false) => "progress,output",
            (false, true) => "progress,cpu",
            (true, true) => "progress,output,cpu",
        })
    }
}

impl HangTerms {
    /// The settings, by the names of their options.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("hang-timeout", self.timeout.as_secs_f64().to_string()),
            ("hang-grace", self.grace.as_secs_f64().to_string()),
            ("hang-source", self.sources.to_string()),
            ("on-hang", self.on_hang.to_string()),
        ]
    }

    /// The least time between two orders to take stacks, however often nodes report that they are stalled. Not longer
    /// than the timeout, after which a rank that has advanced may be stalled again.
    pub(crate) fn dump_interval(&self) -> Duration {
        self.timeout.min(LONGEST_DUMP_INTERVAL)
    }

    /// How long after their start workers are sampled first. `is_touch_noticed`: when a worker touches the files in which
    /// it declares progress, a sample is taken anyhow; without that there is nothing to find before the grace period
    /// is over.
    #[must_use]
    pub fn first_sample(&self, is_touch_noticed: bool) -> Duration {
        if is_touch_noticed && !self.sources.are_wide() { self.grace } else { self.sample_interval() }
    }

    /// How often workers are sampled, so that a hang is noticed soon after its timeout.
    #[must_use]
    pub fn sample_interval(&self) -> Duration {
        (self.timeout / 10).clamp(Duration::from_millis(100), Duration::from_secs(1))
    }
}

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
pub struct RankTraining {
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
pub struct TrainingReport {
    pub round: Round,
    pub ranks: Vec<RankTraining>,
}

/// What the stacks of a hang say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangVerdict {
    /// In one line: `rank 6 is in data_loader.py:41 next_batch; 0-5,7 wait in all_reduce`.
    pub sentence: String,
    /// The odd ranks, and why each of them is one.
    pub suspects: Vec<Suspect>,
    /// The rank that writes a checkpoint, if one does.
    pub saving: Option<Rank>,
    /// Where the stacks are; empty when they could not be written.
    pub folder: String,
}

/// An odd rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub rank: Rank,
    /// As in `rank 6 is ...`.
    pub reason: String,
}

/// A hang that was declared, with what speaks against each node, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangReport {
    pub job: RunId,
    /// Which of the job's hangs, counted from 0.
    pub hang: u32,
    pub round: Round,
    /// No rank had advanced for so long.
    pub idle: Duration,
    /// [`HangVerdict::sentence`].
    pub sentence: String,
    /// Where the stacks are; empty: nowhere.
    pub folder: String,
    /// The nodes of the odd ranks.
    pub nodes: Vec<HangingNode>,
}

/// A node with odd ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangingNode {
    pub name: NodeName,
    pub k8s_node: Option<String>,
    pub pod: Option<String>,
    /// Its odd ranks.
    pub suspects: Vec<Suspect>,
    /// How many hangs of the job, this one included, have named its machine alone.
    pub times_named: u32,
    /// That is the second time at least: the machine deserves a taint.
    pub tainted: bool,
}

/// What a node is told of a hang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangNotice {
    pub round: Round,
    /// No rank has advanced for so long.
    pub idle: Duration,
    /// [`HangVerdict::sentence`].
    pub sentence: String,
    /// Where the job master has written the stacks; empty: nowhere.
    pub folder: String,
    /// This node's workers are to be restarted, as if one of them had failed.
    pub restart: bool,
}

impl fmt::Display for HangNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { idle, sentence, folder, .. } = self;
        write!(f, "hang: no rank has finished a step for {} s: {sentence}", idle.as_secs())?;
        if folder.is_empty() { Ok(()) } else { write!(f, "; stacks of all ranks: {folder}") }
    }
}
