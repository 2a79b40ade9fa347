//! The master's view of the progress of all ranks: whether the job hangs, and which ranks are slower than their peers. Like
//! [`crate::liveness`] it is not journalled: after a restart of the master its nodes report again.
//!
//! A job hangs when some rank is stalled and no rank advances. A rank that is busy by its own words (a checkpoint) holds
//! that back. Ranks that have not declared progress do not: often only one rank does.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    ids::{NodeId, Rank, Round},
    job_status::RankStatus,
    progress::{ProgressReport, RankProgress, RankState},
    world::World,
};
use diagnosis::moment::Moment;

/// A rank is slow when its peers make this many thousandths of its steps in the same time.
const SLOW_PERMILLE: u64 = 1200;

/// For so long, before it is named.
const SLOW_FOR: Duration = Duration::from_secs(60);

/// Between two comparisons.
const COMPARISON_INTERVAL: Duration = Duration::from_secs(5);

/// Rates are compared among at least so many ranks.
const FEWEST_TO_COMPARE: usize = 3;

/// What follows from reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProgressFinding {
    /// No rank has advanced for so long.
    Stalled { idle: Duration },
    /// A rank advances again.
    Advanced,
    /// A rank makes fewer steps than its peers: steps of the median of the others to its own, in thousandths.
    Slow { rank: Rank, permille: u64 },
}

/// What one node has reported.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeProgress {
    at: Moment,
    ranks: Vec<RankProgress>,
    /// Some rank advances, or is busy by its own words.
    has_advancing: bool,
    has_stalled: bool,
    has_overdue: bool,
}

impl NodeProgress {
    fn new(at: Moment, ranks: Vec<RankProgress>) -> Self {
        let has = |states: &[RankState]| ranks.iter().any(|rank| states.contains(&rank.state));
        Self {
            at,
            has_advancing: has(&[RankState::Advancing, RankState::Busy]),
            has_stalled: has(&[RankState::Stalled]),
            has_overdue: has(&[RankState::Overdue]),
            ranks,
        }
    }
}

/// A rank that is slower than its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlowRank {
    since: Moment,
    is_named: bool,
}

/// The master's view of the progress of all ranks.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgressWatch {
    round: Option<Round>,
    nodes: BTreeMap<NodeId, NodeProgress>,
    /// Some rank of the job has declared progress, in whatever round.
    has_declared: bool,
    is_stalled: bool,
    slow: BTreeMap<u32, SlowRank>,
    /// The master was restarted: nodes report anew, also those whose ranks are fine.
    awaits_all: bool,
    /// The round in which the job hung when the master was restarted.
    was_stalled: Option<Round>,
    /// When rates are compared again.
    next_comparison: Moment,
}

impl ProgressWatch {
    /// That of a master that was restarted while workers run, maybe in an episode of this round.
    pub(crate) fn restored(hanging: Option<Round>) -> Self {
        Self { awaits_all: true, was_stalled: hanging, ..Self::default() }
    }

    /// Takes a report of a member of the running round.
    pub(crate) fn reported(
        &mut self,
        now: Moment,
        node: &NodeId,
        report: ProgressReport,
        world: &World,
    ) -> Vec<ProgressFinding> {
        if report.round != world.round {
            return Vec::new();
        }
        let Some(member) = world.members.iter().find(|member| member.node_id == *node) else {
            return Vec::new();
        };
        if self.round != Some(world.round) {
            let awaits_all = self.awaits_all && self.round.is_none();
            let has_declared = self.has_declared;
            let is_stalled = self.was_stalled == Some(world.round);
            *self =
                Self { round: Some(world.round), has_declared, awaits_all, is_stalled, ..Self::default() };
        }
        let workers = member.local_world_size;
        let ranks: Vec<RankProgress> =
            report.ranks.into_iter().filter(|rank| rank.local_rank.0 < workers).collect();
        self.has_declared |= ranks.iter().any(has_declared);
        self.nodes.insert(node.clone(), NodeProgress::new(now, ranks));
        self.judge(now, world)
    }

    /// Whether the present round's ranks are stalled, and which are slow.
    fn judge(&mut self, now: Moment, world: &World) -> Vec<ProgressFinding> {
        let mut findings = Vec::new();
        self.awaits_all &= world.members.iter().any(|member| !self.nodes.contains_key(&member.node_id));
        let is_stalled = match self.awaits_all {
            false => self.is_hang(),
            // Nothing is known of some ranks; but one that advances is enough.
            true => self.is_stalled && !self.has_advancing(),
        };
        match (self.is_stalled, is_stalled) {
            (false, true) => findings.push(ProgressFinding::Stalled { idle: self.idle(now) }),
            (true, false) => findings.push(ProgressFinding::Advanced),
            _ => {}
        }
        self.is_stalled = is_stalled;
        // Each report of thousands of nodes would compare all of them.
        if now >= self.next_comparison {
            self.next_comparison = now + COMPARISON_INTERVAL;
            findings.extend(self.find_slow(now, world));
        }
        findings
    }

