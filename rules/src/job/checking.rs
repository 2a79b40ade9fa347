//! The members of a round are checked before they get their seats, and who must not take part leaves.
//!
//! What is tested and what follows from it is [`NetworkCheck`]'s; here its numbers become nodes, and its verdict
//! becomes who takes part.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Effect, Job, Log, Phase, count};
use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound, Partner, Test},
    check_terms::OnInconclusive,
    exclusion::Exclusion,
    ids::NodeId,
    moment::Moment,
    network_check::{
        Effect as Step, Event as Word, LocalCheck, NetworkCheck, NodeFinding, NodeVerdict, Outcome, Probed,
        Subject,
    },
    node::{JoinRequest, NodeName, is_loopback},
    taint_report::{CheckedNode, TaintReport},
    verdict::{JobFailure, JobVerdict},
    world::reachable_address,
};

/// How long a node that refuses connections, or cannot be reached, is tried again. A node's port is open from its
/// join on, so this is for networks that come up late; a test that ends by itself says why it failed.
const CONNECT: Duration = Duration::from_millis(1500);

/// Nodes that a failure names.
const NAMED: usize = 8;

/// The members of a round while they are checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checking {
    /// Which check of the job.
    number: u32,
    /// By number.
    members: Vec<NodeId>,
    numbers: BTreeMap<NodeId, u32>,
    partners: Vec<Partner>,
    racks: Vec<u32>,
    rack_names: Vec<String>,
    check: NetworkCheck,
    seed: u64,
    patience: Duration,
    /// What the nodes were told to do in the round that is on, and have not answered.
    orders: BTreeMap<u32, CheckOrder>,
}

/// The last check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastCheck {
    at: Moment,
    /// Who passed.
    passed: BTreeSet<NodeId>,
    /// No workers have run since.
    is_unused: bool,
}

impl Job {
    /// Whether these nodes must be checked before they get seats.
    pub(super) fn wants_check(&self, now: Moment, members: &[NodeId]) -> bool {
        let Some(terms) = self.terms.as_ref().and_then(|terms| terms.check.as_ref()) else { return false };
        let Some(last) = &self.last_check else { return true };
        let all_passed = members.iter().all(|member| last.passed.contains(member));
        let is_young = members.len() == last.passed.len() && now < last.at + terms.reuse_for;
        !all_passed || !(last.is_unused || is_young)
    }

    /// The workers of those that were checked are about to run.
    pub(super) fn use_check(&mut self) {
        if let Some(last) = &mut self.last_check {
            last.is_unused = false;
        }
    }

    /// Begins a check of `members`, in the order of their ranks; `switches` are those above them.
    pub(super) fn begin_check(
        &mut self,
        now: Moment,
        members: Vec<NodeId>,
        switches: Vec<Option<String>>,
    ) -> Vec<Effect> {
        let Some(terms) = self.terms.as_ref().and_then(|terms| terms.check.clone()) else {
            return Vec::new();
        };
        let (racks, rack_names) = racks(switches);
        let requests: Vec<_> =
            members.iter().filter_map(|member| self.nodes.get(member)).map(|node| &node.request).collect();
        let partners = self.partners(&members);
        let subjects = requests
            .iter()
            .zip(&racks)
            .map(|(request, rack)| Subject {
                rack: *rack,
                local: match &request.checked {
                    Some(checked) => checked.local.clone(),
                    None => LocalCheck { fault: None, compute: None },
                },
            })
            .collect();
        let number = self.checks;
        self.checks = self.checks.saturating_add(1);
        let seed = seed_of(self.name().map_or("", |name| &name.0), number);
        let policy = terms.policy(seed, self.policy.taint_guard_permille);
        let (check, steps) = NetworkCheck::new(policy, now, subjects);
        let numbers = (0..).zip(&members).map(|(number, member)| (member.clone(), number)).collect();
        let nodes = count(members.len());
        self.phase = Phase::Checking(Box::new(Checking {
            number,
            members,
            numbers,
            partners,
            racks,
            rack_names,
            check,
            seed,
            patience: terms.deadlines.floor.min(CONNECT),
            orders: BTreeMap::new(),
        }));
        let mut effects = vec![Effect::Log(Log::Checking { check: number, nodes })];
        effects.extend(self.carry_out(now, steps));
        effects
    }

    /// Nodes as others reach them, by number.
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

