//! What the job has done so far, for people and metrics: no decision depends on it.
//!
//! It is part of the job's state, so a restarted master continues it. Each event costs a comparison of the phase
//! before and after, whatever the size of the job.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use checkpoint::job::Note;
use serde::{Deserialize, Serialize};

use super::{Effect, Gone, Job, Log, Phase, Regroup};
use crate::{
    ids::{NodeId, NodeRank, Round},
    job_status::{Histogram, JobPhase, NodeRestarts},
    node::NodeName,
    root_cause::RootCause,
    taint_report::TaintReport,
    verdict::{JobFailure, JobVerdict},
};
use diagnosis::{counted::counted, moment::Moment};

/// Rounds that are kept.
const MAX_ROUNDS: usize = 64;

/// Events that are kept.
const MAX_EVENTS: usize = 256;

/// Upper bounds of the histograms, in milliseconds.
const BUCKETS: [u64; 14] =
    [10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 1_800_000];

/// What the job has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct History {
    /// When the first node joined.
    began: Option<Moment>,
    phase: Option<JobPhase>,
    since: Moment,
    spent: BTreeMap<JobPhase, Duration>,
    /// When the rendezvous of the next round began.
    gathering_since: Option<Moment>,
    /// The first failure or loss since workers ran.
    failed_at: Option<Moment>,
    /// When a member of the running round was last heard of, while its loss is recorded.
    #[serde(skip)]
    heard_until: Option<Moment>,
    rounds: VecDeque<PastRound>,
    round_count: u64,
    restarts: BTreeMap<NodeRank, u32>,
    restart_count: u64,
    loss_count: u64,
    last_failure: Option<PastFailure>,
    check: Option<(Moment, Box<TaintReport>)>,
    rendezvous: Durations,
    failure_to_running: Durations,
    events: VecDeque<(Moment, String)>,
    event_count: u64,
}

/// A round that ran, or runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PastRound {
    pub(super) round: Round,
    pub(super) nodes: u32,
    pub(super) rendezvous: Duration,
    pub(super) started: Moment,
    pub(super) ended: Option<(Moment, String)>,
}

/// A failure of workers, or a loss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PastFailure {
    pub(super) round: Option<Round>,
    pub(super) node: NodeName,
    pub(super) reason: String,
    pub(super) at: Moment,
    /// What its node said of it afterwards.
    pub(super) root_cause: Option<Box<RootCause>>,
}

/// Durations by size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Durations {
    /// How many are at most the bound of the same place in [`BUCKETS`].
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        self.counts.resize(BUCKETS.len(), 0);
        for (count, bound) in self.counts.iter_mut().zip(BUCKETS) {
            *count += u64::from(duration <= Duration::from_millis(bound));
        }
        self.count += 1;
        self.sum += duration;
    }

    fn histogram(&self) -> Histogram {
        let count = |place: usize| self.counts.get(place).copied().unwrap_or_default();
        let bounds = BUCKETS.iter().map(|bound| Duration::from_millis(*bound).as_secs_f64());
        Histogram {
            buckets: bounds.enumerate().map(|(place, bound)| (bound, count(place))).collect(),
            count: self.count,
            sum: self.sum.as_secs_f64(),
        }
    }
}

impl History {
    pub(super) fn began(&self) -> Option<Moment> {
        self.began
    }

    pub(super) fn since(&self) -> Moment {
        self.since
    }

    pub(super) fn rounds(&self) -> impl Iterator<Item = &PastRound> {
        self.rounds.iter()
    }

    pub(super) fn round_count(&self) -> u64 {
        self.round_count
    }

    pub(super) fn restarts_of(&self, rank: NodeRank) -> u32 {
        self.restarts.get(&rank).copied().unwrap_or_default()
    }

    pub(super) fn restart_count(&self) -> u64 {
        self.restart_count
    }

    /// By the node rank on which workers failed. They add up to [`Self::restart_count`].
    pub(super) fn restarts_by_node(&self) -> Vec<NodeRestarts> {
        let entry = |(rank, restarts): (&NodeRank, &u32)| NodeRestarts {
            node_rank: Some(rank.0),
            restarts: u64::from(*restarts),
        };
        let mut all: Vec<NodeRestarts> = self.restarts.iter().map(entry).collect();
        let of_ranks: u64 = all.iter().map(|it| it.restarts).sum();
        let others = self.restart_count.saturating_sub(of_ranks);
        all.extend((others > 0).then_some(NodeRestarts { node_rank: None, restarts: others }));
        all
    }

