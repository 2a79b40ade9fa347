//! The members of a round are checked before they are assigned, and those that fail are excluded.
//!
//! [`NetworkCheck`] decides on tests and verdicts; here its numbers become nodes, and its verdict decides which take
//! part ([`verdict`]).

mod cut;
mod fabric;
mod verdict;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::fabric::Fabric;
use super::{
    Effect, Job, Log, Phase,
    check_history::{Machine, STARTED_AGAIN},
    count,
};
use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound, Partner, Test},
    ids::NodeId,
    node::{JoinRequest, is_loopback},
    push::Push,
    taint_report::CheckedNode,
    topology::Place,
    world::reachable_address,
};

use diagnosis::{
    moment::Moment,
    network_check::{
        Effect as Step, Event as CheckEvent, FabricNames, LocalCheck, NetworkCheck, Probed, Subject,
    },
    rng::mix,
};

/// How long a node that refuses connections, or cannot be reached, is tried again. A node's port is open from its
/// join on, so this is for networks that come up late; a test that ends reports why it failed.
const CONNECT: Duration = Duration::from_millis(1500);

/// The members of a round while they are checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checking {
    /// The number of the check in the job.
    number: u32,
    /// By number.
    members: Vec<NodeId>,
    numbers: BTreeMap<NodeId, u32>,
    partners: Vec<Partner>,
    /// As they joined, for the report, which names lost nodes too.
    nodes: Vec<CheckedNode>,
    racks: Vec<String>,
    pods: Vec<String>,
    /// By number.
    machines: Vec<Machine>,
    /// Of those that went away unannounced: since when.
    lost: BTreeMap<Machine, Lost>,
    /// Machines on which launchers have joined since the check began.
    newcomers: BTreeSet<Machine>,
    check: NetworkCheck,
    seed: u64,
    timeout: Duration,
    /// The orders of this round that are not answered.
    orders: BTreeMap<u32, CheckOrder>,
}

/// Members on one machine that went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Lost {
    at: Moment,
    numbers: Vec<u32>,
}

/// The last check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastCheck {
    at: Moment,
    /// The nodes that passed.
    passed: BTreeSet<NodeId>,
    /// No workers have run since.
    is_unused: bool,
}

impl Job {
    /// Whether these nodes must be checked before they are assigned.
    pub(super) fn wants_check(&self, now: Moment, members: &[NodeId]) -> bool {
        let Some(terms) = self.terms.as_ref().and_then(|terms| terms.check.as_ref()) else { return false };
        let Some(last) = &self.last_check else { return true };
        let all_passed = members.iter().all(|member| last.passed.contains(member) && !self.is_unfit(member));
        let is_young = members.len() == last.passed.len() && now < last.at + terms.reuse_for;
        !all_passed || !(last.is_unused || is_young)
    }

    /// It reports a fault of its own: nodes test themselves by a clock of their own.
    fn is_unfit(&self, member: &NodeId) -> bool {
        let checked = self.nodes.get(member).and_then(|node| node.request.checked.as_ref());
        checked.is_some_and(|checked| checked.local.fault.is_some())
    }

    /// The workers of the checked nodes are about to run.
    pub(super) fn use_check(&mut self) {
        if let Some(last) = &mut self.last_check {
            last.is_unused = false;
        }
    }

