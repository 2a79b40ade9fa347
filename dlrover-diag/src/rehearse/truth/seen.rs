//! What a check has seen of each simulated fault, and why that was not enough to find it.

use std::{collections::BTreeMap, ops::Range};

use diagnosis::network_check::{NodeFinding, NodeVerdict, Outcome, TestResult, rehearsal::Cluster};

use super::{
    super::{settings::Settings, words::count},
    missed::Reason,
    named::Named,
};

/// A slow node is found only among this many: the baseline takes three others.
const NODES_FOR_SLOW: u32 = 4;

const ONLY_STRAGGLERS: &str = "only --exclude-straggler looks for it";

/// Why something was not found.
pub(super) type Why = (Reason, String);

/// What the check has seen of a cluster. Each answer is `None` for what is named.
pub(super) struct Seen<'a> {
    settings: &'a Settings,
    cluster: &'a Cluster,
    outcome: &'a Outcome,
    named: Named<'a>,
}

impl<'a> Seen<'a> {
    pub(super) fn of(settings: &'a Settings, outcome: &'a Outcome) -> Self {
        let cluster = &settings.cluster;
        Self { settings, cluster, outcome, named: Named::perhaps(cluster, outcome) }
    }

    fn node(&self, number: u32) -> Option<&NodeFinding> {
        self.outcome.nodes.get(number as usize)
    }

    /// Whether the node is blamed for something, is excluded, or is among the candidates of an ambiguity. One that is
    /// called unreachable, and can be reached, is not found.
    fn is_found(&self, number: u32) -> bool {
        let is_blamed = |node: &NodeFinding| match node.verdict {
            NodeVerdict::Healthy | NodeVerdict::Inconclusive => node.excluded,
            NodeVerdict::Unreachable => super::is_cut_off(self.cluster, self.outcome, number),
            _ => true,
        };
        self.node(number).is_some_and(is_blamed) || self.named.covers_node(number)
    }

    /// The results of the tests in these rounds of which the members are such.
    fn results(&self, rounds: Range<u32>, is_one: impl Fn(&[u32]) -> bool) -> Vec<TestResult> {
        let of_rounds = (0..).zip(&self.outcome.rounds).filter(|(number, _)| rounds.contains(number));
        // One alone is idle, not tested.
        let tests = of_rounds.flat_map(|(_, round)| &round.tests).filter(|test| test.members.len() > 1);
        tests.filter(|test| is_one(&test.members)).map(|test| test.result).collect()
    }

    /// Why a fault that was never tested was not found: there was no test, or each was made before it broke
    /// `after` a round.
    fn why_untested(&self, after: Option<u32>, is_one: impl Fn(&[u32]) -> bool, never: &str) -> Why {
        let end = after.map_or(0, |round| round.saturating_add(1));
        match (after, self.results(0..end, is_one).len()) {
            (None, _) | (Some(_), 0) => (Reason::NeverTested, never.to_owned()),
            (Some(_), tests) => {
                (Reason::BrokeLater, format!("tested {}, always before it broke", count(tests, "time")))
            }
        }
    }

    pub(super) fn why_not_broken(&self, number: u32, after: Option<u32>) -> Option<Why> {
        if self.is_found(number) {
            return None;
        }
        let is_one = |members: &[u32]| members.contains(&number);
        let since = after.map_or(0, |round| round.saturating_add(1));
        let results = self.results(since..u32::MAX, is_one);
        let failed = results.iter().filter(|result| **result == TestResult::Fail).count();
        let verdict = self.node(number).map(|node| &node.verdict);
        Some(match (verdict, results.len(), failed) {
            (_, 0, _) => self.why_untested(after, is_one, "never tested"),
            (Some(NodeVerdict::Unreachable), ..) => {
                (Reason::Shown, "reported as unreachable, but reachable in the simulation".into())
            }
            (Some(NodeVerdict::Inconclusive), ..) => {
                (Reason::Undecided, "inconclusive: not enough is known".into())
            }
            (_, tests, 0) => (Reason::Passed, format!("it passed all its tests ({tests})")),
            (_, tests, failed) => {
                let tests = count(tests, "test");
                (Reason::Shown, format!("it failed {failed} of {tests}, too few to find it at fault"))
            }
        })
    }