    pub(super) fn loss_count(&self) -> u64 {
        self.loss_count
    }

    pub(super) fn last_failure(&self) -> Option<&PastFailure> {
        self.last_failure.as_ref()
    }

    pub(super) fn check(&self) -> Option<(Moment, &TaintReport)> {
        self.check.as_ref().map(|(at, report)| (*at, &**report))
    }

    pub(super) fn rendezvous(&self) -> Histogram {
        self.rendezvous.histogram()
    }

    pub(super) fn failure_to_running(&self) -> Histogram {
        self.failure_to_running.histogram()
    }

    /// The events that are kept, with their numbers.
    pub(super) fn events(&self) -> impl Iterator<Item = (u64, Moment, &str)> {
        let first = self.event_count - self.events.len() as u64 + 1;
        (first..).zip(&self.events).map(|(number, (at, message))| (number, *at, message.as_str()))
    }

    /// The time spent in a phase so far.
    pub(super) fn spent(&self, now: Moment, phase: JobPhase) -> Duration {
        let so_far = self.spent.get(&phase).copied().unwrap_or_default();
        if self.phase == Some(phase) { so_far + (now - self.since) } else { so_far }
    }

    /// A member of the running round is lost after so long a silence. Its workers are counted as gone since then: the
    /// master waited for the node, and the other ranks did at their next collective.
    pub(super) fn silent_for(&mut self, now: Moment, silence: Duration) {
        self.heard_until = Some(Moment::new(now.since_start().saturating_sub(silence)).max(self.since));
    }

    /// A node joined for the first time.
    pub(super) fn joined(&mut self, now: Moment, node: &NodeName) {
        self.began.get_or_insert(now);
        self.event(now, format!("{node} joined"));
    }

    /// A node without a part in the round is gone: it costs nothing, so nothing else is recorded of it.
    pub(super) fn left(&mut self, now: Moment, node: &NodeName, gone: &Gone) {
        self.event(now, format!("{node} {gone}"));
    }

    fn event(&mut self, now: Moment, message: String) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((now, message));
        self.event_count += 1;
    }

    fn enter(&mut self, now: Moment, phase: JobPhase) {
        if self.phase == Some(phase) {
            return;
        }
        if let Some(before) = self.phase.replace(phase) {
            *self.spent.entry(before).or_default() += now - self.since;
        }
        self.since = now;
    }

    fn failed(&mut self, now: Moment, round: Option<Round>, node: &NodeName, reason: &str) {
        self.failed_at.get_or_insert(now);
        let (node, reason) = (node.clone(), reason.to_owned());
        self.last_failure = Some(PastFailure { round, node, reason, at: now, root_cause: None });
    }

    /// Another node had failed before the one that ended the round.
    pub(super) fn failed_earlier(&mut self, round: Round, node: &NodeName, reason: &str) {
        if let Some(last) = self.last_failure.as_mut().filter(|last| last.round == Some(round)) {
            (last.node, last.reason, last.root_cause) = (node.clone(), reason.to_owned(), None);
        }
    }

    /// Why the last round has ended, after all.
    pub(super) fn round_ended_by(&mut self, why: &str) {
        if let Some((_, ended)) = self.rounds.back_mut().and_then(|last| last.ended.as_mut()) {
            why.clone_into(ended);
        }
    }

    /// The node of the last failure, if that was in this round and nothing more is known of it.
    pub(super) fn failure_without_detail(&self, round: Round, node: &NodeId) -> Option<&NodeName> {
        let last = self.last_failure.as_ref().filter(|last| last.root_cause.is_none())?;
        (last.round == Some(round) && last.node.node_id == *node).then_some(&last.node)
    }

    /// What is known of the last failure.
    fn detailed(&mut self, root_cause: &RootCause) {
        if let Some(last) = &mut self.last_failure
            && last.round == Some(root_cause.round)
            && last.node.node_id == root_cause.node.node_id
        {
            last.root_cause = Some(Box::new(root_cause.clone()));
        }
    }

    fn round_started(&mut self, now: Moment, round: Round, nodes: u32) {
        let rendezvous = self.gathering_since.take().map_or(Duration::ZERO, |since| now - since);
        self.rendezvous.add(rendezvous);
        if let Some(failed) = self.failed_at.take() {
            self.failure_to_running.add(now - failed);
        }
        if self.rounds.len() == MAX_ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back(PastRound { round, nodes, rendezvous, started: now, ended: None });
        self.round_count += 1;
        self.event(now, format!("round {round}: workers start on {}", counted(nodes, "node")));
    }

    fn round_ended(&mut self, now: Moment, why: &str) {
        if let Some(last) = self.rounds.back_mut() {
            last.ended.get_or_insert_with(|| (now, why.to_owned()));
        }
    }

    /// `ended`: when the workers of the round were last known to run.
    fn logged(&mut self, now: Moment, ended: Moment, round: Option<Round>, log: &Log) {
        match log {
            Log::Gone { node, gone, .. } => {
                self.loss_count += 1;
                self.failed(ended, round, node, &gone.reason());
            }
            Log::Regrouped { round, why } => {
                if let Regroup::WorkersFailed { node, reason } = why {
                    self.restart_count += 1;
                    if let Some(rank) = node.rank {
                        *self.restarts.entry(rank).or_default() += 1;
                    }
                    self.failed(now, Some(*round), node, reason);
                }
                self.round_ended(ended, &why.to_string());
            }
            Log::RootCause(root_cause) => self.detailed(root_cause),
            // Its workers start at once, or something worth a line of its own happens.
            Log::Placed { .. } | Log::Checkpoint(Note::Committed { .. }) => return,
            _ => {}
        }
        let text = log.to_string();
        self.event(now, text.lines().next().unwrap_or_default().to_owned());
    }
}

