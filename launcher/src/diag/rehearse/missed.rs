//! What was broken in the imagined cluster, and is not blamed.

use std::fmt;

use rules::network_check::{NodeFinding, NodeVerdict, Outcome, TestResult, rehearsal::Cluster};
use serde::Serialize;

use super::settings::Settings;

/// A slow node is told apart only among so many: it takes three others to know what is usual.
const NODES_FOR_SLOW: u32 = 4;

const ONLY_STRAGGLERS: &str = "only --exclude-straggler looks for it";

/// Something that was put in and not found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Missed {
    /// The option that put it in.
    option: &'static str,
    /// The node or rack, or the two of them.
    numbers: Vec<u32>,
    /// Why it was not found.
    why: String,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.option {
            "dead-link" | "slow-link" => "link",
            "dead-rack-pair" => "path between racks",
            "dead-uplink" => "rack",
            _ => "node",
        };
        let numbers: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        let which = match self.option {
            "faulty" => " (faulty)",
            "local-fault" => " (a fault of its own)",
            "lost" => " (lost)",
            "slow-nic" => " (slow network card)",
            "slow-link" => " (slow)",
            "slow-compute" => " (slow to compute)",
            "flaky" => " (flaky)",
            "dead-uplink" => " (cut off)",
            _ => "",
        };
        write!(f, "not found: {what} {}{which}: {}", numbers.join("-"), self.why)
    }
}

/// All of it, in the order of the options.
pub(super) fn missed(settings: &Settings, outcome: &Outcome) -> Vec<Missed> {
    let Cluster {
        nodes: _,
        racks: _,
        seed: _,
        noise: _,
        faulty,
        local_fault,
        lost,
        dead_links,
        dead_rack_pairs,
        dead_uplinks,
        slow_nic,
        slow_links,
        slow_compute,
        other_kind: _,
        flaky,
        pod_size: _,
        dead_pods: _,
        dies: _,
        uplink_dies: _,
        partial_uplinks: _,
        transient: _,
        liars: _,
    } = &settings.cluster;
    let seen = Seen { settings, outcome };
    let one = |option, number: u32, why: Option<String>| {
        why.map(|why| Missed { option, numbers: vec![number], why })
    };
    let two = |option, (a, b): (u32, u32), why: Option<String>| {
        why.map(|why| Missed { option, numbers: vec![a, b], why })
    };
    let faulty = faulty.iter().map(|node| one("faulty", *node, seen.why_not_broken(*node)));
    let local = local_fault.iter().map(|node| one("local-fault", *node, seen.why_not_broken(*node)));
    let lost = lost.iter().map(|node| one("lost", *node, seen.why_not_broken(*node)));
    let links = dead_links.iter().map(|link| two("dead-link", *link, seen.why_not_link(*link)));
    let pairs = dead_rack_pairs.iter().map(|pair| two("dead-rack-pair", *pair, seen.why_not_pair(*pair)));
    let racks = dead_uplinks.iter().map(|rack| one("dead-uplink", *rack, seen.why_not_rack(*rack)));
    let nics = slow_nic.keys().map(|node| one("slow-nic", *node, seen.why_not_slow_nic(*node)));
    let slow_links = slow_links.keys().map(|link| two("slow-link", *link, seen.why_not_slow_link(*link)));
    let slow = slow_compute.keys().map(|node| one("slow-compute", *node, seen.why_not_slow(*node)));
    let flaky = flaky.keys().map(|node| one("flaky", *node, seen.why_not_broken(*node)));
    let nodes = faulty.chain(local).chain(lost);
    let paths = links.chain(pairs).chain(racks);
    nodes.chain(paths).chain(nics).chain(slow_links).chain(slow).chain(flaky).flatten().collect()
}

/// What the check has seen of a cluster.
struct Seen<'a> {
    settings: &'a Settings,
    outcome: &'a Outcome,
}