    /// Begins a check of `members`, in the order of their ranks; `places` are theirs.
    pub(super) fn begin_check(
        &mut self,
        now: Moment,
        members: Vec<NodeId>,
        places: Vec<Option<Place>>,
    ) -> Vec<Effect> {
        let Some(terms) = self.terms.as_ref().and_then(|terms| terms.check.clone()) else {
            return Vec::new();
        };
        let Fabric { racks, pods, rack_names, pod_names } = Fabric::of(&places);
        let requests: Vec<_> =
            members.iter().filter_map(|member| self.nodes.get(member)).map(|node| &node.request).collect();
        let partners = self.partners(&members);
        let machines: Vec<Machine> = requests.iter().map(|request| Machine::of(request)).collect();
        let subjects = requests
            .iter()
            .zip(&machines)
            .zip(racks.iter().zip(&pods))
            .map(|((request, machine), (rack, pod))| Subject {
                rack: *rack,
                pod: *pod,
                seen_before: self.check_history.has(machine),
                local: match &request.checked {
                    Some(checked) => checked.local.clone(),
                    None => LocalCheck::default(),
                },
            })
            .collect();
        let number = self.checks;
        self.checks = self.checks.saturating_add(1);
        let seed = seed_of(self.name().map_or("", |name| &name.0), number);
        let mut policy = terms.policy(seed, self.policy.taint_guard_permille);
        let numbers = (0..).zip(&members).map(|(number, member)| (member.clone(), number)).collect();
        let count = count(members.len());
        let hangs = racks.into_iter().zip(pods).zip(&machines);
        let nodes =
            requests.iter().zip(&partners).zip(hangs).map(|((request, partner), (place, machine))| {
                let seen_before = self.check_history.has(machine);
                CheckedNode::new(request, partner.name.rank, partner.address.clone(), place, seen_before)
            });
        let nodes: Vec<CheckedNode> = nodes.collect();
        policy.names = FabricNames {
            nodes: (0..).zip(&nodes).map(|(number, node)| node.name(number)).collect(),
            racks: rack_names.clone(),
            pods: pod_names.clone(),
        };
        let (check, steps) = NetworkCheck::new(policy, now, subjects);
        self.phase = Phase::Checking(Box::new(Checking {
            number,
            members,
            numbers,
            partners,
            nodes,
            racks: rack_names,
            pods: pod_names,
            machines,
            lost: BTreeMap::new(),
            newcomers: BTreeSet::new(),
            check,
            seed,
            timeout: terms.deadlines.floor.min(CONNECT),
            orders: BTreeMap::new(),
        }));
        let mut effects = vec![Effect::Log(Log::Checking { check: number, nodes: count })];
        effects.extend(self.carry_out(now, steps));
        effects
    }

    /// The nodes' addresses, by number.
    pub(super) fn partners(&self, members: &[NodeId]) -> Vec<Partner> {
        let known = members.iter().filter_map(|member| self.nodes.get(member));
        let requests: Vec<_> = known.map(|node| &node.request).collect();
        let is_local_job = requests.iter().all(|request| is_loopback(&request.address));
        let partner = |(number, request): (u32, &&JoinRequest)| Partner {
            number,
            name: self.name_in(request),
            address: reachable_address(&request.address, &request.attributes.addresses, is_local_job),
            port: request.checked.as_ref().map_or(0, |checked| checked.port),
        };
        (0..).zip(&requests).map(partner).collect()
    }

    /// A node reports the result of its part in a round.
    pub(super) fn on_check_reported(
        &mut self,
        now: Moment,
        node: &NodeId,
        report: CheckReport,
    ) -> Vec<Effect> {
        if let Phase::Measuring(_) = self.phase {
            return self.on_measured(now, node, report);
        }
        let CheckReport { at, probed, compute } = report;
        let Some(number) = self.number_in(node, at) else { return Vec::new() };
        if let Phase::Checking(checking) = &mut self.phase
            && compute.is_some()
            && checking.orders.get(&number).is_some_and(|order| order.at == at)
        {
            checking.orders.remove(&number);
        }
        self.handle_check(now, CheckEvent::Reported { node: number, round: at.round, probed, compute })
    }

    /// A node reports progress of its part in a round.
    pub(super) fn on_check_progressed(
        &mut self,
        now: Moment,
        node: &NodeId,
        at: CheckRound,
        probed: Probed,
    ) -> Vec<Effect> {
        let Some(number) = self.number_in(node, at) else { return Vec::new() };
        self.handle_check(now, CheckEvent::Progressed { node: number, round: at.round, probed })
    }

    /// The master was restarted: the members come back, and then the check begins anew.
    pub(super) fn check_anew(&mut self, now: Moment) -> Vec<Effect> {
        let members = match &self.phase {
            Phase::Checking(checking) => &checking.members[..],
            Phase::Measuring(measuring) => measuring.members(),
            _ => return Vec::new(),
        };
        let awaited = members.iter().filter(|member| self.nodes.contains_key(*member)).cloned().collect();
        self.phase = Phase::gathering(now, awaited);
        Vec::new()
    }

    /// A node joins again: it may not have received its order.
    pub(super) fn repeat_order(&self, node: &NodeId) -> Vec<Effect> {
        let order = match &self.phase {
            Phase::Checking(checking) => {
                checking.numbers.get(node).and_then(|number| checking.orders.get(number))
            }
            Phase::Measuring(measuring) => measuring.order_of(node),
            _ => None,
        };
        order
            .map(|order| Effect::Push { node: node.clone(), push: Push::Check(order.clone()) })
            .into_iter()
            .collect()
    }

    pub(super) fn on_check_deadline(&mut self, now: Moment) -> Vec<Effect> {
        self.handle_check(now, CheckEvent::Deadline)
    }

