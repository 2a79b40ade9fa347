//! What follows from a check: which nodes take part, which leave, and whether the job continues. For cuts see `cut`.

use std::collections::BTreeSet;

use super::{Checking, LastCheck};
use crate::{
    check_order::CheckRound,
    check_terms::OnInconclusive,
    ids::{NodeId, RunId},
    job::{Effect, Gone, Job, Log, Phase, count},
    node::NodeName,
    push::Push,
    taint_report::TaintReport,
    verdict::{JobFailure, JobVerdict},
};
use diagnosis::{
    counted::named_and_more,
    exclusion::Exclusion,
    moment::Moment,
    network_check::{NodeFinding, NodeVerdict, Outcome},
};

/// The most nodes that a sentence names.
const NAMED: usize = 8;

impl Job {
    pub(in crate::job) fn on_check_over(&mut self, now: Moment, outcome: Outcome) -> Vec<Effect> {
        let gathering = Phase::gathering(now, BTreeSet::new());
        let Phase::Checking(checking) = std::mem::replace(&mut self.phase, gathering) else {
            return Vec::new();
        };
        self.remember(&checking, &outcome);
        let mut report = self.report(*checking, outcome);
        if self.relaunches_nodes_in_doubt() {
            let findings = report.outcome.nodes.iter_mut();
            findings.filter(|it| it.verdict == NodeVerdict::Inconclusive).for_each(|it| it.excluded = true);
        }
        // From here on members wait like any others, so that the end of the job reaches them.
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
        let message = summary(&report) + &self.cut_message(&report);
        let (mut passed, mut out) = (Vec::new(), Vec::new());
        for (number, member) in (0..).zip(members) {
            match Self::exclusion(&report, number) {
                _ if !self.nodes.contains_key(&member) => {}
                None => passed.push(member),
                Some(exclusion) => out.push((member, exclusion)),
            }
        }
        // All of them receive the reason before any of them may end the job.
        effects.extend(out.iter().map(|(node, exclusion)| Effect::Push {
            node: node.clone(),
            push: Push::Excluded(exclusion.clone()),
        }));
        for (node, exclusion) in out {
            effects.extend(self.leave_out(now, &node, exclusion));
            if let Phase::Over { .. } = self.phase {
                return effects;
            }
        }
        effects.extend(passed.iter().map(|node| Effect::Push {
            node: node.clone(),
            push: Push::CheckOver { message: message.clone() },
        }));
        effects.extend(self.warns_of_cut(&report, &passed));
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
        let Checking { number, mut nodes, racks, pods, .. } = checking;
        for node in &mut nodes {
            node.inventory = self.inventories.get(&node.id).cloned();
        }
        let job = self.terms.as_ref().map_or_else(|| RunId(String::new()), |it| it.run_id.clone());
        TaintReport { job, check: number, nodes, racks, pods, outcome }
    }

    /// What may be temporary is remembered for later checks.
    fn remember(&mut self, checking: &Checking, outcome: &Outcome) {
        let of_machines = || checking.machines.iter().zip(&outcome.nodes);
        for (machine, _) in of_machines().filter(|(_, finding)| finding.verdict == NodeVerdict::Healthy) {
            self.check_history.passed(machine);
        }
        for (machine, finding) in of_machines() {
            match (&finding.verdict, checking.lost.get(machine)) {
                (NodeVerdict::Flaky, _) => self.check_history.record_flaky(machine, checking.number),
                (NodeVerdict::Lost { .. }, Some(lost)) => {
                    self.check_history.record_lost(machine, checking.number, lost.at);
                }
                _ => {}
            }
        }
        self.check_history.trim();
    }

