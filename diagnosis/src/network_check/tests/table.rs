//! Every set of broken nodes of a small cluster, one by one, against the table of the study.

use super::super::{
    LinkKind, NodeVerdict, Outcome, Policy,
    rehearsal::{Cluster, rehearse},
};

/// Most rounds that a set of k broken nodes may take, by N (from 2) and k; 0 ends the row.
const MAX_ROUNDS: [&[u32]; 9] = [
    &[1, 1, 1],
    &[1, 4, 4, 4],
    &[1, 2, 3, 3, 3],
    &[1, 4, 4, 7, 7, 7],
    &[1, 2, 3, 4, 7, 7, 7],
    &[1, 3, 4, 5, 7, 9, 8, 8],
    &[1, 2, 3, 3, 5, 6, 8, 7, 7],
    &[1, 3, 4, 4, 5, 7, 9, 16, 15],
    &[1, 2, 3, 3, 5, 5, 7, 9, 16],
];

fn policy(seed: u64) -> Policy {
    Policy { max_rounds: 64, taint_guard_permille: 1000, ..Policy::new(seed) }
}

fn set(bits: u32) -> std::collections::BTreeSet<u32> {
    (0..32).filter(|node| bits & (1 << node) != 0).collect()
}

fn faults(outcome: &Outcome) -> u32 {
    let nodes = (0..).zip(&outcome.nodes).filter(|(_, node)| node.verdict == NodeVerdict::Fault);
    nodes.map(|(number, _)| 1_u32 << number).sum()
}

#[test]
fn every_set_of_broken_nodes_takes_no_more_rounds_than_the_table() {
    let mut over = Vec::new();
    for seed in 0..4 {
        for (nodes, row) in (2_u32..).zip(MAX_ROUNDS) {
            let mut most = vec![0; nodes as usize + 1];
            for bits in 0..1_u32 << nodes {
                let broken = bits.count_ones();
                let cluster = Cluster { faulty: set(bits), seed, ..Cluster::healthy(nodes, 1) };
                let outcome = rehearse(&cluster, policy(seed));
                let found = faults(&outcome);
                assert_eq!(found & !bits, 0, "N={nodes} {bits:b}: healthy nodes blamed: {found:b}");
                if nodes - broken >= 2 {
                    assert_eq!(found, bits, "N={nodes} {bits:b}");
                }
                let rounds = outcome.rounds.len() as u32;
                most[broken as usize] = rounds.max(most[broken as usize]);
            }
            for (k, (rounds, limit)) in most.iter().zip(row).enumerate() {
                if rounds > limit {
                    over.push(format!("seed {seed} N={nodes} k={k}: {rounds} > {limit}"));
                }
            }
        }
    }
    assert!(over.is_empty(), "{over:#?}");
}

/// Invariant 5: one dead link more, for every set of broken nodes that leaves three healthy ones and every link between
/// two of those: no healthy node is blamed, no wrong link is named, and broken nodes are found.
#[test]
fn one_more_dead_link_blames_no_healthy_node() {
    let (mut cases, mut named) = (0, 0);
    for nodes in 3..=8_u32 {
        for bits in 0..1_u32 << nodes {
            let healthy: Vec<u32> = (0..nodes).filter(|node| bits & (1 << node) == 0).collect();
            if healthy.len() < 3 {
                continue;
            }
            for (at, a) in healthy.iter().enumerate() {
                let links = healthy.iter().skip(at + 1).flat_map(|b| (0..4_u64).map(move |seed| (b, seed)));
                for (b, seed) in links {
                    let dead_links = [(*a, *b)].into();
                    let cluster =
                        Cluster { faulty: set(bits), dead_links, seed, ..Cluster::healthy(nodes, 1) };
                    let outcome = rehearse(&cluster, policy(seed));
                    let case = format!("N={nodes} broken {bits:b} link {a}:{b}");
                    for (node, finding) in (0..).zip(&outcome.nodes) {
                        assert!(
                            !finding.tainted || bits & (1 << node) != 0,
                            "{case}: node {node} {finding:?}"
                        );
                    }
                    assert_eq!(faults(&outcome), bits, "{case}: {outcome:#?}");
                    for link in &outcome.links {
                        assert_eq!((link.nodes, link.kind), ((*a, *b), LinkKind::Dead), "{case}");
                        named += 1;
                    }
                    assert!(outcome.rack_pairs.is_empty() && outcome.uplinks.is_empty(), "{case}");
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 4 * 2731);
    assert!(named * 10 > cases, "{named} of {cases} links were named");
}
