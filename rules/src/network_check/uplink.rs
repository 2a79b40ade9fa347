//! A rack whose switch has lost its way out: its nodes fail with everybody outside, and are fit.

use super::{
    Kind, TestResult,
    facts::{Standing, all_met, tests},
    judged::Judged,
    known::Known,
};

/// A rack of one node cannot be told from the node.
const FEWEST_NODES: u32 = 2;

/// So many condemned nodes of a rack are worth a round; of fewer it may well be chance.
const FEWEST_FOR_A_ROUND: u32 = 3;

/// Percent of a rack's nodes that must have failed with the outside.
const SHARE: u32 = 80;

/// What was seen of one rack as a whole.
#[derive(Debug, Clone, Default)]
struct Rack {
    live: u32,
    /// A node of it passed with one outside.
    passes_outside: bool,
    /// Its nodes that failed with a good one outside.
    failed: u32,
    condemned: u32,
    /// Other racks with which it failed, two at most.
    against: Vec<u32>,
    /// Two of its nodes passed with each other.
    passes_inside: bool,
    /// Two of its nodes were asked to meet because of this suspicion.
    is_diagnosed: bool,
}

/// What was seen of the racks as wholes.
#[derive(Debug, Clone, Default)]
pub(super) struct Uplinks {
    racks: Vec<Rack>,
    /// By node: a test inside its rack passed.
    pub(super) passed_inside: Vec<bool>,
    /// By node: those of its rack that passed inside and that it failed with.
    pub(super) failed_inside: Vec<Vec<u32>>,
    /// By node: whom of its rack it met.
    pub(super) met_inside: Vec<Vec<u32>>,
}

impl Uplinks {
    /// Nobody gets out of this rack.
    pub(super) fn is_suspect(&self, rack: u32) -> bool {
        self.racks.get(rack as usize).is_some_and(|rack| {
            rack.live >= FEWEST_NODES
                && !rack.passes_outside
                && rack.against.len() >= 2
                && u64::from(rack.failed) * 100 >= u64::from(rack.live) * u64::from(SHARE)
        })
    }

    /// Nobody gets out of this rack, and inside it works.
    pub(super) fn is_dead(&self, rack: u32) -> bool {
        self.is_suspect(rack) && self.racks.get(rack as usize).is_some_and(|rack| rack.passes_inside)
    }

    pub(super) fn is_diagnosed(&self, rack: u32) -> bool {
        self.racks.get(rack as usize).is_some_and(|rack| rack.is_diagnosed)
    }

    pub(super) fn suspects(&self) -> impl Iterator<Item = u32> {
        (0_u32..).take(self.racks.len()).filter(|rack| self.is_suspect(*rack))
    }

    /// So many nodes of one rack are not all broken by chance, in view of how many are broken elsewhere: worth a
    /// round of its own.
    pub(super) fn is_no_chance(&self, rack: u32) -> bool {
        let own = self.racks.get(rack as usize).filter(|rack| rack.condemned >= FEWEST_FOR_A_ROUND);
        let Some(own) = own else { return false };
        let sum = |of: fn(&Rack) -> u32| self.racks.iter().map(|rack| f64::from(of(rack))).sum::<f64>();
        let elsewhere = sum(|rack| rack.live) - f64::from(own.live);
        let broken = sum(|rack| rack.condemned) - f64::from(own.condemned);
        let racks = f64::from(u32::try_from(self.racks.len()).unwrap_or(u32::MAX));
        let exponent = i32::try_from(own.condemned).unwrap_or(i32::MAX);
        elsewhere > 0.0 && racks * (broken / elsewhere).powi(exponent) < 0.05
    }
}

pub(super) fn find(known: &Known, judged: &[Vec<Judged>], nodes: &[Standing]) -> Uplinks {
    let mut uplinks = Uplinks {
        racks: vec![Rack::default(); known.racks.len()],
        passed_inside: vec![false; nodes.len()],
        failed_inside: vec![Vec::new(); nodes.len()],
        met_inside: vec![Vec::new(); nodes.len()],
    };
    // Of two racks nobody can say which one is cut off.
    if known.racks.len() < 3 {
        return uplinks;
    }
    for (number, node) in (0_u32..).zip(nodes) {
        let rack = known.rack(number);
        let Some(own) = uplinks.racks.get_mut(rack as usize) else { continue };
        own.live += u32::from(!node.is_gone);
        own.condemned += u32::from(node.condemned && !node.is_gone);
    }
    let good = |node: u32| nodes.get(node as usize).is_some_and(|node| node.good);
    let mut failed = vec![false; nodes.len()];
    for (_, _, test, judged) in tests(&known.rounds, judged) {
        // A group of three that fails says nothing of whom it met.
        let is_pair = test.members.len() == 2;
        let met = all_met(test).filter(|_| judged.works || is_pair);
        for (node, partner) in met.flat_map(|(a, b)| [(a, b), (b, a)]) {
            let (rack, other) = (known.rack(node), known.rack(partner));
            let Some(own) = uplinks.racks.get_mut(rack as usize) else { continue };
            let index = node as usize;
            if rack == other {
                own.passes_inside |= judged.works;
                own.is_diagnosed |= test.kind == Kind::RackDiagnosis;
                uplinks.passed_inside[index] |= judged.works;
                uplinks.met_inside[index].push(partner);
            } else if judged.works {
                own.passes_outside = true;
            } else if judged.result == TestResult::Fail
                && !test.explained
                && good(partner)
                && !nodes[index].is_gone
            {
                own.failed += u32::from(!failed[index]);
                failed[index] = true;
                if own.against.len() < 2 && !own.against.contains(&other) {
                    own.against.push(other);
                }
            }
        }
    }
    for (_, _, test, judged) in tests(&known.rounds, judged) {
        let [a, b] = test.members[..] else { continue };
        let is_inside = known.rack(a) == known.rack(b);
        if is_inside && judged.result == TestResult::Fail && !test.explained {
            for (node, partner) in [(a, b), (b, a)] {
                if uplinks.passed_inside[partner as usize]
                    && !uplinks.failed_inside[node as usize].contains(&partner)
                {
                    uplinks.failed_inside[node as usize].push(partner);
                }
            }
        }
    }
    uplinks
}