    /// A member is gone; the check continues with the others. `is_excused`: nothing is wrong with its machine.
    pub(super) fn lost_in_check(
        &mut self,
        now: Moment,
        node: &NodeId,
        reason: &str,
        is_secondary: bool,
    ) -> Vec<Effect> {
        let Phase::Checking(checking) = &mut self.phase else { return Vec::new() };
        let Some(number) = checking.numbers.get(node).copied() else { return Vec::new() };
        checking.orders.remove(&number);
        let machine = checking.machines.get(number as usize).cloned();
        let (reason, is_announced) = match machine {
            _ if is_secondary => (reason, true),
            Some(machine) if checking.newcomers.contains(&machine) => (STARTED_AGAIN, true),
            Some(machine) => {
                let lost = checking.lost.entry(machine).or_insert(Lost { at: now, numbers: Vec::new() });
                lost.at = now;
                lost.numbers.push(number);
                (reason, false)
            }
            None => (reason, false),
        };
        self.handle_check(now, CheckEvent::NodeLost { node: number, reason: reason.to_owned(), is_announced })
    }

    fn number_in(&self, node: &NodeId, at: CheckRound) -> Option<u32> {
        let Phase::Checking(checking) = &self.phase else { return None };
        checking.numbers.get(node).copied().filter(|_| checking.number == at.check)
    }

    fn handle_check(&mut self, now: Moment, word: CheckEvent) -> Vec<Effect> {
        let Phase::Checking(checking) = &mut self.phase else { return Vec::new() };
        let steps = checking.check.handle(now, word);
        self.carry_out(now, steps)
    }

    fn carry_out(&mut self, now: Moment, steps: Vec<Step>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for step in steps {
            let Phase::Checking(checking) = &mut self.phase else { return effects };
            match step {
                Step::Start { round, groups, compute_again } => {
                    checking.send_orders(round, &groups, &compute_again);
                    if round > 0 {
                        let tests = count(groups.iter().filter(|group| group.members.len() > 1).count());
                        let check = checking.number;
                        effects.push(Effect::Log(Log::CheckRound { check, round, tests }));
                    }
                    effects.extend(checking.orders.iter().map(|(number, order)| Effect::Push {
                        node: checking.members[*number as usize].clone(),
                        push: Push::Check(order.clone()),
                    }));
                }
                Step::Cancel { round, nodes } => {
                    let at = CheckRound { check: checking.number, round };
                    let members = nodes.iter().filter_map(|number| checking.members.get(*number as usize));
                    effects.extend(
                        members.map(|node| Effect::Push { node: node.clone(), push: Push::CancelCheck(at) }),
                    );
                }
                Step::Finish(outcome) => effects.extend(self.on_check_over(now, *outcome)),
            }
        }
        effects
    }
}

impl Checking {
    pub(super) fn has(&self, node: &NodeId) -> bool {
        self.numbers.contains_key(node)
    }

    pub(super) fn node_rank_of(&self, node: &NodeId) -> Option<u32> {
        self.numbers.get(node).copied()
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.check.deadline()
    }

    /// A launcher has joined on this machine: the one that went away there was restarted.
    pub(super) fn machine_is_back(&mut self, machine: Machine) {
        for number in self.lost.remove(&machine).into_iter().flat_map(|lost| lost.numbers) {
            self.check.excuse(number, STARTED_AGAIN);
        }
        self.newcomers.insert(machine);
    }

    fn send_orders(&mut self, round: u32, groups: &[diagnosis::network_check::Group], again: &[(u32, u32)]) {
        let again: BTreeMap<u32, u32> = again.iter().copied().collect();
        let at = CheckRound { check: self.number, round };
        self.orders.clear();
        for group in groups {
            let seed = mix(self.seed ^ (u64::from(round) << 32) ^ u64::from(group.id));
            let size = group.members.len();
            if size < 2 {
                continue;
            }
            for (me, number) in group.members.iter().enumerate() {
                let compute_again = again.get(number).copied().unwrap_or_default();
                let others = group.members.iter().cycle().skip(me + 1).take(size - 1);
                let partners = others.filter_map(|it| self.partners.get(*it as usize)).cloned().collect();
                let order = CheckOrder {
                    at,
                    test: Test::Pair,
                    address: self
                        .partners
                        .get(*number as usize)
                        .map_or_else(String::new, |it| it.address.clone()),
                    me: count(me),
                    size: count(size),
                    partners,
                    seed,
                    compute_again,
                    timeout: self.timeout,
                };
                self.orders.insert(*number, order);
            }
        }
    }
}

/// Returns a seed for each check of each job (FNV-1a, then mixed).
fn seed_of(job: &str, check: u32) -> u64 {
    let bytes = job.bytes().chain(check.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash)
}