    /// What a node's part in a round came to.
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
        if let Phase::Checking(checking) = &mut self.phase {
            checking.orders.remove(&number);
        }
        self.tell_check(now, Word::Reported { node: number, round: at.round, probed, compute })
    }

    /// How far a node's part in a round has come.
    pub(super) fn on_check_progressed(
        &mut self,
        now: Moment,
        node: &NodeId,
        at: CheckRound,
        probed: Probed,
    ) -> Vec<Effect> {
        let Some(number) = self.number_in(node, at) else { return Vec::new() };
        self.tell_check(now, Word::Progressed { node: number, round: at.round, probed })
    }

    /// The master was started again: the members come back, and then the check begins anew.
    pub(super) fn check_anew(&mut self, now: Moment) -> Vec<Effect> {
        let members = match &self.phase {
            Phase::Checking(checking) => &checking.members[..],
            Phase::Measuring(measuring) => measuring.members(),
            _ => return Vec::new(),
        };
        let awaited = members.iter().filter(|member| self.nodes.contains_key(*member)).cloned().collect();
        self.phase = Phase::Gathering { since: Some(now), last_join: now, awaited };
        Vec::new()
    }

    /// A node says again that it wants a seat: it may not have heard what to do.
    pub(super) fn say_order_again(&self, node: &NodeId) -> Vec<Effect> {
        let order = match &self.phase {
            Phase::Checking(checking) => {
                checking.numbers.get(node).and_then(|number| checking.orders.get(number))
            }
            Phase::Measuring(measuring) => measuring.order_of(node),
            _ => None,
        };
        order.map(|order| Effect::Check { node: node.clone(), order: order.clone() }).into_iter().collect()
    }

    pub(super) fn on_check_deadline(&mut self, now: Moment) -> Vec<Effect> {
        self.tell_check(now, Word::Deadline)
    }

    /// A member is gone; the check goes on with the others.
    pub(super) fn lost_in_check(&mut self, now: Moment, node: &NodeId, reason: &str) -> Vec<Effect> {
        let Phase::Checking(checking) = &mut self.phase else { return Vec::new() };
        let Some(number) = checking.numbers.get(node).copied() else { return Vec::new() };
        checking.orders.remove(&number);
        self.tell_check(now, Word::NodeLost { node: number, reason: reason.to_owned() })
    }

    fn number_in(&self, node: &NodeId, at: CheckRound) -> Option<u32> {
        let Phase::Checking(checking) = &self.phase else { return None };
        checking.numbers.get(node).copied().filter(|_| checking.number == at.check)
    }

    fn tell_check(&mut self, now: Moment, word: Word) -> Vec<Effect> {
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
                    checking.give_orders(round, &groups, &compute_again);
                    effects.extend(checking.orders.iter().map(|(number, order)| Effect::Check {
                        node: checking.members[*number as usize].clone(),
                        order: order.clone(),
                    }));
                }
                Step::Cancel { round, group } => {
                    let at = CheckRound { check: checking.number, round };
                    let unanswered = checking
                        .orders
                        .keys()
                        .filter(|number| checking.check.group_of(**number).is_some_and(|it| it.id == group));
                    effects.extend(unanswered.map(|number| Effect::CancelCheck {
                        node: checking.members[*number as usize].clone(),
                        at,
                    }));
                }
                Step::Finish(outcome) => effects.extend(self.on_check_over(now, *outcome)),
            }
        }
        effects
    }

    fn on_check_over(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        let gathering = Phase::Gathering { since: Some(now), last_join: now, awaited: BTreeSet::new() };
        let Phase::Checking(checking) = std::mem::replace(&mut self.phase, gathering) else {
            return Vec::new();
        };
        let mut report = self.report(*checking, outcome);
        if self.relaunches_who_is_in_doubt() {
            let findings = report.outcome.nodes.iter_mut();
            findings.filter(|it| it.verdict == NodeVerdict::Inconclusive).for_each(|it| it.excluded = true);
        }
        // From here on members wait like anybody else, so that whatever ends the job reaches them.
        let members: Vec<NodeId> = report.nodes.iter().map(|node| node.id.clone()).collect();
        self.waiting.extend(members.iter().filter(|member| self.nodes.contains_key(*member)).cloned());
        let mut effects = vec![
            Effect::Log(Log::Checked { report: report.to_string() }),
            Effect::Report(Box::new(report.clone())),
        ];
        if let Some(failure) = self.why_check_fails_the_job(&report) {
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
            return effects;
        }
        let words = summary(&report);
        let mut passed = Vec::new();
        for (number, member) in (0..).zip(members) {
            if !self.nodes.contains_key(&member) {
                continue;
            }
            match Self::exclusion(&report, number) {
                None => passed.push(member),
                Some(exclusion) => effects.extend(self.exclude(now, &member, exclusion)),
            }
            if let Phase::Over { .. } = self.phase {
                return effects;
            }
        }
        effects
            .extend(passed.iter().map(|node| Effect::CheckOver { node: node.clone(), words: words.clone() }));
        let passed_set = passed.iter().cloned().collect();
        self.last_check = Some(LastCheck { at: now, passed: passed_set, is_unused: true });
        if self.wants_bandwidth(&passed) {
            let at = CheckRound { check: report.check, round: count(report.outcome.rounds.len()) };
            effects.extend(self.begin_measuring(now, at, passed));
        } else {
            effects.extend(self.go_on_with(now, passed));
        }
        effects
    }

    fn report(&self, checking: Checking, outcome: Outcome) -> TaintReport {
        let Checking { number, members, partners, racks, rack_names, .. } = checking;
        let nodes = members.iter().zip(&partners).zip(racks).map(|((member, partner), rack)| {
            match self.nodes.get(member) {
                Some(node) => {
                    let rank = self.name_in(&node.request).rank;
                    CheckedNode::new(&node.request, rank, partner.address.clone(), rack)
                }
                None => CheckedNode {
                    id: member.clone(),
                    rank: partner.name.rank,
                    host: partner.name.host.clone(),
                    ip: partner.address.clone(),
                    k8s_node: None,
                    pod: None,
                    rack,
                },
            }
        });
        TaintReport {
            job: self.terms.as_ref().map_or_else(|| crate::RunId(String::new()), |it| it.run_id.clone()),
            check: number,
            nodes: nodes.collect(),
            racks: rack_names,
            outcome,
        }
    }

    fn why_check_fails_the_job(&self, report: &TaintReport) -> Option<JobFailure> {
        let guard = report.outcome.guard;
        let nodes = count(report.nodes.len());
        if guard.mass_failure {
            return Some(JobFailure::MassFailure { faults: guard.taints, limit: guard.limit, nodes });
        }
        let policy = self.terms.as_ref()?.check.as_ref()?.on_inconclusive;
        let unknown: Vec<NodeName> = report
            .nodes
            .iter()
            .zip(&report.outcome.nodes)
            .filter(|(_, finding)| finding.verdict == NodeVerdict::Inconclusive)
            .map(|(node, _)| self.name_of(&node.id))
            .collect();
        if policy != OnInconclusive::Fail || unknown.is_empty() {
            return None;
        }
        let of = count(unknown.len());
        Some(JobFailure::Inconclusive { named: unknown.into_iter().take(NAMED).collect(), of, nodes })
    }

    fn relaunches_who_is_in_doubt(&self) -> bool {
        let terms = self.terms.as_ref().and_then(|terms| terms.check.as_ref());
        terms.is_some_and(|terms| terms.on_inconclusive == OnInconclusive::Relaunch)
    }

    /// Why a node must not take part, if it must not.
    fn exclusion(report: &TaintReport, number: u32) -> Option<Exclusion> {
        let finding = report.outcome.nodes.get(number as usize).filter(|finding| finding.excluded)?;
        let mut words: Vec<String> = finding.evidence.iter().map(|it| it.words.clone()).collect();
        let partners: BTreeSet<u32> = finding.evidence.iter().flat_map(|it| it.partners.clone()).collect();
        let partners: Vec<String> = partners.into_iter().take(NAMED).map(|it| report.name(it)).collect();
        if !partners.is_empty() {
            words.push(format!("it was tested with {}", partners.join(", ")));
        }
        if let NodeVerdict::LocalFault(fault) = &finding.verdict {
            words = vec![format!("{}: {}", fault.component, fault.reason)];
        }
        Some(Exclusion {
            verdict: finding.verdict.word().to_owned(),
            evidence: words.join("; "),
            look_at: finding.verdict.look_at().to_owned(),
            is_inconclusive: finding.verdict == NodeVerdict::Inconclusive,
        })
    }

    /// A node is told to leave, and its rank is free.
    fn exclude(&mut self, now: Moment, node: &NodeId, exclusion: Exclusion) -> Vec<Effect> {
        let mut effects = vec![Effect::Exclude { node: node.clone(), exclusion: exclusion.clone() }];
        if self.policy.host.as_ref() == Some(node) {
            let failure = JobFailure::Node { node: self.name_of(node), reason: exclusion.to_string() };
            self.remove(node);
            effects.push(Effect::Forget { node: node.clone() });
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
            return effects;
        }
        self.excluded.insert(node.clone(), exclusion.clone());
        let reason = format!("the network check calls it {}", exclusion.verdict);
        effects.extend(self.take_out(now, node, &reason));
        effects
    }

    /// Those that passed get their seats, unless others wait with whom the job would be larger.
    pub(super) fn go_on_with(&mut self, now: Moment, mut passed: Vec<NodeId>) -> Vec<Effect> {
        let Some(terms) = &self.terms else { return Vec::new() };
        let (ours, all) = (terms.world_of(passed.len()), terms.world_of(self.waiting.len()));
        let Some(size) = ours.filter(|_| all <= ours) else { return self.complete(now) };
        passed.truncate(size as usize);
        for member in &passed {
            self.waiting.remove(member);
        }
        self.phase = Phase::Placing { members: passed, until: now };
        self.place(now)
    }
}

