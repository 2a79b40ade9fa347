//! After a check, the bandwidth of all nodes together: one ring of all-reduces. Information only; no node is judged
//! by it.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Effect, Gone, Job, Log, Phase, count};
use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound, Partner, Test},
    ids::NodeId,
    push::Push,
};

use diagnosis::{counted::named_and_more, moment::Moment, network_check::Probed, rng::mix};

/// The size of the sum: 2^24 numbers of 4 bytes, as in DLRover's own test.
const BYTES: u64 = 64 << 20;

/// The most nodes that a message names.
const NAMED: usize = 8;

/// The members of a round while their bandwidth is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Measuring {
    at: CheckRound,
    members: Vec<NodeId>,
    places: BTreeMap<NodeId, u32>,
    /// The orders that are not answered, by place in `members`.
    orders: BTreeMap<u32, CheckOrder>,
    /// The longest median of a node.
    slowest: Duration,
    /// The first failure.
    failure: Option<String>,
    until: Moment,
    limit: Duration,
    /// From the cancellation to its end.
    timeout: Option<Duration>,
}

impl Job {
    /// Whether the bandwidth of the nodes that passed is to be measured.
    pub(super) fn wants_bandwidth(&self, passed: &[NodeId]) -> bool {
        let terms = self.terms.as_ref().and_then(|terms| terms.check.as_ref());
        passed.len() > 1 && terms.is_some_and(|terms| terms.measures_bandwidth)
    }

    /// Begins. `at` is a round that the check did not have.
    pub(super) fn begin_measuring(
        &mut self,
        now: Moment,
        at: CheckRound,
        members: Vec<NodeId>,
    ) -> Vec<Effect> {
        let Some(terms) = self.terms.as_ref().and_then(|terms| terms.check.as_ref()) else {
            return Vec::new();
        };
        let (hard, grace) = (terms.deadlines.hard, terms.deadlines.kill_grace);
        for member in &members {
            self.waiting.remove(member);
        }
        let partners = self.partners(&members);
        let seed = mix((u64::from(at.check) << 32) | u64::from(at.round));
        let order = |(me, partner): (usize, &Partner)| {
            let next = partners[(me + 1) % partners.len()].clone();
            let order = CheckOrder {
                at,
                test: Test::AllReduce { bytes: BYTES },
                address: partner.address.clone(),
                me: count(me),
                size: count(partners.len()),
                partners: vec![next],
                seed,
                compute_again: 0,
                timeout: hard,
            };
            (count(me), order)
        };
        let orders: BTreeMap<u32, CheckOrder> = partners.iter().enumerate().map(order).collect();
        let effects = orders.iter().map(|(place, order)| Effect::Push {
            node: members[*place as usize].clone(),
            push: Push::Check(order.clone()),
        });
        let effects = effects.collect();
        self.phase = Phase::Measuring(Box::new(Measuring {
            at,
            places: members.iter().cloned().zip(0..).collect(),
            members,
            orders,
            slowest: Duration::ZERO,
            failure: None,
            until: now + hard,
            limit: hard,
            timeout: Some(grace * 2),
        }));
        effects
    }

    pub(super) fn on_measured(&mut self, now: Moment, node: &NodeId, report: CheckReport) -> Vec<Effect> {
        let name = self.name_of(node);
        let Phase::Measuring(measuring) = &mut self.phase else { return Vec::new() };
        let Some(place) = measuring.place_of(node).filter(|_| measuring.at == report.at) else {
            return Vec::new();
        };
        if measuring.orders.remove(&place).is_none() {
            return Vec::new();
        }
        let limit = measuring.limit.as_secs();
        let failure = match report.probed {
            Probed::Passed { comm, .. } => {
                measuring.slowest = measuring.slowest.max(comm);
                None
            }
            Probed::Failed { reason } => Some(format!("{name}: {reason}")),
            Probed::Unfinished { .. } => {
                Some(format!("{name} did not finish within {limit} s (network-check-timeout)"))
            }
        };
        measuring.failure = measuring.failure.take().or(failure);
        self.end_if_measured(now)
    }

