//! Small matrices against a search that tries every order of devices and every packing of cycles, and shares no code.

use proptest::prelude::*;

use super::*;

/// All orders of these, by insertion.
fn orders(gpus: &[usize]) -> Vec<Vec<usize>> {
    let Some((last, rest)) = gpus.split_last() else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for order in orders(rest) {
        for place in 0..=order.len() {
            let mut longer = order.clone();
            longer.insert(place, *last);
            all.push(longer);
        }
    }
    all
}

fn hops(order: &[usize]) -> Vec<(usize, usize)> {
    (0..order.len()).map(|place| (order[place], order[(place + 1) % order.len()])).collect()
}

/// The most cycles that can be taken at once, each hop of each taking a link.
fn packed(cycles: &[Vec<(usize, usize)>], links: &mut [Vec<u32>]) -> u32 {
    let Some((first, rest)) = cycles.split_first() else { return 0 };
    let without = packed(rest, links);
    if first.iter().any(|(one, other)| links[*one][*other] == 0) {
        return without;
    }
    for (one, other) in first {
        links[*one][*other] -= 1;
        links[*other][*one] -= 1;
    }
    // The same cycle may be taken again.
    let with = 1 + packed(cycles, links);
    for (one, other) in first {
        links[*one][*other] += 1;
        links[*other][*one] += 1;
    }
    with.max(without)
}

/// Rings, their bandwidth, the total, the nodes, and the order.
fn judged(matrix: &Matrix, gpus: &[usize]) -> (u32, u32, u32, u32, Vec<usize>) {
    let orders = orders(gpus);
    let slowest = |order: &Vec<usize>| {
        hops(order).iter().map(|(one, other)| matrix.mbps(*one, *other)).min().unwrap_or(0)
    };
    let fastest = orders.iter().map(slowest).max().unwrap_or(0);
    let ring = orders.iter().filter(|order| slowest(order) == fastest).min().unwrap().clone();
    let size = matrix.size();
    let mut links: Vec<Vec<u32>> =
        (0..size).map(|one| (0..size).map(|other| matrix.links(one, other)).collect()).collect();
    let narrowest =
        |order: &Vec<usize>| hops(order).iter().map(|(one, other)| matrix.links(*one, *other)).min();
    let rings = match gpus {
        [_] => 0,
        // Every ring has all links of its narrowest hop, because they are the same ones to all others.
        _ if matrix.is_switched() => orders.iter().filter_map(narrowest).max().unwrap_or(0),
        [one, other] => links[*one][*other],
        _ => {
            let is_once = |order: &&Vec<usize>| order[0] == gpus[0] && order[1] < order[order.len() - 1];
            let cycles: Vec<_> = orders.iter().filter(is_once).map(|order| hops(order)).collect();
            packed(&cycles, &mut links)
        }
    };
    let of_pairs = gpus.iter().flat_map(|one| gpus.iter().map(|other| matrix.mbps(*one, *other)));
    let nodes: std::collections::BTreeSet<_> = gpus.iter().map(|gpu| matrix.numa(*gpu)).collect();
    let mbps = match rings {
        0 if gpus.len() < 2 => 0,
        0 => fastest,
        rings => rings * LinkKind::NVLINK_MBPS,
    };
    (rings, mbps, of_pairs.sum::<u32>() / 2, u32::try_from(nodes.len()).unwrap(), ring)
}

fn link() -> impl Strategy<Value = LinkKind> {
    prop_oneof![
        2 => Just(LinkKind::Pci(PciPath::System)),
        1 => Just(LinkKind::Pci(PciPath::NumaNode)),
        1 => Just(LinkKind::Pci(PciPath::OneBridge)),
        5 => (1_u32..=3).prop_map(LinkKind::NvLink),
    ]
}

/// Some have them and some do not, or have fewer.
fn a_port_of_a_switch() -> impl Strategy<Value = LinkKind> {
    prop_oneof![1 => Just(LinkKind::Pci(PciPath::System)), 2 => Just(LinkKind::NvLink(12)), 4 => Just(LinkKind::NvLink(18))]
}

fn a_matrix(sizes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Matrix> {
    a_matrix_of(sizes, link)
}

fn a_matrix_of<Links: Strategy<Value = LinkKind> + 'static>(
    sizes: std::ops::RangeInclusive<usize>,
    link: fn() -> Links,
) -> impl Strategy<Value = Matrix> {
    sizes.prop_flat_map(move |size| {
        let links = prop::collection::vec(link(), size * size);
        let numa = prop::collection::vec(prop::option::of(0_u32..2), size);
        (links, numa).prop_map(move |(links, numa)| {
            let at = |one: usize, other: usize| match one == other {
                true => LinkKind::Same,
                false => links[one.min(other) * size + one.max(other)],
            };
            let row = |one| (0..size).map(|other| at(one, other)).collect();
            Matrix::new(&(0..size).map(row).collect::<Vec<_>>(), &numa).unwrap()
        })
    })
}

