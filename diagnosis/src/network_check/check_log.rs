//! The nodes of a check and its log: the only input of every verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{LocalCheck, Policy, RoundRecord, Subject, first_round};

/// Two nodes or two racks, the lower first.
pub(super) type Pair = (u32, u32);

/// The lower first.
pub(super) fn pair(a: u32, b: u32) -> Pair {
    (a.min(b), a.max(b))
}

/// How many of these pairs share no node, taken greedily: at least half of the possible number.
pub(super) fn apart(pairs: impl Iterator<Item = Pair>) -> usize {
    let mut used = BTreeSet::new();
    let mut count = 0;
    for (a, b) in pairs {
        if !used.contains(&a) && !used.contains(&b) {
            used.extend([a, b]);
            count += 1;
        }
    }
    count
}

/// A node and its facts from outside tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "KnownNode")] // For the journal's golden file, which knows types by name.
pub(super) struct Node {
    /// Index into the names of the racks.
    pub(super) rack: u32,
    /// Index into the pods' numbers.
    pub(super) pod: u32,
    pub(super) seen_before: bool,
    pub(super) local: LocalCheck,
    /// The round in which it was lost, and why.
    pub(super) lost: Option<(u32, String)>,
    /// It announced that it would leave.
    pub(super) has_left: bool,
    /// Further times of its compute probe.
    pub(super) compute_again: Vec<std::time::Duration>,
}

impl Node {
    /// It cannot be tested.
    pub(super) fn is_gone(&self) -> bool {
        self.local.fault.is_some() || self.lost.is_some()
    }
}

/// All facts of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckLog {
    pub(super) policy: Policy,
    pub(super) nodes: Vec<Node>,
    /// The racks' original numbers, ascending.
    pub(super) racks: Vec<u32>,
    /// The pods' original numbers, ascending.
    pub(super) pods: Vec<u32>,
    /// The order of the first round: its neighbours are its pairs.
    pub(super) order: Vec<u32>,
    /// The last step of the seed search that was made; the first round was step 1.
    pub(super) suspect_step: u32,
    /// Links whose ends were both tested with others.
    pub(super) probed: BTreeSet<Pair>,
    /// Closed rounds. A result of [`TestResult::Slow`](super::TestResult) here means: cut short while it worked;
    /// other slow tests are judged against the others, each time anew.
    pub(super) rounds: Vec<RoundRecord>,
}

impl CheckLog {
    pub(super) fn new(policy: Policy, subjects: Vec<Subject>) -> Self {
        let racks: BTreeSet<u32> = subjects.iter().map(|subject| subject.rack).collect();
        let index: BTreeMap<u32, u32> = racks.iter().copied().zip(0..).collect();
        let pods: BTreeSet<u32> = subjects.iter().map(|subject| subject.pod).collect();
        let pod_index: BTreeMap<u32, u32> = pods.iter().copied().zip(0..).collect();
        let node = |subject: Subject| Node {
            rack: index.get(&subject.rack).copied().unwrap_or(0),
            pod: pod_index.get(&subject.pod).copied().unwrap_or(0),
            seen_before: subject.seen_before,
            local: subject.local,
            lost: None,
            has_left: false,
            compute_again: Vec::new(),
        };
        let nodes: Vec<Node> = subjects.into_iter().map(node).collect();
        let order = first_round::order(policy.seed, &nodes);
        let racks = racks.into_iter().collect();
        let pods = pods.into_iter().collect();
        Self {
            policy,
            nodes,
            racks,
            pods,
            order,
            suspect_step: 1,
            probed: BTreeSet::new(),
            rounds: Vec::new(),
        }
    }

    pub(super) fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node as usize)
    }

    pub(super) fn rack(&self, node: u32) -> u32 {
        self.node(node).map_or(0, |node| node.rack)
    }

    pub(super) fn pod(&self, node: u32) -> u32 {
        self.node(node).map_or(0, |node| node.pod)
    }

    /// Their racks, the lower first.
    pub(super) fn racks_of(&self, (a, b): Pair) -> Pair {
        pair(self.rack(a), self.rack(b))
    }

    /// Nodes that can be tested, ascending.
    pub(super) fn live(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.nodes).filter(|(_, node)| !node.is_gone()).map(|(number, _)| number)
    }

    pub(super) fn round(&self) -> u32 {
        u32::try_from(self.rounds.len()).unwrap_or(u32::MAX)
    }
}