    pub(super) fn why_not_slow_nic(&self, number: u32, factor: f64) -> Option<Why> {
        if self.is_found(number) {
            return None;
        }
        let slower = self.node(number).and_then(|node| node.comm_permille);
        Some(if self.cluster.nodes < NODES_FOR_SLOW {
            (
                Reason::NotLookedFor,
                format!("at least {NODES_FOR_SLOW} nodes are needed to find a slow interface"),
            )
        } else if !self.settings.policy.exclude_straggler {
            (Reason::NotLookedFor, ONLY_STRAGGLERS.into())
        } else {
            self.why_not_slower(slower, factor, ("its transfers took", "those of the others"))
        })
    }

    pub(super) fn why_not_slow_link(&self, link: (u32, u32)) -> Option<Why> {
        let why = self.why_not_link(link)?;
        Some(match self.settings.policy.exclude_straggler {
            true => why,
            false => (Reason::NotLookedFor, ONLY_STRAGGLERS.into()),
        })
    }

    pub(super) fn why_not_slow(&self, number: u32, factor: f64) -> Option<Why> {
        if self.is_found(number) {
            return None;
        }
        let slower = self.node(number).and_then(|node| node.compute_permille);
        Some(self.why_not_slower(slower, factor, ("it took", "the others")))
    }

    /// Why a slow node was not found: how much slower it was measured, or how seldom. `factor`: how much slower
    /// it is in the simulation.
    fn why_not_slower(&self, permille: Option<u32>, factor: f64, (it_took, others): (&str, &str)) -> Why {
        let limit = self.settings.policy.straggler_permille;
        let times = |permille: u32| f64::from(permille) / 1000.0;
        let should_show = factor > times(limit);
        match permille {
            None => {
                let words = "it could not be compared with the others: there are too few measurements, or they \
                             differ too much";
                (Reason::NeverTested, words.into())
            }
            Some(permille) if permille <= limit => {
                let reason = if should_show { Reason::Shown } else { Reason::Passed };
                let words = format!(
                    "{it_took} {:.2} times as long as {others}; --straggler-ratio is {:.2}",
                    times(permille),
                    times(limit)
                );
                (reason, words)
            }
            Some(_) => {
                (Reason::Shown, "too few of its measurements were slow to be sure that it is slow".into())
            }
        }
    }

    fn is_healthy(&self, node: u32) -> bool {
        super::is_healthy(self.settings, node)
    }

    /// The healthy nodes of a rack.
    fn healthy_in(&self, rack: u32) -> Vec<u32> {
        (0..self.cluster.nodes).filter(|it| self.cluster.rack(*it) == rack && self.is_healthy(*it)).collect()
    }

    pub(super) fn why_not_link(&self, (a, b): (u32, u32)) -> Option<Why> {
        if self.named.covers_link(a, b) {
            return None;
        }
        let tests = self.results(0..u32::MAX, |members| members.contains(&a) && members.contains(&b));
        let ends = |is_such: &dyn Fn(u32) -> bool| match (is_such(a), is_such(b)) {
            (true, true) => format!("both ends (nodes {a}, {b}) are"),
            (true, false) => format!("one end (node {a}) is"),
            (false, true) => format!("one end (node {b}) is"),
            (false, false) => String::new(),
        };
        let (broken, blamed) = (ends(&|end| !self.is_healthy(end)), ends(&|end| self.is_found(end)));
        Some(if tests.is_empty() {
            (Reason::NeverTested, "never tested".into())
        } else if !broken.is_empty() {
            (Reason::Hidden, format!("{broken} broken"))
        } else if !blamed.is_empty() {
            (Reason::Shown, format!("{blamed} found at fault"))
        } else {
            (Reason::Shown, "tested, but not distinguishable from a fault of its ends".into())
        })
    }

