//! A round's members are checked before they are assigned. [`Ring::broken`] has the broken nodes.

mod cuts;
mod memory;

use super::*;
use crate::{
    check_order::{CheckOrder, CheckReport, CheckRound, Checked, Test as What},
    check_terms::{CheckTerms, OnInconclusive},
    taint_report::TaintReport,
};
use diagnosis::network_check::{Deadlines, LocalCheck, LocalFault, NodeVerdict, OnBadPath, Probed, Tainting};

fn check() -> CheckTerms {
    CheckTerms {
        exclude_straggler: false,
        straggler_permille: 2000,
        max_rounds: 8,
        deadlines: Deadlines::native(),
        has_command: false,
        measures_bandwidth: false,
        reuse_for: Duration::ZERO,
        on_inconclusive: OnInconclusive::Fail,
        taint_flaky: Tainting::Confirmed,
        on_bad_path: OnBadPath::Exclude,
    }
}

fn checked(min: u32, max: u32) -> Terms {
    Terms { check: Some(check()), ..terms(min, max) }
}

/// A job whose nodes answer their orders.
struct Ring {
    test: Test,
    broken: Vec<&'static str>,
    orders: Vec<(NodeId, CheckOrder)>,
    reports: Vec<TaintReport>,
    seen: Vec<Effect>,
}

impl Ring {
    fn new(policy: Policy, terms: Terms, broken: &[&'static str]) -> Self {
        let test = Test::new(policy, terms);
        Self { test, broken: broken.to_vec(), orders: Vec::new(), reports: Vec::new(), seen: Vec::new() }
    }

    fn request(&self, name: &str, after: Option<u32>) -> JoinRequest {
        let local = LocalCheck { compute: Some(Duration::from_millis(20).into()), ..LocalCheck::default() };
        JoinRequest {
            checked: Some(Checked { local, port: 1000 }),
            after: after.map(Round),
            ..request(name, &self.test.terms)
        }
    }

    fn join(&mut self, name: &str) {
        let request = self.request(name, None);
        self.send(Event::Joined(request));
    }

    /// Sends it, and what follows from it, until no message is left.
    fn send(&mut self, event: Event) {
        let effects = self.test.send(event);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Push { node, push: Push::Check(order) } => self.orders.push((node, order)),
                Effect::Report(report) => self.reports.push(*report),
                Effect::Log(_) => {}
                other => self.seen.push(other),
            }
        }
    }

    /// Every node carries out its orders, until there are none.
    fn work(&mut self) {
        while self.work_one() {}
    }

    fn work_one(&mut self) -> bool {
        let Some((node, order)) = self.orders.pop() else { return false };
        self.test.now = self.test.now + Duration::from_millis(1);
        let is_broken = |it: &NodeId| self.broken.contains(&&*it.0);
        let fails = is_broken(&node) || order.partners.iter().any(|it| is_broken(&it.name.node_id));
        let probed = match fails {
            true => Probed::Failed { reason: "connection refused".into() },
            false => passed(),
        };
        let report = CheckReport { at: order.at, probed, compute: Some(Vec::new()) };
        self.send(Event::CheckReported { node, report });
        true
    }

    fn verdicts(&self) -> Vec<(String, NodeVerdict, bool)> {
        let report = self.reports.last().expect("no check is over");
        let nodes = report.nodes.iter().zip(&report.outcome.nodes);
        nodes.map(|(node, it)| (node.id.0.clone(), it.verdict.clone(), it.tainted)).collect()
    }

    fn excluded(&self) -> Vec<&str> {
        let excluded = self.seen.iter().filter_map(|effect| match effect {
            Effect::Push { node, push: Push::Excluded(_) } => Some(&*node.0),
            _ => None,
        });
        excluded.collect()
    }

    fn host(&self) -> Option<(&str, u32)> {
        self.seen.iter().rev().find_map(|effect| match effect {
            Effect::Push { node, push: Push::Host { round, .. } } => Some((&*node.0, round.0)),
            _ => None,
        })
    }

    fn end(&self) -> Option<JobFailure> {
        match self.test.job.verdict()? {
            JobVerdict::Failed(failure) => Some(failure.clone()),
            JobVerdict::Succeeded => None,
        }
    }
}

fn passed() -> Probed {
    Probed::Passed {
        comm: Duration::from_millis(10),
        latency: Duration::from_micros(50),
        bytes_per_second: 1_000_000_000,
    }
}

