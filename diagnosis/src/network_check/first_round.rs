//! The order of the first round: a match of all nodes, as many of them as can be with a node of another rack.
//!
//! Racks play a tournament in which each meets each other once (the circle method); a check plays one round of it,
//! chosen by the seed. The nodes of a rack are spread over the opponents of several rounds of the tournament: slot s
//! plays round s + offset, so one check tests min(slots, racks - 1) opponents of every rack.

use super::check_log::Node;
use crate::rng::Rng;

/// Random streams.
const ORDER: u64 = 1;

/// The nodes without a fault of their own; neighbours (0 and 1, 2 and 3, ...) are the pairs, a last odd one comes last.
pub(super) fn order(seed: u64, nodes: &[Node]) -> Vec<u32> {
    let mut rng = Rng::new(seed, ORDER);
    let count = nodes.iter().map(|node| node.rack as usize + 1).max().unwrap_or(0);
    let mut racks: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (number, node) in (0..).zip(nodes) {
        if node.local.fault.is_none()
            && let Some(rack) = racks.get_mut(node.rack as usize)
        {
            rack.push(number);
        }
    }
    racks.retain(|rack| !rack.is_empty());
    for rack in &mut racks {
        rng.shuffle(rack);
    }
    rng.shuffle(&mut racks);
    let offset = rng.below(opponents(racks.len()).max(1));
    let slots = racks.iter().map(Vec::len).max().unwrap_or(0);
    let (mut pairs, mut left) = (Vec::new(), Vec::new());
    for slot in 0..slots {
        for (a, rack) in racks.iter().enumerate() {
            let Some(node) = rack.get(slot) else { continue };
            let b = opponent(a, slot + offset, racks.len());
            match b.and_then(|b| racks.get(b)?.get(slot)) {
                Some(other) if b.is_some_and(|b| a < b) => pairs.push([*node, *other]),
                Some(_) => {}
                None => left.push((a, *node)),
            }
        }
    }
    pairs.extend(across(left));
    rng.shuffle(&mut pairs);
    pairs.sort_by_key(|pair| pair[0] == pair[1]);
    let mut order: Vec<u32> = pairs.into_iter().flatten().collect();
    order.dedup();
    order
}

/// Nodes without an opponent: half of them meet the other half, which is of other racks unless one rack is more than
/// half. A last odd one is paired with itself.
fn across(mut left: Vec<(usize, u32)>) -> Vec<[u32; 2]> {
    left.sort_by_key(|(rack, _)| *rack);
    let half = left.len() / 2;
    let (first, second) = left.split_at(half);
    let mut pairs: Vec<[u32; 2]> = first.iter().zip(second).map(|((_, a), (_, b))| [*a, *b]).collect();
    pairs.extend(second.get(half).map(|(_, odd)| [*odd, *odd]));
    pairs
}

/// Rounds of a tournament of so many racks.
fn opponents(racks: usize) -> usize {
    (racks + racks % 2).saturating_sub(1)
}

/// The opponent of rack `a` in this round of the tournament; `None`: it has none, as their number is odd.
fn opponent(a: usize, round: usize, racks: usize) -> Option<usize> {
    let circle = opponents(racks);
    if circle == 0 {
        return None;
    }
    let round = round % circle;
    // The last place is fixed; the others meet where their numbers add up to the round. `circle` is odd, so (circle +
    // 1) / 2 is the inverse of 2 and exactly one place would meet itself: it meets the last.
    let b = if a == circle {
        round * circle.div_ceil(2) % circle
    } else {
        let b = (round + circle - a % circle) % circle;
        if b == a { circle } else { b }
    };
    (b < racks && b != a).then_some(b)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::network_check::LocalCheck;

    fn nodes(racks: &[u32]) -> Vec<Node> {
        let local = LocalCheck::default();
        let node = |rack: &u32| Node {
            rack: *rack,
            pod: 0,
            seen_before: false,
            local: local.clone(),
            lost: None,
            has_left: false,
            compute_again: Vec::new(),
        };
        racks.iter().map(node).collect()
    }

    #[test]
    fn in_a_tournament_each_meets_each_other_once() {
        for racks in 2..20 {
            let mut met = BTreeSet::new();
            for round in 0..opponents(racks) {
                for a in 0..racks {
                    let Some(b) = opponent(a, round, racks) else { continue };
                    assert_eq!(opponent(b, round, racks), Some(a), "{racks} racks, round {round}");
                    if a < b {
                        assert!(met.insert((a, b)));
                    }
                }
            }
            assert_eq!(met.len(), racks * (racks - 1) / 2);
        }
    }

    #[test]
    fn as_many_nodes_in_a_rack_as_racks_test_every_pair_of_racks() {
        for racks in [4_u32, 8, 16] {
            let under: Vec<u32> = (0..racks * racks).map(|node| node / racks).collect();
            let order = order(7, &nodes(&under));
            let mut met = BTreeSet::new();
            for pair in order.chunks(2) {
                let (a, b) = (under[pair[0] as usize], under[pair[1] as usize]);
                assert_ne!(a, b);
                met.insert((a.min(b), a.max(b)));
            }
            assert_eq!(met.len() as u32, racks * (racks - 1) / 2);
        }
    }

    #[test]
    fn everybody_is_there_once_whatever_the_racks() {
        let mut rng = Rng::new(3, 3);
        for count in 0..60 {
            let under: Vec<u32> = (0..count).map(|_| rng.below(7) as u32).collect();
            let mut order = order(rng.next(), &nodes(&under));
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }
}
