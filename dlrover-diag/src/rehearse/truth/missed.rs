//! Simulated faults that the check does not name.

use std::fmt;

use diagnosis::network_check::{Outcome, rehearsal::Cluster};
use serde::Serialize;

use super::{
    super::settings::Settings,
    seen::{Seen, Why},
};

/// Why something was not found, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::rehearse) enum Reason {
    /// No test of the faulty element was made.
    NeverTested,
    /// All tests of the element were made before it broke.
    BrokeLater,
    /// All tests of the element passed.
    Passed,
    /// The options do not ask for such faults, or the cluster is too small to find them.
    NotLookedFor,
    /// The check is inconclusive.
    Undecided,
    /// Another simulated fault hides it.
    Hidden,
    /// Tests showed the fault, and something else is named or nothing.
    Shown,
}

impl Reason {
    pub(in crate::rehearse) const ALL: [Self; 7] = [
        Self::NeverTested,
        Self::BrokeLater,
        Self::Passed,
        Self::NotLookedFor,
        Self::Undecided,
        Self::Hidden,
        Self::Shown,
    ];

    /// For people, after a number.
    pub(in crate::rehearse) fn words(self) -> &'static str {
        match self {
            Self::NeverTested => "never tested",
            Self::BrokeLater => "tested only before the fault",
            Self::Passed => "passed all tests",
            Self::NotLookedFor => "not looked for",
            Self::Undecided => "inconclusive",
            Self::Hidden => "hidden by another fault",
            Self::Shown => "shown by tests",
        }
    }
}

/// Something that was put in and not found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::rehearse) struct Missed {
    /// The option that put it in.
    option: &'static str,
    /// The node, rack or pod, or the two of them.
    numbers: Vec<u32>,
    /// The round after which it broke; left away: before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_round: Option<u32>,
    /// Why it was not found.
    pub(super) reason: Reason,
    /// As text.
    why: String,
}

impl Missed {
    pub(in crate::rehearse) fn reason(&self) -> Reason {
        self.reason
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.option {
            "dead-link" | "slow-link" => "link",
            "dead-rack-pair" => "path between racks",
            "dead-uplink" | "partial-uplink" => "rack",
            "dead-pod" => "pod",
            _ => "node",
        };
        let numbers: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        let which = match self.option {
            "faulty" => "faulty",
            "local-fault" => "local fault",
            "lost" => "lost",
            "dies" => "breaks",
            "slow-nic" => "slow network interface",
            "slow-link" => "slow",
            "slow-compute" => "slow to compute",
            "flaky" => "flaky",
            "liar" => "false reports",
            "dead-uplink" | "dead-pod" => "cut off",
            "partial-uplink" => "some of its uplinks down",
            _ => "",
        };
        write!(f, "not found: {what} {}", numbers.join("-"))?;
        match (which, self.after_round) {
            ("", _) => {}
            (which, None) => write!(f, " ({which})")?,
            (which, Some(round)) => write!(f, " ({which} after round {round})")?,
        }
        write!(f, ": {}", self.why)
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
        dead_pods,
        dies,
        uplink_dies,
        partial_uplinks,
        transient: _,
        liars,
    } = &settings.cluster;
    let seen = Seen::of(settings, outcome);
    let mut list = List(Vec::new());
    for node in faulty {
        list.add("faulty", &[*node], None, seen.why_not_broken(*node, None));
    }
    for node in local_fault {
        list.add("local-fault", &[*node], None, seen.why_not_broken(*node, None));
    }
    for node in lost {
        list.add("lost", &[*node], None, seen.why_not_broken(*node, None));
    }
    for (node, round) in dies {
        list.add("dies", &[*node], Some(*round), seen.why_not_broken(*node, Some(*round)));
    }
    for (a, b) in dead_links {
        list.add("dead-link", &[*a, *b], None, seen.why_not_link((*a, *b)));
    }
    for (a, b) in dead_rack_pairs {
        list.add("dead-rack-pair", &[*a, *b], None, seen.why_not_pair(*a, *b));
    }
    for rack in dead_uplinks {
        list.add("dead-uplink", &[*rack], None, seen.why_not_rack(*rack, None));
    }
    for (rack, round) in uplink_dies.iter().filter(|(rack, _)| !dead_uplinks.contains(rack)) {
        list.add("dead-uplink", &[*rack], Some(*round), seen.why_not_rack(*rack, Some(*round)));
    }
    for rack in partial_uplinks.keys() {
        list.add("partial-uplink", &[*rack], None, seen.why_not_part(*rack));
    }
    for pod in dead_pods {
        list.add("dead-pod", &[*pod], None, seen.why_not_pod(*pod));
    }
    for (node, factor) in slow_nic {
        list.add("slow-nic", &[*node], None, seen.why_not_slow_nic(*node, *factor));
    }
    for (a, b) in slow_links.keys() {
        list.add("slow-link", &[*a, *b], None, seen.why_not_slow_link((*a, *b)));
    }
    for (node, factor) in slow_compute {
        list.add("slow-compute", &[*node], None, seen.why_not_slow(*node, *factor));
    }
    for node in flaky.keys() {
        list.add("flaky", &[*node], None, seen.why_not_broken(*node, None));
    }
    for node in liars {
        list.add("liar", &[*node], None, seen.why_not_broken(*node, None));
    }
    list.0
}

struct List(Vec<Missed>);

impl List {
    /// `why` is `None` for what was found.
    fn add(&mut self, option: &'static str, numbers: &[u32], after_round: Option<u32>, why: Option<Why>) {
        if let Some((reason, why)) = why {
            self.0.push(Missed { option, numbers: numbers.to_vec(), after_round, reason, why });
        }
    }
}
