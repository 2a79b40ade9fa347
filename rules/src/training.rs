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

/// A sample takes a few system calls for each worker.
const SHORTEST_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Of workers that have not declared progress yet. Far less than the time after which this machine is thought to have
/// stood still: `STOOD_STILL` of [`crate::worker_group`].
const LONGEST_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

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

    /// How often workers that train are sampled, so that a hang is noticed soon after its timeout; 0.1 s to 1 s.
    #[must_use]
    pub fn sample_interval(&self) -> Duration {
        self.longest_sample_interval().min(Duration::from_secs(1))
    }

    /// How long after these samples the next are taken. `since_start` of the workers.
    ///
    /// Many programs never declare progress. As long as none has, samples become rarer: the first declaration is noticed
    /// after at most half of the time that it took, or a tenth of the timeout.
    #[must_use]
    pub fn next_sample(&self, since_start: Duration, samples: &[Sample]) -> Duration {
        let has_begun = samples.iter().any(|sample| sample.changes > 0);
        if has_begun || self.sources.are_wide() {
            return self.sample_interval();
        }
        (since_start / 2).clamp(self.sample_interval(), self.longest_sample_interval())
    }

    fn longest_sample_interval(&self) -> Duration {
        (self.timeout / 10).clamp(SHORTEST_SAMPLE_INTERVAL, LONGEST_SAMPLE_INTERVAL)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn next_sample(timeout: u64, since_start: u64, changes: u64, cpu: bool) -> u128 {
        let terms = HangTerms {
            timeout: Duration::from_secs(timeout),
            grace: Duration::from_secs(1800),
            sources: HangSources { output: false, cpu },
            on_hang: OnHang::Dump,
        };
        let sample = |rank, changes| Sample {
            local_rank: LocalRank(rank),
            step: None,
            changes,
            busy: None,
            written: None,
            cpu: None,
        };
        let samples = [sample(0, 0), sample(1, changes)];
        terms.next_sample(Duration::from_secs(since_start), &samples).as_millis()
    }

    #[test]
    fn workers_that_have_not_declared_progress_are_sampled_less_and_less() {
        let waits = [0, 1, 2, 3, 10, 20, 1000].map(|since_start| next_sample(300, since_start, 0, false));
        assert_eq!(waits, [1000, 1000, 1000, 1500, 5000, 10_000, 10_000]);
        // Not later than a tenth of the timeout.
        let waits = [1, 5, 1000].map(|since_start| next_sample(20, since_start, 0, false));
        assert_eq!(waits, [1000, 2000, 2000]);
        assert_eq!(next_sample(2, 1000, 0, false), 200);
        assert_eq!(next_sample(0, 1000, 0, false), 100);
    }

    #[test]
    fn workers_of_which_one_has_declared_progress_are_sampled_at_the_same_pace() {
        for since_start in [0, 10, 1000] {
            assert_eq!(next_sample(300, since_start, 1, false), 1000);
            assert_eq!(next_sample(2, since_start, 1, false), 200);
        }
    }

    #[test]
    fn output_and_cpu_time_are_sampled_at_the_same_pace() {
        assert_eq!(next_sample(300, 1000, 0, true), 1000);
    }
}
