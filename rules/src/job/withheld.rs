//! The end of a job that failed is withheld from its nodes until the failed node has said what its worker said last, so
//! that each of them can repeat it. Only for a moment: the workers of all nodes are to be stopped. A job without other nodes
//! waits as well, so that its status and its log end with the root cause.
//!
//! The failure itself is reported at once, and restarts wait for nothing; its detail follows when the output of the
//! worker is read. It is kept for the failure that ended the round, and believed of the node that reported it alone.
//!
//! Ranks fail one after the other within milliseconds: the second because the first is gone. The report of the second
//! may arrive first, so each report has its age, and the earliest failure is the root cause.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Effect, FAREWELL, Job, Log, Phase};
use crate::{
    ids::{NodeId, Round},
    node::NodeName,
    push::Push,
    root_cause::{FailureDetail, RootCause},
    verdict::{JobFailure, JobVerdict},
};
use diagnosis::moment::Moment;

/// How long the detail of a failure is waited for. Shorter than what a node waits that failed because of it:
/// [`crate::worker_group::ROOT_CAUSE_TIMEOUT`].
pub const DETAIL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the end is withheld at least where there are other nodes: the report of an earlier failure may be on its way.
/// Reports of failures that follow from each other were seen to pass each other within 10 ms on a busy host.
pub(super) const EARLIER_TIMEOUT: Duration = Duration::from_millis(50);

/// How long the end is withheld at least where the first failure lost a connection: the error of the peer that closed it
/// is on its way. Python needs some 50 ms from an exception to the end of the process.
pub(super) const CAUSE_TIMEOUT: Duration = Duration::from_millis(300);

/// Failures of other nodes that are kept for a comparison.
const MAX_LATER: usize = 64;

/// A report is believed to be at most so late.
const MAX_AGE: Duration = Duration::from_secs(2);

/// The failure that ended a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FirstFailure {
    pub(super) node: NodeName,
    pub(super) round: Round,
    pub(super) gives_up: bool,
    /// When the worker ended, by the clock of the master.
    at: Moment,
    /// When it was reported.
    reported: Moment,
    /// As its node reported it at once.
    reason: String,
    detail: Detail,
    /// The log of the master has it.
    is_logged: bool,
}

/// What is known of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Detail {
    /// Its node has nothing to say.
    None,
    /// Its node will say more until then.
    Awaited {
        until: Moment,
    },
    /// Its node was cut off before it said more. It may yet.
    Late,
    Known(Box<FailureDetail>),
}

impl Job {
    /// A failure as a node reports it.
    pub(super) fn first_failure_of(
        &self,
        now: Moment,
        node: &NodeId,
        round: Round,
        gives_up: bool,
        has_detail: bool,
        age: Duration,
    ) -> FirstFailure {
        let detail = if has_detail { Detail::Awaited { until: now + DETAIL_TIMEOUT } } else { Detail::None };
        let at = Moment::new(now.since_start().saturating_sub(age.min(MAX_AGE)));
        FirstFailure {
            node: self.name_of(node),
            round,
            gives_up,
            at,
            reported: now,
            reason: String::new(),
            detail,
            is_logged: false,
        }
    }

    /// Workers of a node fail, and the round ends.
    pub(super) fn fails_first(&mut self, failure: FirstFailure) {
        self.later_failures.clear();
        self.first_failure = Some(failure);
    }

    /// Workers of a node fail in a round that has ended with the failure of another one. That one may follow from this: if
    /// this was earlier, or if that one lost a connection and this did not.
    pub(super) fn fails_too(&mut self, node: &NodeId, failure: FirstFailure, reason: String) {
        let Some(first) = &self.first_failure else { return };
        let is_other = failure.round == first.round && failure.node.node_id != first.node.node_id;
        if !is_other || !self.node_ranks.contains_key(node) {
            return;
        }
        let mut failure = FirstFailure { reason, ..failure };
        if failure.at < first.at {
            // The end is withheld for the failure that was reported first, and no longer.
            if let (Detail::Awaited { .. }, Detail::Awaited { until }) = (&failure.detail, &first.detail) {
                failure.detail = Detail::Awaited { until: *until };
            }
            self.takes_first_place(failure);
        } else if self.later_failures.len() < MAX_LATER {
            self.later_failures.insert(node.clone(), failure);
        }
    }