    /// Some rank advances, or is busy by its own words.
    fn has_advancing(&self) -> bool {
        self.nodes.values().any(|node| node.has_advancing)
    }

    fn is_hang(&self) -> bool {
        let may_be_stalled =
            |node: &NodeProgress| node.has_stalled || (node.has_overdue && self.has_declared);
        !self.has_advancing() && self.nodes.values().any(may_be_stalled)
    }

    /// How long ago any rank advanced last.
    fn idle(&self, now: Moment) -> Duration {
        let stalled = self.nodes.values().flat_map(|node| {
            let may_be_stalled =
                |rank: &&RankProgress| matches!(rank.state, RankState::Stalled | RankState::Overdue);
            node.ranks.iter().filter(may_be_stalled).map(move |rank| (now - node.at) + rank.idle)
        });
        stalled.min().unwrap_or_default()
    }

    fn find_slow(&mut self, now: Moment, world: &World) -> Vec<ProgressFinding> {
        let rates = self.rates(world);
        let slow = slow_ranks(&rates);
        self.slow.retain(|rank, _| slow.contains_key(rank));
        let mut findings = Vec::new();
        for (rank, permille) in slow {
            let known = self.slow.entry(rank).or_insert(SlowRank { since: now, is_named: false });
            if !known.is_named && now >= known.since + SLOW_FOR {
                known.is_named = true;
                findings.push(ProgressFinding::Slow { rank: Rank(rank), permille });
            }
        }
        findings
    }

    /// Steps in 1000 s of the ranks that advance, by rank.
    fn rates(&self, world: &World) -> BTreeMap<u32, u64> {
        let mut rates = BTreeMap::new();
        for (first, node) in first_ranks(world).filter_map(|(first, id)| Some((first, self.nodes.get(id)?))) {
            let rated = node.ranks.iter().filter(|rank| rank.state == RankState::Advancing);
            rates.extend(rated.filter_map(|rank| Some((first + rank.local_rank.0, rank.steps_per_1000_s?))));
        }
        rates
    }

    /// The ranks of a member, for the status.
    pub(crate) fn status_of(&self, now: Moment, round: Round, node: &NodeId, first: u32) -> Vec<RankStatus> {
        let Some(known) = self.nodes.get(node).filter(|_| self.round == Some(round)) else {
            return Vec::new();
        };
        let status = |rank: &RankProgress| RankStatus {
            rank: first.saturating_add(rank.local_rank.0),
            state: rank.state,
            step: rank.step,
            steps_per_second: rank.steps_per_1000_s.map(|rate| rate as f64 / 1000.0),
            idle_seconds: (rank.idle + (now - known.at)).as_secs_f64(),
            slow: self.slow.get(&(first + rank.local_rank.0)).is_some_and(|slow| slow.is_named),
        };
        known.ranks.iter().map(status).collect()
    }
}

/// Without a number, too: only a rank that has declared progress is in one of these states, where nothing else counts;
/// and where more does, no rank is overdue.
fn has_declared(rank: &RankProgress) -> bool {
    rank.step.is_some() || matches!(rank.state, RankState::Advancing | RankState::Stalled)
}

/// The first rank of each member.
fn first_ranks(world: &World) -> impl Iterator<Item = (u32, &NodeId)> {
    world.members.iter().scan(0_u32, |next, member| {
        let first = *next;
        *next = next.saturating_add(member.local_world_size);
        Some((first, &member.node_id))
    })
}

/// The ranks whose peers are faster, with the ratio in thousandths.
fn slow_ranks(rates: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    if rates.len() < FEWEST_TO_COMPARE {
        return BTreeMap::new();
    }
    let mut sorted: Vec<u64> = rates.values().copied().collect();
    sorted.sort_unstable();
    // Of an even number the lower one, so that a half that is fast blames none of them.
    let median = sorted[(sorted.len() - 1) / 2];
    let ratio = |rate: u64| median.saturating_mul(1000) / rate.max(1);
    rates
        .iter()
        .map(|(rank, rate)| (*rank, ratio(*rate)))
        .filter(|(_, permille)| *permille >= SLOW_PERMILLE)
        .collect()
}

#[cfg(test)]
mod tests;
