//! Boxes that are built, and what is known to be best on them.

use std::collections::BTreeMap;

use super::*;

/// All sets that are as good as the best one, ring and total, and how many sets there are by rings.
fn table(text: &str, wanted: usize) -> (Vec<GpuSet>, BTreeMap<u32, usize>) {
    let matrix = matrix(text);
    let ranking = ranking(&matrix, all(&matrix), wanted);
    let key = |ranked: &Ranked| (ranked.score.ring_mbps, ranked.score.total_mbps);
    let best: Vec<GpuSet> = ranking
        .iter()
        .take_while(|ranked| key(ranked) == key(&ranking[0]))
        .map(|ranked| ranked.set)
        .collect();
    let mut by_rings = BTreeMap::new();
    for ranked in &ranking {
        *by_rings.entry(ranked.score.capacity_links).or_default() += 1;
    }
    let choice = super::best(&matrix, all(&matrix), wanted);
    assert_eq!(
        (choice.set, choice.score),
        (ranking[0].set, ranking[0].score),
        "the short way and the long way"
    );
    (best, by_rings)
}

#[track_caller]
fn check(text: &str, wanted: usize, sets: &[&[usize]], by_rings: &[(u32, usize)]) {
    let (best, counts) = table(text, wanted);
    let mut sorted = best.clone();
    sorted.sort();
    assert_eq!(sorted, sets.iter().map(|gpus| set(gpus)).collect::<Vec<_>>(), "k = {wanted}");
    assert_eq!(best[0], set(sets[0]), "the tie-break, k = {wanted}");
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), by_rings, "sets by rings, k = {wanted}");
}

#[test]
fn wiring_a() {
    let pairs: [&[usize]; 8] = [&[0, 3], &[0, 4], &[1, 2], &[1, 5], &[2, 3], &[4, 7], &[5, 6], &[6, 7]];
    check(A, 2, &pairs, &[(0, 12), (1, 8), (2, 8)]);
    check(A, 3, &[&[0, 2, 3], &[1, 2, 3], &[4, 6, 7], &[5, 6, 7]], &[(0, 48), (1, 8)]);
    check(A, 4, &[&[0, 1, 2, 3], &[4, 5, 6, 7]], &[(0, 62), (1, 6), (2, 2)]);
    check(A, 6, &[&[0, 2, 3, 4, 6, 7], &[1, 2, 3, 5, 6, 7]], &[(1, 24), (2, 4)]);
    // Two more have two rings, and one link less.
    let matrix = matrix(A);
    let ranking = ranking(&matrix, all(&matrix), 6);
    assert_eq!([ranking[2].set, ranking[3].set], [set(&[0, 1, 2, 4, 5, 6]), set(&[0, 1, 3, 4, 5, 7])]);
    assert_eq!((ranking[3].score.capacity_links, ranking[4].score.capacity_links), (2, 1));
    let links = |set: GpuSet| {
        set.iter()
            .flat_map(|one| set.iter().map(move |other| (one, other)))
            .map(|(one, other)| matrix.links(one, other))
            .sum::<u32>()
            / 2
    };
    assert_eq!(
        [links(ranking[0].set), links(ranking[1].set), links(ranking[2].set), links(ranking[3].set)],
        [14, 14, 13, 13]
    );
}

#[test]
fn the_worst_sets_of_wiring_a_are_last() {
    let matrix = matrix(A);
    let pairs = ranking(&matrix, all(&matrix), 2);
    assert_eq!(pairs.iter().filter(|pair| pair.score.ring_mbps == 9000).count(), 12);
    let quads = ranking(&matrix, all(&matrix), 4);
    let worst = quads.last().unwrap().score;
    assert_eq!(worst.total_mbps, 84_400);
    let as_bad: Vec<GpuSet> =
        quads.iter().filter(|quad| quad.score.total_mbps == worst.total_mbps).map(|quad| quad.set).collect();
    assert_eq!(as_bad, [set(&[0, 2, 5, 7]), set(&[1, 3, 4, 6])]);
}