    fn takes_first_place(&mut self, failure: FirstFailure) {
        let is_announced = self.is_end_announced();
        let Some(first) = self.first_failure.as_mut().filter(|_| !is_announced) else { return };
        // What is known of it may come later than that of the one before.
        if let (Phase::Over { withheld_until: Some(until), .. }, Detail::Awaited { until: detail }) =
            (&mut self.phase, &failure.detail)
        {
            *until = (*until).max((first.reported + DETAIL_TIMEOUT).min(*detail));
        }
        self.history.failed_earlier(failure.round, &failure.node, &failure.reason);
        let (node, reason) = (failure.node.clone(), failure.reason.clone());
        let replaced = std::mem::replace(first, FirstFailure { reported: first.reported, ..failure });
        self.later_failures.remove(&node.node_id);
        self.later_failures.insert(replaced.node.node_id.clone(), replaced);
        self.name_in_verdict(node, reason);
    }

    /// Where the first failure lost a connection, the first of the others that has an error of its own is the cause.
    /// Returns whether one is.
    fn find_cause(&mut self) -> bool {
        // What the nodes were told stays.
        if self.is_end_announced() {
            return false;
        }
        let known = self.first_failure.as_ref().map(|first| &first.detail);
        if !matches!(known, Some(Detail::Known(detail)) if detail.is_consequence()) {
            return false;
        }
        let has_own_error = |failure: &&FirstFailure| matches!(&failure.detail, Detail::Known(detail) if detail.is_own_error());
        let own_errors = self.later_failures.values().filter(has_own_error);
        let Some(cause) = own_errors.min_by_key(|failure| failure.at).cloned() else { return false };
        self.takes_first_place(cause);
        true
    }

    /// The job ends because of this node, after all.
    fn name_in_verdict(&mut self, name: NodeName, reason: String) {
        if let Phase::Over { verdict: JobVerdict::Failed(JobFailure::Node { node, reason: why }), .. } =
            &mut self.phase
        {
            (*node, *why) = (name, reason);
            let ended = self.end_in_words();
            self.history.round_ended_by(&ended);
        }
    }

    /// A node says what its worker said.
    pub(super) fn on_detail(
        &mut self,
        now: Moment,
        node: &NodeId,
        round: Round,
        detail: FailureDetail,
    ) -> Vec<Effect> {
        let Some(first) = &mut self.first_failure else {
            // The next round runs already.
            let failed = self.history.failure_without_detail(round, node);
            let root_cause = failed.map(|node| Box::new(RootCause { round, node: node.clone(), detail }));
            return root_cause.into_iter().map(|it| Effect::Log(Log::RootCause(it))).collect();
        };
        let is_of_it = first.node.node_id == *node && first.round == round;
        if !is_of_it {
            let later = self.later_failures.get_mut(node).filter(|later| later.round == round);
            if let Some(later) = later.filter(|later| matches!(later.detail, Detail::Awaited { .. })) {
                later.detail = Detail::Known(Box::new(detail));
            }
            if !self.find_cause() {
                return Vec::new();
            }
            let mut effects = self.log_root_cause();
            effects.extend(self.release(now));
            return effects;
        }
        if matches!(first.detail, Detail::None | Detail::Known(_)) {
            return Vec::new();
        }
        let wait = if detail.is_consequence() { CAUSE_TIMEOUT } else { EARLIER_TIMEOUT };
        first.detail = Detail::Known(Box::new(detail));
        let announced_from = first.reported + wait;
        let is_found = self.find_cause();
        match &mut self.phase {
            Phase::Over { withheld_until: Some(until), failed, .. }
                if now < announced_from && !failed.is_empty() && !is_found =>
            {
                *until = announced_from;
                Vec::new()
            }
            _ => {
                let mut effects = self.log_root_cause();
                effects.extend(self.release(now));
                effects
            }
        }
    }

    /// The first failure, for the log, once its detail is known.
    fn log_root_cause(&mut self) -> Vec<Effect> {
        let Some(first) = self.first_failure.as_mut().filter(|first| !first.is_logged) else {
            return Vec::new();
        };
        let Detail::Known(detail) = &first.detail else { return Vec::new() };
        let root_cause =
            RootCause { round: first.round, node: first.node.clone(), detail: (**detail).clone() };
        first.is_logged = true;
        vec![Effect::Log(Log::RootCause(Box::new(root_cause)))]
    }

