//! Hangs: the terms on which one is declared, what the stacks say, and the notice and the report of it.
//!
//! The node decides which of its ranks are stalled ([`crate::worker_group`]), the master whether the job hangs
//! ([`crate::progress_watch`]).

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Rank, Round, RunId},
    node::NodeName,
    progress::Sample,
};

/// The longest of [`HangTerms::dump_interval`]: a dump may take 8 s, stops each thread for a moment, and writes files.
const LONGEST_DUMP_INTERVAL: Duration = Duration::from_secs(30);

/// A sample takes a few system calls for each worker.
const SHORTEST_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Of workers that train: a hang is noticed at most two intervals after its timeout, which begins with a sample.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Of workers that have not declared progress yet, of which there may be none that ever does: the timeout of one that
/// hangs after its first step begins at most so much too late. Far less than [`HangTerms::standstill`].
const LONGEST_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

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
    /// The settings of a job without hang detection, by the names of their options.
    pub(crate) fn off() -> Vec<(&'static str, String)> {
        vec![("hang-timeout", "0".to_owned())]
    }

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

    /// How often workers that train are sampled, so that a hang is noticed soon after its timeout; 0.1 s to 0.5 s.
    #[must_use]
    pub fn sample_interval(&self) -> Duration {
        (self.timeout / 10).clamp(SHORTEST_SAMPLE_INTERVAL, SAMPLE_INTERVAL)
    }

    /// So long without a sample means that this machine stood still; 2 s to 20 s, twice the timeout.
    pub(crate) fn standstill(&self) -> Duration {
        (self.timeout * 2).clamp(Duration::from_secs(2), Duration::from_secs(20))
    }

    /// How long after these samples the next are taken. `since_start` of the workers.
    ///
    /// Many programs never declare progress. As long as none has, samples become rarer: the first declaration is noticed
    /// after at most half of the time that it took, or a tenth of the timeout, or 1 s.
    #[must_use]
    pub fn next_sample(&self, since_start: Duration, samples: &[Sample]) -> Duration {
        let shortest = self.sample_interval();
        let has_begun = samples.iter().any(|sample| sample.changes > 0);
        if has_begun || self.sources.are_wide() {
            return shortest;
        }
        let longest = (self.timeout / 10).clamp(shortest, LONGEST_SAMPLE_INTERVAL);
        (since_start / 2).clamp(shortest, longest)
    }
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

/// What precedes the directory of the stacks in a [`HangNotice`] that has one.
pub const STACKS_AT: &str = "; stacks of all ranks, written by the job master: ";

/// How a [`HangNotice`] begins.
pub const HANG: &str = "hang: ";

/// The message of a hang on each node of the job.
impl fmt::Display for HangNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { idle, sentence, folder, .. } = self;
        write!(f, "{HANG}no rank has made progress for {} s: {sentence}", idle.as_secs())?;
        if folder.is_empty() { Ok(()) } else { write!(f, "{STACKS_AT}{folder}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LocalRank;

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
    fn workers_that_have_not_declared_progress_are_sampled_less() {
        let waits = [0, 1, 2, 3, 1000].map(|since_start| next_sample(300, since_start, 0, false));
        assert_eq!(waits, [500, 500, 1000, 1000, 1000]);
        // Not later than a tenth of the timeout.
        assert_eq!([1, 2, 1000].map(|since_start| next_sample(7, since_start, 0, false)), [500, 700, 700]);
        assert_eq!(next_sample(2, 1000, 0, false), 200);
        assert_eq!(next_sample(1, 1000, 0, false), 100);
    }

    /// A step, its sample; then the timeout, and the sample that sees that it is over. What follows, the order to take
    /// stacks and these, has the rest of the 2 s.
    #[test]
    fn a_hang_is_noticed_within_a_second_and_a_half_after_its_timeout() {
        for timeout in [1, 5, 30, 300, 1800] {
            let after_first = next_sample(timeout, 10_000, 0, false) + next_sample(timeout, 10_000, 1, false);
            let later = 2 * next_sample(timeout, 10_000, 1, false);
            assert!(after_first <= 1500 && later <= 1000, "{timeout} s: {after_first} ms, {later} ms");
        }
    }

    #[test]
    fn a_machine_stands_still_only_for_longer_than_many_samples() {
        for (timeout, standstill) in [(1, 2), (5, 10), (10, 20), (300, 20)] {
            let terms = HangTerms {
                timeout: Duration::from_secs(timeout),
                grace: Duration::from_secs(1800),
                sources: HangSources::default(),
                on_hang: OnHang::Dump,
            };
            assert_eq!(terms.standstill(), Duration::from_secs(standstill));
            assert!(terms.next_sample(Duration::from_secs(10_000), &[]) * 20 <= terms.standstill());
        }
    }

    #[test]
    fn workers_of_which_one_has_declared_progress_are_sampled_at_the_same_pace() {
        for since_start in [0, 10, 1000] {
            assert_eq!(next_sample(300, since_start, 1, false), 500);
            assert_eq!(next_sample(2, since_start, 1, false), 200);
        }
    }

    #[test]
    fn a_notice_begins_as_the_remedy_of_a_hang_expects() {
        let (sentence, folder) = (String::from("rank 6 is elsewhere"), String::from("/stacks"));
        let idle = Duration::from_secs(30);
        let notice = HangNotice { round: Round(0), idle, sentence, folder, restart: false };
        assert!(notice.to_string().starts_with(HANG), "{notice}");
    }

    #[test]
    fn output_and_cpu_time_are_sampled_at_the_same_pace() {
        assert_eq!(next_sample(300, 1000, 0, true), 500);
    }
}