#[test]
fn healthy_nodes_are_assigned_after_one_round() {
    let mut ring = Ring::new(policy(), checked(4, 4), &[]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    assert_eq!(ring.orders.len(), 4);
    assert_eq!(ring.host(), None, "no node hosts before the check is over");
    ring.work();
    assert_eq!(ring.reports.len(), 1);
    assert_eq!(ring.reports[0].outcome.rounds.len(), 1);
    assert!(ring.verdicts().iter().all(|(_, verdict, _)| *verdict == NodeVerdict::Healthy));
    let told =
        ring.seen.iter().filter(|it| matches!(it, Effect::Push { push: Push::CheckOver { .. }, .. })).count();
    assert_eq!((told, ring.host()), (4, Some(("a", 0))));
}

#[test]
fn a_broken_node_leaves_and_enough_others_continue() {
    let mut ring = Ring::new(policy(), checked(3, 4), &["c"]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    ring.work();
    assert_eq!(ring.excluded(), ["c"]);
    assert_eq!(ring.host(), Some(("a", 0)));
    assert!(!ring.test.job.knows(&id("c")));
    assert_eq!(ring.verdicts()[2], ("c".into(), NodeVerdict::Fault, true));
    assert_eq!(ring.test.hosted("a", 0).len(), 3, "three assignments, and no second check");
}

#[test]
fn with_too_few_left_the_job_waits_and_checks_the_replacement_with_the_others() {
    let mut ring = Ring::new(policy(), checked(4, 4), &["c"]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    ring.work();
    assert_eq!((ring.excluded(), ring.host()), (vec!["c"], None));
    ring.join("e");
    assert_eq!(ring.orders.len(), 4, "the replacement is checked, and those that it is checked with");
    ring.work();
    assert_eq!(ring.reports.len(), 2);
    assert_eq!(ring.host(), Some(("a", 0)));
}

#[test]
fn an_excluded_node_is_notified_again_until_it_acknowledges() {
    let mut ring = Ring::new(policy(), checked(3, 4), &["c"]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    ring.work();
    ring.join("c");
    assert_eq!(ring.excluded(), ["c", "c"]);
    assert!(!ring.test.job.knows(&id("c")));
}

#[test]
fn a_node_with_a_fault_of_its_own_is_not_tested() {
    let mut ring = Ring::new(policy(), checked(2, 3), &[]);
    ring.join("a");
    ring.join("b");
    let mut request = ring.request("c", None);
    let fault = LocalFault::new("GPU 3", "it computes wrong sums");
    request.checked.as_mut().unwrap().local.fault = Some(fault.clone());
    ring.send(Event::Joined(request));
    assert_eq!(ring.orders.len(), 2);
    ring.work();
    assert_eq!(ring.excluded(), ["c"]);
    assert_eq!(ring.verdicts()[2].1, NodeVerdict::LocalFault(fault));
    assert_eq!(ring.host(), Some(("a", 0)));
}

#[test]
fn two_nodes_that_fail_together_end_the_job_untainted_by_default() {
    let of = |on_inconclusive| {
        let check = Some(CheckTerms { on_inconclusive, ..check() });
        let mut ring = Ring::new(policy(), Terms { check, ..terms(2, 2) }, &["b"]);
        ring.join("a");
        ring.join("b");
        ring.work();
        assert!(ring.verdicts().iter().all(|it| it.1 == NodeVerdict::Inconclusive && !it.2));
        ring
    };
    let failed = of(OnInconclusive::Fail);
    let Some(JobFailure::Inconclusive { of: 2, nodes: 2, why, .. }) = failed.end() else { panic!() };
    assert_eq!(
        why,
        "failed with node number 1 (host-b, 10.0.0.2), which is also unverified: connection refused"
    );
    let left_out = |ring: &Ring| ring.reports[0].outcome.nodes.iter().filter(|it| it.excluded).count();
    assert_eq!(left_out(&failed), 0);
    let proceeds = of(OnInconclusive::Proceed);
    assert_eq!((proceeds.host(), proceeds.excluded()), (Some(("a", 0)), vec![]));
    assert_eq!(left_out(&proceeds), 0);
    let message = proceeds.seen.iter().find_map(|effect| match effect {
        Effect::Push { push: Push::CheckOver { message }, .. } => Some(&**message),
        _ => None,
    });
    let message = message.expect("they are told");
    assert!(message.starts_with("network check ended, but no node passed: 1 check round, "), "{message}");
    assert!(
        message.contains("; also admitted: node number 0 (") && message.contains(") (inconclusive)"),
        "{message}"
    );
    let relaunched = of(OnInconclusive::Relaunch);
    assert_eq!((relaunched.excluded(), relaunched.end()), (vec!["a", "b"], None));
    assert_eq!(left_out(&relaunched), 2, "the report has the excluded nodes");
}

#[test]
fn when_most_nodes_are_broken_none_is_tainted_and_the_job_fails() {
    let mut ring = Ring::new(policy(), checked(2, 6), &["c", "d", "e", "f"]);
    for name in ["a", "b", "c", "d", "e", "f"] {
        ring.join(name);
    }
    ring.work();
    assert!(matches!(ring.end(), Some(JobFailure::MassFailure { faults: 4, limit: 2, nodes: 6 })));
    assert!(ring.verdicts().iter().all(|it| !it.2));
    assert_eq!(ring.excluded(), [""; 0]);
}

#[test]
fn a_single_node_is_not_tested() {
    let mut ring = Ring::new(policy(), checked(1, 1), &[]);
    ring.join("a");
    assert!(ring.orders.is_empty() && ring.reports[0].outcome.network_untested);
    assert_eq!(ring.host(), Some(("a", 0)));
}

#[test]
fn a_restart_is_checked_again_unless_the_last_check_is_young_and_of_the_same_nodes() {
    for (reuse_for, checks) in [(0, 2), (60, 1)] {
        let check = Some(CheckTerms { reuse_for: Duration::from_secs(reuse_for), ..check() });
        let mut ring = Ring::new(policy(), Terms { check, ..terms(2, 2) }, &[]);
        ring.join("a");
        ring.join("b");
        ring.work();
        assert_eq!(ring.test.hosted("a", 0).len(), 2);
        let _ = ring.test.workers_fail("a", 0, false);
        for name in ["a", "b"] {
            let request = ring.request(name, Some(0));
            ring.send(Event::Joined(request));
        }
        ring.work();
        assert_eq!(ring.reports.len(), checks);
        assert_eq!(ring.host(), Some(("a", 1)));
    }
}

#[test]
fn a_member_lost_during_the_check_is_lost_and_no_other_is_blamed() {
    let mut ring = Ring::new(policy(), checked(3, 4), &[]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    ring.orders.retain(|(node, _)| node.0 != "d");
    ring.send(Event::NodeLost { node: id("d"), cause: DISCONNECTED });
    while ring.reports.is_empty() {
        ring.work();
        let effects = if ring.reports.is_empty() { ring.test.due() } else { Vec::new() };
        ring.take(effects);
    }
    let verdicts = ring.verdicts();
    assert!(matches!(verdicts[3].1, NodeVerdict::Lost { .. }), "{verdicts:?}");
    assert!(verdicts[..3].iter().all(|it| it.1 == NodeVerdict::Healthy), "{verdicts:?}");
    assert_eq!(ring.host(), Some(("a", 0)));
}

/// The remaining node is not at fault: it waits for a replacement, and is tested with that.
#[test]
fn when_one_of_two_leaves_during_the_check_the_other_waits_for_a_replacement() {
    let left = Event::NodeEnded { node: id("b"), end: NodeEnd::Left { signal: 2 } };
    let vanished = Event::NodeLost { node: id("b"), cause: DISCONNECTED };
    for event in [left, vanished] {
        for on_inconclusive in [OnInconclusive::Fail, OnInconclusive::Relaunch, OnInconclusive::Proceed] {
            let check = Some(CheckTerms { on_inconclusive, ..check() });
            let mut ring = Ring::new(policy(), Terms { check, ..terms(2, 2) }, &["b"]);
            ring.join("a");
            ring.join("b");
            ring.orders.retain(|(node, _)| node.0 != "b");
            ring.send(event.clone());
            // What the other one sees of it.
            ring.work();
            let verdicts = ring.verdicts();
            assert_eq!(verdicts[0], ("a".into(), NodeVerdict::Healthy, false));
            assert!(matches!(verdicts[1].1, NodeVerdict::Lost { .. }), "{verdicts:?}");
            assert!(!verdicts[1].2, "it is seen for the first time");
            assert!(ring.reports[0].outcome.network_untested);
            assert_eq!((ring.excluded(), ring.end(), ring.host()), (vec![], None, None));
            let told = ring.seen.iter().find_map(|effect| match effect {
                Effect::Push { push: Push::CheckOver { message }, .. } => Some(&**message),
                _ => None,
            });
            let told = told.expect("it is told");
            assert!(
                told.starts_with("network check: this node is healthy; the network was not tested")
                    && told.contains("; excluded: node number 1 (")
                    && told.ends_with(" (lost)"),
                "{told}"
            );
            ring.broken.clear();
            ring.join("c");
            ring.work();
            assert_eq!((ring.reports.len(), ring.host()), (2, Some(("a", 0))));
        }
    }
}

#[test]
fn a_member_that_leaves_in_the_middle_is_left_out_and_not_tainted() {
    let mut ring = Ring::new(policy(), checked(3, 4), &[]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    ring.orders.retain(|(node, _)| node.0 != "d");
    ring.send(Event::NodeEnded { node: id("d"), end: NodeEnd::Left { signal: 15 } });
    while ring.reports.is_empty() {
        ring.work();
        let effects = if ring.reports.is_empty() { ring.test.due() } else { Vec::new() };
        ring.take(effects);
    }
    assert!(matches!(&ring.verdicts()[3], (_, NodeVerdict::Lost { reason }, false) if reason == STOPPED));
    assert_eq!(ring.host(), Some(("a", 0)));
}

#[test]
fn an_order_is_repeated_to_a_node_that_comes_back_and_its_report_counts_once() {
    let mut ring = Ring::new(policy(), checked(2, 2), &[]);
    ring.join("a");
    ring.join("b");
    let first = std::mem::take(&mut ring.orders);
    ring.send(Event::LinkBroken { node: id("a") });
    ring.send(Event::Subscribed { node: id("a") });
    ring.join("a");
    assert_eq!(ring.orders, first[..1]);
    ring.work();
    ring.join("a");
    assert!(ring.orders.is_empty(), "it has answered");
    let stale = CheckRound { check: 7, round: 0 };
    let report = CheckReport { at: stale, probed: passed(), compute: Some(Vec::new()) };
    ring.send(Event::CheckReported { node: id("b"), report });
    assert!(ring.reports.is_empty(), "that was of another check");
    ring.orders = first[1..].to_vec();
    ring.work();
    assert_eq!(ring.reports.len(), 1);
}

#[test]
fn a_master_that_was_started_again_checks_anew_when_all_are_back() {
    let mut ring = Ring::new(policy(), checked(2, 2), &[]);
    ring.join("a");
    ring.join("b");
    ring.orders.clear();
    ring.send(Event::Restarted);
    ring.join("a");
    assert!(ring.orders.is_empty());
    ring.join("b");
    assert_eq!(ring.orders.len(), 2);
    assert!(ring.orders.iter().all(|(_, order)| order.at.check == 1));
    ring.work();
    assert_eq!(ring.host(), Some(("a", 0)));
}

#[test]
fn the_bandwidth_of_all_nodes_is_measured_once_they_passed() {
    let check = Some(CheckTerms { measures_bandwidth: true, ..check() });
    let mut ring = Ring::new(policy(), Terms { check, ..terms(2, 4) }, &["d"]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    while ring.reports.is_empty() {
        assert!(ring.work_one());
    }
    assert_eq!(ring.orders.len(), 3, "one order each, and none for the node that left");
    assert!(ring.orders.iter().all(|(_, it)| matches!(it.test, What::AllReduce { .. }) && it.size == 3));
    assert_eq!(ring.host(), None);
    ring.work();
    let message = ring.seen.iter().rev().find_map(|effect| match effect {
        Effect::Push { push: Push::CheckOver { message }, .. } => Some(message.clone()),
        _ => None,
    });
    assert_eq!(
        message.unwrap(),
        "bandwidth of 3 nodes: all-reduce of 67.1 MB in 10.0 ms, algorithm bandwidth 6710.9 MB/s, bus bandwidth \
         8947.8 MB/s"
    );
    assert_eq!(ring.host(), Some(("a", 0)));
}

#[test]
fn the_launcher_that_serves_the_master_takes_the_job_with_it_when_it_is_broken() {
    let policy = Policy { host: Some(id("a")), ..fail_job() };
    let mut ring = Ring::new(policy, checked(3, 4), &["a"]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    ring.work();
    assert_eq!(ring.excluded(), ["a"]);
    assert!(matches!(ring.end(), Some(JobFailure::Node { node, .. }) if node.node_id == id("a")));
}

/// One of a pair fails, its partner is silent until the grace is over; the others pass.
#[test]
fn a_late_report_of_an_old_round_does_not_remove_the_new_order() {
    let mut ring = Ring::new(policy(), checked(2, 4), &[]);
    for name in ["a", "b", "c", "d"] {
        ring.join(name);
    }
    let orders = std::mem::take(&mut ring.orders);
    let (first, order) = orders[0].clone();
    let partner = order.partners[0].name.node_id.clone();
    for (node, order) in orders.iter().filter(|(node, _)| *node != partner) {
        let probed = match *node == first {
            true => Probed::Failed { reason: "refused".into() },
            false => passed(),
        };
        let report = CheckReport { at: order.at, probed, compute: Some(Vec::new()) };
        ring.send(Event::CheckReported { node: node.clone(), report });
    }
    let effects = ring.test.due();
    assert!(
        effects.contains(&Effect::Push { node: partner.clone(), push: Push::CancelCheck(order.at) }),
        "{effects:?}"
    );
    ring.take(effects);
    assert!(ring.orders.iter().any(|(node, order)| *node == partner && order.at.round == 1));
    // Its report of round 0 was in transit.
    let probed = Probed::Failed { reason: "cut short".into() };
    let report = CheckReport { at: order.at, probed, compute: Some(Vec::new()) };
    ring.send(Event::CheckReported { node: partner.clone(), report });
    // It loses its stream and comes back: it receives its order of round 1 again.
    ring.orders.clear();
    ring.send(Event::LinkBroken { node: partner.clone() });
    ring.send(Event::Subscribed { node: partner.clone() });
    ring.join(&partner.0);
    assert_eq!(ring.orders.len(), 1);
}

#[test]
fn the_silent_member_of_the_last_group_is_cancelled() {
    let mut ring = Ring::new(policy(), checked(2, 2), &[]);
    ring.join("a");
    ring.join("b");
    let at = ring.orders[0].1.at;
    let probed = Probed::Failed { reason: "refused".into() };
    let report = CheckReport { at, probed, compute: Some(Vec::new()) };
    ring.send(Event::CheckReported { node: id("a"), report });
    let effects = ring.test.due();
    assert!(effects.contains(&Effect::Push { node: id("b"), push: Push::CancelCheck(at) }), "{effects:?}");
}

/// The master would not check again, but the node has looked at itself.
#[test]
fn a_fault_that_a_node_found_since_a_young_check_keeps_it_out() {
    let check = Some(CheckTerms { reuse_for: Duration::from_secs(60), ..check() });
    let mut ring = Ring::new(policy(), Terms { check, ..terms(2, 2) }, &[]);
    ring.join("a");
    ring.join("b");
    ring.work();
    assert_eq!(ring.test.hosted("a", 0).len(), 2);
    let _ = ring.test.workers_fail("a", 0, false);
    let fit = ring.request("a", Some(0));
    let mut unfit = ring.request("b", Some(0));
    let fault = LocalFault::new("GPU 3", "it has fallen off the bus");
    unfit.checked.as_mut().unwrap().local.fault = Some(fault);
    ring.send(Event::Joined(fit));
    ring.send(Event::Joined(unfit));
    ring.work();
    assert_eq!(ring.excluded(), ["b"], "host: {:?}", ring.host());
}

#[test]
fn the_report_names_both_switches_of_a_node() {
    let policy = Policy { has_topology: true, ..policy() };
    let mut ring = Ring::new(policy, checked(3, 3), &[]);
    for name in ["a", "b", "c"] {
        ring.join(name);
    }
    let topology = Topology::parse("s0 p0 10.0.0.1\ns1 p1 10.0.0.2\n").unwrap();
    ring.send(Event::TopologyRead(Ok(topology)));
    ring.work();
    let report = &ring.reports[0];
    let nodes = report.nodes.iter().map(|node| (report.rack(node.rack), report.pod(node.psw)));
    let expected = [("s0", "p0"), ("s1", "p1"), ("unlisted", "unlisted")];
    assert_eq!(nodes.collect::<Vec<_>>(), expected.map(|(rack, psw)| (rack.to_owned(), psw.to_owned())));
}

/// Two broken nodes, and the loss of one of them is already one too many.
#[test]
fn all_excluded_nodes_get_the_reason_even_if_one_of_them_ends_the_job() {
    let policy = Policy { restart_count: 0, ..policy() };
    let mut ring = Ring::new(policy, checked(2, 8), &["c", "d"]);
    for (rank, name) in (0..).zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
        let request = JoinRequest { wish: Some(NodeRank(rank)), ..ring.request(name, None) };
        ring.send(Event::Joined(request));
    }
    ring.work();
    let mut excluded = ring.excluded();
    excluded.sort_unstable();
    assert_eq!(excluded, ["c", "d"]);
    assert!(matches!(ring.end(), Some(JobFailure::Exhausted { .. })), "{:?}", ring.end());
}