    pub(super) fn why_not_pair(&self, a: u32, b: u32) -> Option<Why> {
        let is_between = |one: u32, other: u32| one == a && other == b;
        let is_found = || {
            self.named.covers_racks(a, b)
                || self.named.covers_all_links(&self.healthy_in(a), &self.healthy_in(b))
        };
        (!is_found()).then(|| self.why_not_path(is_between, None, "never tested"))
    }

    pub(super) fn why_not_rack(&self, rack: u32, after: Option<u32>) -> Option<Why> {
        let never = "never tested with another rack";
        let is_found = self.are_out(|one| one == rack);
        (!is_found).then(|| self.why_not_path(|one, other| one == rack && other != rack, after, never))
    }

    pub(super) fn why_not_pod(&self, pod: u32) -> Option<Why> {
        let is_in = |rack: u32| rack.checked_div(self.cluster.pod_size) == Some(pod);
        let never = "never tested with another rack";
        let is_found = self.are_out(is_in);
        (!is_found).then(|| self.why_not_path(|one, other| one != other && is_in(one), None, never))
    }

    /// Whether all paths of healthy nodes out of such racks are called dead, and there is one.
    fn are_out(&self, is_such: impl Fn(u32) -> bool) -> bool {
        let mut racks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for node in (0..self.cluster.nodes).filter(|node| self.is_healthy(*node)) {
            racks.entry(self.cluster.rack(node)).or_default().push(node);
        }
        let out = racks.iter().filter(|(rack, _)| is_such(**rack));
        let paths = out.flat_map(|one| racks.iter().filter(move |it| it.0 != one.0).map(move |it| (one, it)));
        let mut paths = paths.peekable();
        paths.peek().is_some()
            && paths.all(|((a, ones), (b, others))| {
                self.named.covers_racks(*a, *b) || self.named.covers_all_links(ones, others)
            })
    }

    /// Why a path between racks that is down was not found: by the tests between healthy nodes of such racks.
    fn why_not_path(&self, is_such: impl Fn(u32, u32) -> bool, after: Option<u32>, never: &str) -> Why {
        let is_one = |members: &[u32]| {
            let healthy = members.iter().copied().filter(|node| self.is_healthy(*node));
            let racks: Vec<u32> = healthy.map(|node| self.cluster.rack(node)).collect();
            racks.iter().any(|one| racks.iter().any(|other| is_such(*one, *other)))
        };
        let since = after.map_or(0, |round| round.saturating_add(1));
        match self.results(since..u32::MAX, is_one).len() {
            0 => self.why_untested(after, is_one, never),
            tests => {
                let words =
                    format!("tested {}, which showed faults of nodes or links only", count(tests, "time"));
                (Reason::Shown, words)
            }
        }
    }

    /// Why a rack with some of its uplinks down was not found. It is found where every tested pair of the rack
    /// with others that is cut is named.
    pub(super) fn why_not_part(&self, rack: u32) -> Option<Why> {
        let last = super::last_round(self.outcome);
        let is_out = |(a, b): &(u32, u32)| {
            (self.cluster.rack(*a) == rack) != (self.cluster.rack(*b) == rack)
                && self.is_healthy(*a)
                && self.is_healthy(*b)
        };
        let tested: Vec<(u32, u32)> = super::last_tests(self.outcome).into_keys().filter(is_out).collect();
        let is_cut = |(a, b): &&(u32, u32)| self.cluster.is_cut_in(last, *a, *b);
        let dead: Vec<&(u32, u32)> = tested.iter().filter(is_cut).collect();
        let unnamed = dead.iter().filter(|(a, b)| !self.named.covers_link(*a, *b)).count();
        match (tested.len(), dead.len(), unnamed) {
            (_, 1.., 0) => None,
            (0, ..) => Some((Reason::NeverTested, "never tested with another rack".into())),
            (tests, 0, _) => {
                let words =
                    format!("the {} tested with other racks used working paths", count(tests, "pair"));
                Some((Reason::Passed, words))
            }
            (tests, dead, unnamed) => {
                let words = format!(
                    "{} tested with other racks: {dead} failed, {unnamed} not reported",
                    count(tests, "pair")
                );
                Some((Reason::Shown, words))
            }
        }
    }
}
