//! What the closed tests prove. A pure function of the log: nothing here remembers anything.
//!
//! A test that passed proves both its ends good, since data went both ways and was checked. A test that did not
//! proves nothing by itself; with a partner that is proven good it is evidence. A failed group of three is no
//! evidence about anybody: any of its three links would explain it.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Kind, RoundRecord, TestRecord,
    judged::{Judged, judge},
    known::{Known, Pair, pair},
    links::{self, Edge, RackTally},
    uplink::{self, Uplinks},
    witness,
};

/// A test that speaks against a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// A node that is proven good.
    pub(super) partner: u32,
    /// Where in the log.
    pub(super) round: usize,
    pub(super) test: usize,
    /// Else it was slow.
    pub(super) is_fail: bool,
}

/// What is known of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Standing {
    pub(super) is_gone: bool,
    /// A test with it passed.
    pub(super) has_passed: bool,
    /// That, and it is still there.
    pub(super) good: bool,
    /// Never passed, and did not pass with enough that are good.
    pub(super) condemned: bool,
    /// Condemned for being slow.
    pub(super) slow: bool,
    pub(super) flaky: bool,
    /// And another look at its links would not show two that are bad instead.
    pub(super) surely_flaky: bool,
    /// One piece for each good partner.
    pub(super) evidence: Vec<Piece>,
    /// With whom it was tested, in pairs.
    pub(super) met: Vec<u32>,
}

impl Standing {
    /// It is good or bad, and nobody knows which.
    pub(super) fn is_suspect(&self) -> bool {
        !self.is_gone && !self.good && !self.condemned
    }

    /// Others can be judged by their tests with it.
    pub(super) fn is_witness(&self) -> bool {
        self.good && !self.flaky
    }
}

/// Where more than one node in so many has not passed, nodes are broken, and good witnesses are too few to be chosen.
const MANY: u32 = 6;

/// What the closed tests prove.
#[derive(Debug)]
pub(super) struct Facts {
    /// By round and test, as in the log.
    pub(super) judged: Vec<Vec<Judged>>,
    pub(super) nodes: Vec<Standing>,
    /// Pairs of which a test did not pass, whatever their ends are.
    pub(super) edges: BTreeMap<Pair, Edge>,
    pub(super) rack_pairs: BTreeMap<Pair, RackTally>,
    /// Pairs of racks between which some test passed.
    pub(super) open_paths: BTreeSet<Pair>,
    pub(super) uplinks: Uplinks,
    /// Samples that it takes to call a node or a link slow.
    pub(super) slow_confirmations: u32,
}

impl Facts {
    pub(super) fn of(known: &Known) -> Self {
        let (judged, slow_confirmations) = judge(known);
        let mut nodes = standings(known, &judged);
        let is_good: Vec<bool> = nodes.iter().map(|node| node.good).collect();
        let edges = links::edges(known, &judged, &is_good);
        let open_paths = links::open_paths(known, &judged);
        let rack_pairs = links::rack_pairs(known, &edges, &is_good, &open_paths);
        gather(known, &edges, &rack_pairs, &mut nodes);
        let fewest = known.policy.confirm.max(1);
        let unproven = count(nodes.iter().filter(|node| !node.is_gone && !node.has_passed));
        let can_choose = unproven <= count(known.live()) / MANY && known.racks.len() <= witness::COMPARED;
        let fit = (0_u32..).zip(&is_good).filter(|(_, good)| **good).map(|(number, _)| known.rack(number));
        let fit_racks: BTreeSet<u32> = fit.collect();
        for (number, node) in (0_u32..).zip(&mut nodes).filter(|(_, node)| !node.has_passed) {
            let fails = count(node.evidence.iter().filter(|piece| piece.is_fail));
            node.slow = fails < fewest && fails < count(node.evidence.iter());
            let needed = if node.slow { fewest.max(slow_confirmations) } else { fewest };
            let has_fit_mate = fit_racks.contains(&known.rack(number));
            let pieces = independent(known, number, has_fit_mate, &node.evidence, &open_paths);
            let is_enough = pieces.is_sound || pieces.count > needed || !can_choose;
            node.condemned = pieces.count >= needed && is_enough;
        }
        links::mark_flaky(&edges, &mut nodes);
        let uplinks = uplink::find(known, &judged, &nodes);
        for (number, node) in (0_u32..).zip(&mut nodes) {
            // What it found out itself says more than any test.
            let has_own = known.node(number).is_some_and(|node| node.local.fault.is_some());
            node.condemned &= !has_own;
        }
        Self { judged, nodes, edges, rack_pairs, open_paths, uplinks, slow_confirmations }
    }

    pub(super) fn node(&self, node: u32) -> Option<&Standing> {
        self.nodes.get(node as usize)
    }

    pub(super) fn is(&self, node: u32, question: impl Fn(&Standing) -> bool) -> bool {
        self.node(node).is_some_and(question)
    }