    /// A member is gone, and the ring with it: the others end theirs by themselves, or are cancelled in time.
    pub(super) fn lost_in_measuring(&mut self, now: Moment, node: &NodeId, gone: &Gone) -> Vec<Effect> {
        let name = self.name_of(node);
        let Phase::Measuring(measuring) = &mut self.phase else { return Vec::new() };
        let Some(place) = measuring.place_of(node) else { return Vec::new() };
        measuring.orders.remove(&place);
        measuring.failure.get_or_insert_with(|| format!("{name} {gone}"));
        self.end_if_measured(now)
    }

    pub(super) fn on_measuring_deadline(&mut self, now: Moment) -> Vec<Effect> {
        let late = self.late_in_measuring();
        let Phase::Measuring(measuring) = &mut self.phase else { return Vec::new() };
        let Some(timeout) = measuring.timeout.take() else {
            measuring.failure.get_or_insert_with(|| format!("no answer from {late}"));
            measuring.orders.clear();
            return self.end_if_measured(now);
        };
        measuring.until = now + timeout;
        let at = measuring.at;
        let late = measuring.orders.keys().map(|place| measuring.members[*place as usize].clone());
        late.map(|node| Effect::Push { node, push: Push::CancelCheck(at) }).collect()
    }

    /// The names of the nodes that have not answered, a few of them.
    fn late_in_measuring(&self) -> String {
        let Phase::Measuring(measuring) = &self.phase else { return String::new() };
        let late = measuring.orders.keys().filter_map(|place| measuring.members.get(*place as usize));
        named_and_more(late.take(NAMED).map(|node| self.name_of(node)), measuring.orders.len())
    }

    fn end_if_measured(&mut self, now: Moment) -> Vec<Effect> {
        let gathering = Phase::gathering(now, Default::default());
        let Phase::Measuring(measuring) = &self.phase else { return Vec::new() };
        if !measuring.orders.is_empty() {
            return Vec::new();
        }
        let message = measuring.message();
        let Phase::Measuring(measuring) = std::mem::replace(&mut self.phase, gathering) else {
            return Vec::new();
        };
        let left: Vec<NodeId> =
            measuring.members.into_iter().filter(|member| self.nodes.contains_key(member)).collect();
        self.waiting.extend(left.iter().cloned());
        let mut effects = vec![Effect::Log(Log::Checked { report: message.clone() })];
        effects.extend(left.iter().map(|node| Effect::Push {
            node: node.clone(),
            push: Push::CheckOver { message: message.clone() },
        }));
        effects.extend(self.go_on_with(now, left));
        effects
    }
}

impl Measuring {
    pub(super) fn deadline(&self) -> Moment {
        self.until
    }

    pub(super) fn place_of(&self, node: &NodeId) -> Option<u32> {
        self.places.get(node).copied()
    }

    pub(super) fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// The order of a member that joins again.
    pub(super) fn order_of(&self, node: &NodeId) -> Option<&CheckOrder> {
        self.orders.get(&self.place_of(node)?)
    }

    fn message(&self) -> String {
        let nodes = count(self.members.len());
        if let Some(failure) = &self.failure {
            return format!("bandwidth of {nodes} nodes not measured: {failure}");
        }
        let seconds = self.slowest.as_secs_f64().max(f64::MIN_POSITIVE);
        let megabytes = f64::from(u32::try_from(BYTES >> 20).unwrap_or(u32::MAX)) * 1.048_576;
        let algorithm = megabytes / seconds;
        // Every byte of an all-reduce by a ring crosses 2 (n - 1) / n links.
        let bus = algorithm * 2.0 * f64::from(nodes - 1) / f64::from(nodes);
        format!(
            "bandwidth of {nodes} nodes: all-reduce of {megabytes:.1} MB in {:.1} ms, algorithm bandwidth \
             {algorithm:.1} MB/s, bus bandwidth {bus:.1} MB/s",
            seconds * 1000.0
        )
    }
}