    fn why_check_fails_the_job(&self, report: &TaintReport) -> Option<JobFailure> {
        let guard = report.outcome.guard;
        let nodes = count(report.nodes.len());
        if guard.mass_failure {
            return Some(JobFailure::MassFailure { faults: guard.taints, limit: guard.limit, nodes });
        }
        if let Some(failure) = self.why_cut_fails_the_job(report) {
            return Some(failure);
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
        let in_doubt = report.outcome.nodes.iter().filter(|it| it.verdict == NodeVerdict::Inconclusive);
        let why =
            in_doubt.flat_map(|it| &it.evidence).next().map(|it| it.message.clone()).unwrap_or_default();
        Some(JobFailure::Inconclusive { named: unknown.into_iter().take(NAMED).collect(), of, nodes, why })
    }

    fn relaunches_nodes_in_doubt(&self) -> bool {
        let terms = self.terms.as_ref().and_then(|terms| terms.check.as_ref());
        terms.is_some_and(|terms| terms.on_inconclusive == OnInconclusive::Relaunch)
    }

    /// Why a node is excluded, if it is.
    fn exclusion(report: &TaintReport, number: u32) -> Option<Exclusion> {
        let finding = report.outcome.nodes.get(number as usize).filter(|finding| finding.excluded)?;
        let mut message: Vec<String> = finding.evidence.iter().map(|it| it.message.clone()).collect();
        if let NodeVerdict::LocalFault(fault) = &finding.verdict {
            message = vec![format!("{}: {}", fault.component, fault.reason)];
        }
        Some(Exclusion {
            verdict: finding.verdict.as_str().to_owned(),
            evidence: message.join("; "),
            look_at: finding.verdict.look_at().to_owned(),
            is_inconclusive: finding.verdict == NodeVerdict::Inconclusive,
        })
    }

    /// A node was excluded: its rank is free.
    fn leave_out(&mut self, now: Moment, node: &NodeId, exclusion: Exclusion) -> Vec<Effect> {
        if self.policy.host.as_ref() == Some(node) {
            let failure = JobFailure::Node { node: self.name_of(node), reason: exclusion.to_string() };
            self.remove(node);
            let mut effects = vec![Effect::Forget { node: node.clone() }];
            effects.extend(self.end(now, JobVerdict::Failed(failure)));
            return effects;
        }
        let gone = Gone::Excluded { verdict: exclusion.verdict.clone() };
        self.excluded.insert(node.clone(), exclusion);
        self.take_out(now, node, &gone)
    }

    /// Those that passed are assigned, unless others wait with which the job would be larger.
    pub(in crate::job) fn go_on_with(&mut self, now: Moment, mut passed: Vec<NodeId>) -> Vec<Effect> {
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

/// The message to those that passed.
fn summary(report: &TaintReport) -> String {
    let Outcome { rounds, nodes, took, network_untested, .. } = &report.outcome;
    let (left_out, left_out_names) = named(report, |node| node.excluded);
    let left_out_message = if left_out > 0 { format!("; excluded: {left_out_names}") } else { String::new() };
    if *network_untested {
        return format!(
            "network check: this node is healthy; the network was not tested: that requires two nodes{left_out_message}"
        );
    }
    let (in_doubt, in_doubt_names) =
        named(report, |node| !node.excluded && node.verdict == NodeVerdict::Inconclusive);
    let passed = nodes.len() - left_out - in_doubt;
    let facts =
        format!("{}, {:.2} s", diagnosis::counted::counted(rounds.len(), "check round"), took.as_secs_f64());
    let mut message = match passed {
        0 => format!("network check ended, but no node passed: {facts}"),
        _ => format!("network check passed: {}, {facts}", diagnosis::counted::counted(passed, "node")),
    };
    if in_doubt > 0 {
        message.push_str(&format!("; also admitted: {in_doubt_names}"));
    }
    message + &left_out_message
}

/// The number of nodes of such a verdict, and the first of them with theirs.
fn named(report: &TaintReport, is_so: impl Fn(&NodeFinding) -> bool) -> (usize, String) {
    let found: Vec<_> = (0..).zip(&report.outcome.nodes).filter(|(_, node)| is_so(node)).collect();
    let name = |(number, node): &(u32, &NodeFinding)| {
        format!("{} ({})", report.name(*number), node.verdict.as_str())
    };
    (found.len(), named_and_more(found.iter().take(NAMED).map(name), found.len()))
}