    pub(super) fn have_met(&self, a: u32, b: u32) -> bool {
        self.is(a, |node| node.met.contains(&b))
    }

    /// A test between two good nodes failed, so not everything is a node's fault here.
    pub(super) fn has_link_trouble(&self) -> bool {
        self.edges.iter().any(|(ends, edge)| edge.fails > 0 && self.are_good(*ends))
    }

    /// Nobody gets from one of these racks to the other in the usual time.
    pub(super) fn is_cut(&self, racks: Pair) -> bool {
        racks.0 != racks.1
            && (self.rack_pairs.get(&racks).is_some_and(RackTally::is_bad)
                || self.uplinks.is_dead(racks.0)
                || self.uplinks.is_dead(racks.1))
    }

    pub(super) fn are_good(&self, (a, b): Pair) -> bool {
        self.is(a, |node| node.good) && self.is(b, |node| node.good)
    }
}

/// Pieces of evidence that do not share an explanation.
struct Independent {
    count: u32,
    /// Not all of them can be the fault of paths between racks.
    is_sound: bool,
}

/// All that came over a path between two racks that nobody has passed may be the path's fault: they are one, and it
/// takes one more of such pieces alone where witnesses can be chosen, if somebody in its own rack is fit and can tell. In
/// a rack where nobody is, the nodes are at fault.
fn independent(
    known: &Known,
    node: u32,
    has_fit_mate: bool,
    evidence: &[Piece],
    open_paths: &BTreeSet<Pair>,
) -> Independent {
    let explanation = |piece: &Piece| {
        let path = known.racks_of((node, piece.partner));
        let is_open = !has_fit_mate || path.0 == path.1 || open_paths.contains(&path);
        (path, is_open.then_some(piece.partner))
    };
    let explanations: BTreeSet<_> = evidence.iter().map(explanation).collect();
    Independent {
        count: count(explanations.iter()),
        is_sound: explanations.iter().any(|(_, partner)| partner.is_some()),
    }
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// The tests with the places where they stand.
pub(super) fn tests<'a>(
    rounds: &'a [RoundRecord],
    judged: &'a [Vec<Judged>],
) -> impl Iterator<Item = (usize, usize, &'a TestRecord, Judged)> {
    rounds.iter().zip(judged).enumerate().flat_map(|(round, (record, judged))| {
        let tests = record.tests.iter().zip(judged).enumerate();
        tests.map(move |(index, (test, judged))| (round, index, test, *judged))
    })
}

/// Two members, met in an ordinary test; inside a rack that was cut off, meeting says nothing of the outside.
pub(super) fn ends(test: &TestRecord) -> Option<Pair> {
    match (test.kind, &test.members[..]) {
        (Kind::RackDiagnosis | Kind::Idle, _) => None,
        (_, [a, b]) => Some(pair(*a, *b)),
        _ => None,
    }
}

/// All who met each other in it; where it passed, they all got through.
pub(super) fn all_met(test: &TestRecord) -> impl Iterator<Item = Pair> {
    let members = &test.members;
    members.iter().enumerate().flat_map(|(at, a)| members.iter().skip(at + 1).map(|b| pair(*a, *b)))
}

/// Who is good, and who met whom.
fn standings(known: &Known, judged: &[Vec<Judged>]) -> Vec<Standing> {
    let new = |node: &super::known::Node| Standing { is_gone: node.is_gone(), ..Standing::default() };
    let mut nodes: Vec<Standing> = known.nodes.iter().map(new).collect();
    for (_, _, test, judged) in tests(&known.rounds, judged) {
        if test.kind == Kind::RackDiagnosis {
            continue;
        }
        for member in &test.members {
            let Some(node) = nodes.get_mut(*member as usize) else { continue };
            node.has_passed |= judged.works;
            node.good = node.has_passed && !node.is_gone;
            if let [a, b] = test.members[..] {
                node.met.push(if a == *member { b } else { a });
            }
        }
    }
    nodes
}

/// What speaks against the nodes that never passed: each good partner once, and none over a path that is known bad.
fn gather(
    known: &Known,
    edges: &BTreeMap<Pair, Edge>,
    rack_pairs: &BTreeMap<Pair, RackTally>,
    nodes: &mut [Standing],
) {
    for ((a, b), edge) in edges {
        let Some(piece) = edge.first else { continue };
        let racks = known.racks_of((*a, *b));
        if rack_pairs.get(&racks).is_some_and(RackTally::is_bad) {
            continue;
        }
        for (node, partner) in [(*a, *b), (*b, *a)] {
            let is_good = |node: u32| nodes.get(node as usize).is_some_and(|node| node.good);
            if is_good(partner)
                && let Some(node) = nodes.get_mut(node as usize)
            {
                node.evidence.push(Piece { partner, ..piece });
            }
        }
    }
    for node in nodes {
        node.evidence.sort_by_key(|piece| (piece.round, piece.test));
    }
}