fn measured(sizes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Matrix> {
    sizes.prop_flat_map(|size| {
        let row = prop::collection::vec((0_u32..40).prop_map(|value| f64::from(value) / 4.0), size);
        prop::collection::vec(row, size).prop_map(|rows| Matrix::measured(&rows).unwrap())
    })
}

fn check_against_brute_force(matrix: &Matrix, free: u16, wanted: usize) -> Result<(), TestCaseError> {
    let free: GpuSet = (0..matrix.size()).filter(|gpu| free >> gpu & 1 == 1).collect();
    prop_assume!(free.len() >= wanted);
    let of_size = |bits: &u16| bits.count_ones() as usize == wanted;
    let sets = (0..1_u16 << matrix.size())
        .filter(of_size)
        .map(|bits| (0..16).filter(move |gpu| bits >> gpu & 1 == 1));
    let mut expected: Vec<(GpuSet, Vec<usize>, Score)> = sets
        .map(|gpus| gpus.collect::<Vec<usize>>())
        .filter(|gpus| gpus.iter().all(|gpu| free.contains(*gpu)))
        .map(|gpus| {
            let (capacity_links, ring_mbps, total_mbps, nodes, ring) = judged(matrix, &gpus);
            let numa_nodes = std::cmp::Reverse(nodes);
            (set(&gpus), ring, Score { ring_mbps, total_mbps, numa_nodes, capacity_links })
        })
        .collect();
    expected.sort_by(|one, other| other.2.cmp(&one.2).then_with(|| one.0.iter().cmp(other.0.iter())));
    let choice = best(matrix, free, wanted);
    prop_assert_eq!((choice.set, &choice.ring, choice.score), (expected[0].0, &expected[0].1, expected[0].2));
    let ranked: Vec<_> =
        ranking(matrix, free, wanted).iter().map(|ranked| (ranked.set, ranked.score)).collect();
    prop_assert_eq!(ranked, expected.iter().map(|it| (it.0, it.2)).collect::<Vec<_>>());
    let first = expected.iter().find(|it| it.0 == free.lowest(wanted)).unwrap();
    prop_assert_eq!(choice.first_score, first.2);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn small_matrices(matrix in a_matrix(1..=6), free in 1_u16..64, wanted in 1_usize..=5) {
        check_against_brute_force(&matrix, free, wanted)?;
    }

    #[test]
    fn small_switched_matrices(matrix in a_matrix_of(1..=6, a_port_of_a_switch), free in 1_u16..64, wanted in 1_usize..=5) {
        check_against_brute_force(&matrix, free, wanted)?;
    }

    #[test]
    fn small_measured_matrices(matrix in measured(1..=6), free in 1_u16..64, wanted in 1_usize..=5) {
        check_against_brute_force(&matrix, free, wanted)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_of_six(matrix in a_matrix(6..=6)) {
        check_against_brute_force(&matrix, 63, 6)?;
    }

    /// Whatever the matrix, the search ends, and its choice is one of the free sets.
    #[test]
    fn large_matrices_end(matrix in a_matrix(12..=16), free in any::<u16>(), wanted in 1_usize..=16) {
        if let Ok(choice) = choose(&matrix, GpuSet::from_bits(free), wanted, Objective::Topology) {
            prop_assert_eq!(choice.set.len(), wanted);
            prop_assert!(choice.set.without(GpuSet::from_bits(free)).is_empty());
            prop_assert_eq!(choice.ring.iter().copied().collect::<GpuSet>(), choice.set);
        }
    }

    /// New numbers for the same devices change the numbers of the choice and nothing else.
    #[test]
    fn numbers_do_not_matter(matrix in a_matrix(5..=8), wanted in 2_usize..=5, seed in any::<u64>()) {
        let size = matrix.size();
        let mut places: Vec<usize> = (0..size).collect();
        places.sort_by_key(|place| (seed >> (place * 7)) & 0x7f);
        let row = |one: &usize| places.iter().map(|other| matrix.link(*one, *other).unwrap()).collect();
        let numa: Vec<_> = places.iter().map(|place| matrix.numa(*place)).collect();
        let renamed = Matrix::new(&places.iter().map(row).collect::<Vec<_>>(), &numa).unwrap();
        prop_assert_eq!(best(&matrix, all(&matrix), wanted).score, best(&renamed, all(&matrix), wanted).score);
    }
}