/// What is compared before and after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    phase: JobPhase,
    round: Option<Round>,
    is_over: bool,
    /// Its end is not withheld any more.
    is_announced: bool,
}

impl Job {
    /// The phase as people see it.
    pub(super) fn job_phase(&self) -> JobPhase {
        match &self.phase {
            Phase::Gathering { awaited, .. } => {
                let is_enough =
                    self.terms.as_ref().is_some_and(|terms| terms.world_of(self.waiting.len()).is_some());
                match (awaited.is_empty() && !self.has_absent(), is_enough) {
                    (false, _) => JobPhase::Restart,
                    (true, true) => JobPhase::Rendezvous,
                    (true, false) => JobPhase::Pending,
                }
            }
            Phase::Placing { .. } | Phase::Hosting { .. } => JobPhase::Rendezvous,
            Phase::Checking(_) | Phase::Measuring(_) => JobPhase::Check,
            Phase::Restoring { .. } => JobPhase::Restart,
            Phase::Running { .. } => JobPhase::Running,
            // The workers are being stopped, and what its failure was is being read.
            Phase::Over { withheld_until: Some(_), .. } => JobPhase::Restart,
            Phase::Over { .. } => JobPhase::Over,
        }
    }

    pub(super) fn before(&self) -> Before {
        Before {
            phase: self.job_phase(),
            round: self.world().map(|world| world.round),
            is_over: matches!(self.phase, Phase::Over { .. }),
            is_announced: self.is_end_announced(),
        }
    }

    /// Records what an event led to.
    pub(super) fn record(&mut self, now: Moment, before: Before, effects: &[Effect]) {
        let ended = self.history.heard_until.take().unwrap_or(now);
        for effect in effects {
            match effect {
                Effect::Log(log) => self.history.logged(now, ended, before.round, log),
                Effect::Report(report) => self.history.check = Some((now, report.clone())),
                _ => {}
            }
        }
        if self.history.began.is_none() {
            return;
        }
        let after = self.before();
        if before.phase != after.phase && before.phase == JobPhase::Running {
            self.history.enter(ended, after.phase);
        }
        self.history.enter(now, after.phase);
        if after.round != before.round
            && let (Some(round), Some(nodes)) = (after.round, self.world().map(|world| world.members.len()))
        {
            self.history.round_started(now, round, super::count(nodes));
        }
        let is_gathering = matches!(
            after.phase,
            JobPhase::Pending | JobPhase::Rendezvous | JobPhase::Check | JobPhase::Restart
        );
        if is_gathering {
            self.history.gathering_since.get_or_insert(ended);
        }
        if after.is_over && !before.is_over {
            if let Phase::Over { verdict: JobVerdict::Failed(JobFailure::Node { node, reason }), .. } =
                &self.phase
            {
                self.history.failed(ended, before.round, node, reason);
            }
            self.history.round_ended(ended, &self.end_in_words());
        }
        if after.is_announced && !before.is_announced {
            self.history.event(now, self.end_in_words());
        }
    }

    pub(super) fn end_in_words(&self) -> String {
        match self.verdict() {
            Some(JobVerdict::Failed(failure)) => format!("the job failed: {failure}"),
            Some(JobVerdict::Succeeded) | None => "the job succeeded".to_owned(),
        }
    }
}