#[test]
fn wiring_b_needs_other_sets() {
    let pairs: [&[usize]; 8] = [&[0, 1], &[0, 2], &[1, 3], &[2, 6], &[3, 7], &[4, 5], &[4, 6], &[5, 7]];
    check(B, 2, &pairs, &[(0, 12), (1, 8), (2, 8)]);
    check(B, 4, &[&[0, 1, 2, 3], &[4, 5, 6, 7]], &[(0, 62), (1, 6), (2, 2)]);
    check(B, 6, &[&[0, 1, 2, 4, 5, 6], &[0, 1, 3, 4, 5, 7]], &[(1, 24), (2, 4)]);
    let matrix = matrix(B);
    let quads = ranking(&matrix, all(&matrix), 4);
    let worst = quads.last().unwrap().score.total_mbps;
    let as_bad: Vec<GpuSet> =
        quads.iter().filter(|quad| quad.score.total_mbps == worst).map(|quad| quad.set).collect();
    assert_eq!(as_bad, [set(&[0, 3, 5, 6]), set(&[1, 2, 4, 7])]);
}

#[test]
fn where_all_are_alike_the_lowest_are_taken() {
    for text in [C, G] {
        let matrix = matrix(text);
        for wanted in 1..=8 {
            let choice = best(&matrix, all(&matrix), wanted);
            assert_eq!(choice.set, GpuSet::first(wanted), "k = {wanted}");
            assert!((choice.gain_over_first() - 1.0).abs() < 1e-9);
            let ranking = ranking(&matrix, all(&matrix), wanted);
            assert_eq!(ranking[0].score.ring_mbps, ranking.last().unwrap().score.ring_mbps, "all are equal");
        }
    }
    // Behind a switch each has its 12 links to any other; without one the links are shared out.
    let (switched, meshed) = (matrix(C), matrix(G));
    assert!(switched.is_switched() && !meshed.is_switched());
    for wanted in 2..=8 {
        assert_eq!(best(&switched, all(&switched), wanted).score.capacity_links, 12);
    }
    let rings: Vec<u32> =
        (2..=8).map(|wanted| best(&meshed, all(&meshed), wanted).score.capacity_links).collect();
    assert_eq!(rings, [1, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn of_equal_links_those_near_one_processor_win() {
    let matrix = matrix(G);
    assert_eq!(matrix.numa(7), Some(6));
    assert_eq!(best(&matrix, all(&matrix), 2).set, set(&[0, 1]));
    assert_eq!(best(&matrix, set(&[1, 2, 3, 4]), 2).set, set(&[2, 3]));
    assert_eq!(best(&matrix, set(&[1, 2, 4, 5, 6]), 4).score.numa_nodes.0, 3);
}

#[test]
fn on_pcie_the_slowest_hop_counts() {
    let matrix = matrix(D);
    let two = best(&matrix, all(&matrix), 2);
    assert_eq!((two.set, two.score.ring_mbps), (set(&[0, 1]), LinkKind::Pci(PciPath::OneBridge).mbps()));
    let pairs = ranking(&matrix, all(&matrix), 2);
    assert_eq!(pairs.iter().filter(|pair| pair.score.ring_mbps == two.score.ring_mbps).count(), 4);
    assert_eq!(
        pairs.iter().filter(|pair| pair.score.ring_mbps == LinkKind::Pci(PciPath::System).mbps()).count(),
        16
    );
}

#[test]
fn sets_of_four_stay_in_a_socket_or_an_island() {
    for (text, rings) in [(D, 0), (F, 1)] {
        let matrix = matrix(text);
        let four = best(&matrix, all(&matrix), 4);
        assert_eq!((four.set, four.score.capacity_links), (set(&[0, 1, 2, 3]), rings));
        let quads = ranking(&matrix, all(&matrix), 4);
        assert_eq!(quads[1].set, set(&[4, 5, 6, 7]));
        assert_eq!(quads.iter().filter(|quad| quad.score.ring_mbps == four.score.ring_mbps).count(), 2);
        assert_eq!(quads.iter().filter(|quad| quad.score.ring_mbps == 9000).count(), 68);
    }
}

#[test]
fn bridges_make_pairs() {
    let eight = matrix(E);
    let two = best(&eight, all(&eight), 2);
    assert_eq!((two.set, two.score.capacity_links), (set(&[0, 1]), 4));
    assert_eq!(best(&eight, set(&[1, 2, 4, 5]), 2).set, set(&[4, 5]));
    let four = best(&eight, all(&eight), 4);
    assert_eq!(
        (four.set, four.score.ring_mbps),
        (set(&[0, 1, 2, 3]), LinkKind::Pci(PciPath::NumaNode).mbps())
    );
    let four = matrix(E4);
    assert_eq!(best(&four, all(&four), 2).set, set(&[0, 3]));
    assert_eq!(best(&four, set(&[0, 1, 2]), 2).set, set(&[1, 2]));
}

#[test]
fn rings_go_by_the_fastest_hops() {
    for (text, order) in [(A, [0, 3, 2, 1, 5, 6, 7, 4]), (B, [0, 1, 3, 7, 5, 4, 6, 2])] {
        let matrix = matrix(text);
        let ring = best(&matrix, all(&matrix), 8).ring;
        assert_eq!(ring, order);
        let hops = (0..8).map(|place| (ring[place], ring[(place + 1) % 8]));
        assert!(hops.clone().all(|(one, other)| matrix.link(one, other) == Some(LinkKind::NvLink(2))));
    }
    let matrix = matrix(A);
    assert_eq!(matrix.link(3, 4), Some(LinkKind::Pci(PciPath::System)), "in the order of numbers");
}

#[test]
fn the_device_plugins_cases() {
    let matrix = matrix(A);
    for (free, expected) in [
        ([0, 4, 5, 6].as_slice(), [5, 6]),
        (&[0, 1, 3], [0, 3]),
        (&[0, 1, 4], [0, 4]),
        (&[0, 2, 4, 5], [0, 4]),
    ] {
        assert_eq!(best(&matrix, set(free), 2).set, set(&expected), "free: {free:?}");
    }
}

#[test]
fn packing_leaves_a_good_set_for_the_next_job() {
    let matrix = matrix(A);
    let packed = |free: &[usize], wanted| choose(&matrix, set(free), wanted, Objective::Pack).unwrap();
    assert_eq!(packed(&[0, 2, 4, 5], 2).set, set(&[4, 5]));
    // What is left of the best pair's neighbours counts: both jobs get two links.
    let idle = packed(&[0, 1, 2, 3, 4, 5, 6, 7], 2);
    assert_eq!(idle.score.capacity_links, 2);
    let rest: Vec<usize> = (0..8).filter(|gpu| !idle.set.contains(*gpu)).collect();
    assert_eq!(packed(&rest, 2).score.capacity_links, 2);
    // One job takes the weaker of two sets, and leaves the better one.
    assert_eq!(packed(&[0, 1, 3, 4], 2).set, set(&[1, 3]));
    // With nothing left over it is the same as for one job.
    assert_eq!(packed(&[1, 5], 2).set, set(&[1, 5]));
    assert_eq!(packed(&[0, 1, 3], 2).set, set(&[0, 3]));
    let quads = packed(&[0, 1, 2, 3, 4, 5, 6, 7], 4);
    assert_eq!((quads.set, quads.score.capacity_links), (set(&[4, 5, 6, 7]), 2));
    // Fewer are left than another job of this size needs: they are kept good all the same.
    assert_eq!(packed(&[0, 1, 2, 3, 4, 7], 4).set, set(&[0, 1, 2, 3]));
}

#[test]
fn one_device_needs_no_links() {
    let matrix = matrix(A);
    let one = best(&matrix, set(&[3, 5]), 1);
    assert_eq!((one.set, one.ring.clone(), one.score.ring_mbps), (set(&[3]), vec![3], 0));
    assert!((one.gain_over_first() - 1.0).abs() < 1e-9);
    let lonely = Matrix::parse("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\t0\n").unwrap();
    assert_eq!(best(&lonely, GpuSet::first(16), 1).ring, [0]);
    assert_eq!(
        choose(&lonely, GpuSet::first(16), 2, Objective::Topology),
        Err(CannotChoose::TooFew { wanted: 2, free: 1 })
    );
    assert_eq!(choose(&lonely, GpuSet::first(1), 0, Objective::Pack), Err(CannotChoose::None));
}