impl Checking {
    pub(super) fn has(&self, node: &NodeId) -> bool {
        self.numbers.contains_key(node)
    }

    pub(super) fn seat_of(&self, node: &NodeId) -> Option<u32> {
        self.numbers.get(node).copied()
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.check.deadline()
    }

    fn give_orders(&mut self, round: u32, groups: &[crate::network_check::Group], again: &[(u32, u32)]) {
        let again: BTreeMap<u32, u32> = again.iter().copied().collect();
        let at = CheckRound { check: self.number, round };
        self.orders.clear();
        for group in groups {
            let seed = mix(self.seed ^ (u64::from(round) << 32) ^ u64::from(group.id));
            let size = group.members.len();
            for (me, number) in group.members.iter().enumerate() {
                let compute_again = again.get(number).copied().unwrap_or_default();
                if size < 2 && compute_again == 0 {
                    continue;
                }
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
                    patience: self.patience,
                };
                self.orders.insert(*number, order);
            }
        }
    }
}

/// What those that passed are told.
fn summary(report: &TaintReport) -> String {
    let Outcome { rounds, nodes, took, network_untested, .. } = &report.outcome;
    if *network_untested {
        return "network check: this node is fit; the network was not tested, which takes two nodes".into();
    }
    let (left_out, left_out_names) = named(report, |node| node.excluded);
    let (in_doubt, in_doubt_names) =
        named(report, |node| !node.excluded && node.verdict == NodeVerdict::Inconclusive);
    let mut words = format!(
        "network check passed: {} node(s), {} round(s), {:.2} s",
        nodes.len() - left_out - in_doubt,
        rounds.len(),
        took.as_secs_f64()
    );
    if in_doubt > 0 {
        words.push_str(&format!("; take part all the same: {in_doubt_names}"));
    }
    if left_out > 0 {
        words.push_str(&format!("; left out: {left_out_names}"));
    }
    words
}