    /// The stream of a node broke: nothing is withheld for it any more.
    pub(super) fn expect_no_detail_of(&mut self, now: Moment, node: &NodeId) -> Vec<Effect> {
        let Some(first) = self.first_failure.as_mut().filter(|first| first.node.node_id == *node) else {
            return Vec::new();
        };
        if let Detail::Awaited { .. } = first.detail {
            first.detail = Detail::Late;
            return self.release(now);
        }
        Vec::new()
    }

    /// Until when this end of the job is to be withheld.
    pub(super) fn awaited_detail(&self, now: Moment, verdict: &JobVerdict) -> Option<Moment> {
        let first = self.first_failure.as_ref().filter(|first| first.has_ended_with(verdict))?;
        match first.detail {
            Detail::Awaited { until } if now < until => Some(until),
            _ => None,
        }
    }

    /// All nodes are notified of the end now, if it was withheld from them. Without nodes the job is finished.
    pub(super) fn release(&mut self, now: Moment) -> Vec<Effect> {
        let Phase::Over { verdict, unaware, until, withheld_until, failed } = &mut self.phase else {
            return Vec::new();
        };
        if withheld_until.take().is_none() {
            return Vec::new();
        }
        let failed = std::mem::take(failed);
        if unaware.is_empty() {
            *until = None;
            let finish = Effect::Finish { verdict: verdict.clone() };
            let mut effects = self.log_root_cause();
            effects.extend(self.notify_of_end_all(&failed).chain([finish]));
            return effects;
        }
        *until = Some(now + FAREWELL);
        let mut effects = self.log_root_cause();
        effects.extend(self.notify_of_end_all(&failed));
        effects.extend(self.notify_all_of_end());
        effects
    }

    /// The job is over, and its end is not withheld.
    pub(super) fn is_end_announced(&self) -> bool {
        matches!(self.phase, Phase::Over { withheld_until: None, .. })
    }

    pub(super) fn notify_all_of_end(&self) -> Vec<Effect> {
        let Phase::Over { unaware, .. } = &self.phase else { return Vec::new() };
        self.notify_of_end_all(unaware).collect()
    }

    fn notify_of_end_all<'a>(&'a self, nodes: &'a BTreeSet<NodeId>) -> impl Iterator<Item = Effect> + 'a {
        nodes.iter().flat_map(|node| self.end_for(node))
    }

    /// A node comes after the end of the job.
    pub(super) fn notify_of_end(&mut self, node: &NodeId) -> Vec<Effect> {
        let Phase::Over { unaware, withheld_until, .. } = &mut self.phase else { return Vec::new() };
        unaware.insert(node.clone());
        if withheld_until.is_some() { Vec::new() } else { self.end_for(node) }
    }

    /// The root cause, if it is known, and the end.
    fn end_for(&self, node: &NodeId) -> Vec<Effect> {
        let Phase::Over { verdict, .. } = &self.phase else { return Vec::new() };
        // The node itself has all of it.
        let of_another = self.first_failure.as_ref().filter(|first| first.node.node_id != *node);
        let root_cause = of_another.and_then(|first| first.root_cause_of(verdict));
        let root_cause = root_cause.map(|it| Push::RootCause(Box::new(it)));
        let pushes = root_cause.into_iter().chain([Push::JobEnd(verdict.clone())]);
        pushes.map(|push| Effect::Push { node: node.clone(), push }).collect()
    }
}

impl FirstFailure {
    /// Whether the job ended like this because of it.
    fn has_ended_with(&self, verdict: &JobVerdict) -> bool {
        match verdict {
            JobVerdict::Failed(JobFailure::Node { node, .. } | JobFailure::Exhausted { node, .. }) => {
                node.node_id == self.node.node_id
            }
            // Its place was not taken.
            JobVerdict::Failed(JobFailure::TimedOut { losses, .. }) => self.gives_up && !losses.is_empty(),
            JobVerdict::Failed(
                JobFailure::MasterLeft { .. }
                | JobFailure::Stopped { .. }
                | JobFailure::Inconclusive { .. }
                | JobFailure::MassFailure { .. }
                | JobFailure::Cut { .. },
            )
            | JobVerdict::Succeeded => false,
        }
    }

    fn root_cause_of(&self, verdict: &JobVerdict) -> Option<RootCause> {
        let Detail::Known(detail) = &self.detail else { return None };
        let (node, detail) = (self.node.clone(), (**detail).clone());
        self.has_ended_with(verdict).then_some(RootCause { round: self.round, node, detail })
    }
}