impl Seen<'_> {
    fn node(&self, number: u32) -> Option<&NodeFinding> {
        self.outcome.nodes.get(number as usize)
    }

    /// Whether the node itself is blamed for something.
    fn is_blamed(&self, number: u32) -> bool {
        let verdict = self.node(number).map(|node| &node.verdict);
        verdict.is_some_and(|it| !matches!(it, NodeVerdict::Healthy | NodeVerdict::Inconclusive))
    }

    /// The results of the tests of which the members are such.
    fn results(&self, is_one: impl Fn(&[u32]) -> bool) -> Vec<TestResult> {
        let tests = self.outcome.rounds.iter().flat_map(|round| &round.tests);
        // One alone is idle, not tested.
        tests.filter(|test| test.members.len() > 1 && is_one(&test.members)).map(|test| test.result).collect()
    }

    /// `None`: the node is blamed.
    fn why_not_broken(&self, number: u32) -> Option<String> {
        if self.is_blamed(number) {
            return None;
        }
        let results = self.results(|members| members.contains(&number));
        let failed = results.iter().filter(|result| **result == TestResult::Fail).count();
        let verdict = self.node(number).map(|node| &node.verdict);
        Some(match (verdict, results.len(), failed) {
            (_, 0, _) => "never tested".into(),
            (Some(NodeVerdict::Inconclusive), ..) => "inconclusive, not enough is known".into(),
            (_, tests, 0) => format!("it passed all its tests ({tests})"),
            (_, tests, failed) => format!("it failed {failed} of {tests} tests, too few to blame it"),
        })
    }

    fn why_not_slow_nic(&self, number: u32) -> Option<String> {
        if self.is_blamed(number) {
            return None;
        }
        let slower = self.node(number).and_then(|node| node.comm_permille);
        Some(if self.settings.cluster.nodes < NODES_FOR_SLOW {
            format!("it takes {NODES_FOR_SLOW} nodes to tell whose card is slow")
        } else if !self.settings.policy.exclude_straggler {
            ONLY_STRAGGLERS.into()
        } else {
            self.why_not_slower(slower, "its transfers took")
        })
    }

    fn why_not_slow_link(&self, link: (u32, u32)) -> Option<String> {
        let why = self.why_not_link(link)?;
        Some(match self.settings.policy.exclude_straggler {
            true => why,
            false => ONLY_STRAGGLERS.into(),
        })
    }

    fn why_not_slow(&self, number: u32) -> Option<String> {
        if self.is_blamed(number) {
            return None;
        }
        let slower = self.node(number).and_then(|node| node.compute_permille);
        Some(self.why_not_slower(slower, "it took"))
    }

    fn why_not_slower(&self, permille: Option<u32>, words: &str) -> String {
        let limit = self.settings.policy.straggler_permille;
        let times = |permille: u32| f64::from(permille) / 1000.0;
        match permille {
            None => "there is nobody to compare it with".into(),
            Some(permille) if permille <= limit => format!(
                "{words} {:.2} times as long as the others; --straggler-ratio is {:.2}",
                times(permille),
                times(limit)
            ),
            Some(_) => "it was not slow often enough to be sure".into(),
        }
    }

    fn rack(&self, node: u32) -> u32 {
        self.settings.cluster.rack(node)
    }

    /// Whether something larger than a link between these racks is blamed.
    fn is_larger_blamed(&self, a: u32, b: u32) -> bool {
        let racks = (a.min(b), a.max(b));
        let is_cut_off = |rack| self.outcome.uplinks.contains(&rack);
        a != b
            && (is_cut_off(a)
                || is_cut_off(b)
                || self.outcome.rack_pairs.iter().any(|pair| pair.racks == racks))
    }

    fn why_not_link(&self, (a, b): (u32, u32)) -> Option<String> {
        let is_found = self.outcome.links.iter().any(|link| link.nodes == (a, b));
        if is_found || self.is_larger_blamed(self.rack(a), self.rack(b)) {
            return None;
        }
        let tests = self.results(|members| members.contains(&a) && members.contains(&b));
        let blamed: Vec<String> =
            [a, b].into_iter().filter(|end| self.is_blamed(*end)).map(|end| format!("node {end}")).collect();
        Some(match (tests.is_empty(), blamed.is_empty()) {
            (true, _) => "never tested".into(),
            (false, false) => format!("{} is blamed", blamed.join(" and ")),
            (false, true) => "tested, and not told apart from its ends".into(),
        })
    }

    fn why_not_pair(&self, (a, b): (u32, u32)) -> Option<String> {
        if self.is_larger_blamed(a, b) {
            return None;
        }
        let tests = self.results(|members| {
            let is_in = |rack| members.iter().any(|node| self.rack(*node) == rack);
            is_in(a) && is_in(b)
        });
        Some(match tests.len() {
            0 => "never tested".into(),
            tests => {
                format!("tested {}, which told of nodes or links only", super::report::count(tests, "time"))
            }
        })
    }

    fn why_not_rack(&self, rack: u32) -> Option<String> {
        if self.outcome.uplinks.contains(&rack) {
            return None;
        }
        let tests = self.results(|members| {
            let inside = members.iter().filter(|node| self.rack(**node) == rack).count();
            inside > 0 && inside < members.len()
        });
        Some(match tests.len() {
            0 => "never tested with another rack".into(),
            tests => {
                format!("tested {}, which told of nodes or links only", super::report::count(tests, "time"))
            }
        })
    }
}