/// How many of the nodes are so, and the first of them with their verdicts.
fn named(report: &TaintReport, is_so: impl Fn(&NodeFinding) -> bool) -> (usize, String) {
    let found: Vec<_> = (0..).zip(&report.outcome.nodes).filter(|(_, node)| is_so(node)).collect();
    let name =
        |(number, node): &(u32, &NodeFinding)| format!("{} ({})", report.name(*number), node.verdict.word());
    let mut names = found.iter().take(NAMED).map(name).collect::<Vec<_>>().join(", ");
    if found.len() > NAMED {
        names.push_str(&format!(" and {} more", found.len() - NAMED));
    }
    (found.len(), names)
}

/// Racks as numbers, in the order of their appearance. Nodes of unknown place share one.
fn racks(switches: Vec<Option<String>>) -> (Vec<u32>, Vec<String>) {
    let is_known = switches.iter().any(Option::is_some);
    let mut names: Vec<String> = Vec::new();
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    let racks = switches.into_iter().map(|switch| {
        let name = switch.unwrap_or_else(|| "unlisted".to_owned());
        *numbers.entry(name.clone()).or_insert_with(|| {
            names.push(name);
            count(names.len() - 1)
        })
    });
    let racks = racks.collect();
    (racks, if is_known { names } else { Vec::new() })
}

/// A seed for each check of each job (FNV-1a, then mixed).
fn seed_of(job: &str, check: u32) -> u64 {
    let bytes = job.bytes().chain(check.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash)
}

/// The finaliser of splitmix64: near inputs, far outputs.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
