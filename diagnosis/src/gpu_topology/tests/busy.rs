//! Every pattern of busy devices.

use super::*;

/// Mean modelled ring bandwidth of the best over that of the first, over all patterns with so many free.
fn gain(text: &str, free: usize, wanted: usize) -> f64 {
    let matrix = matrix(text);
    let (mut best_mbps, mut first_mbps) = (0_u64, 0_u64);
    for pattern in 0..256_u16 {
        let set: GpuSet = (0..8).filter(|gpu| pattern >> gpu & 1 == 1).collect();
        if set.len() == free {
            let choice = best(&matrix, set, wanted);
            best_mbps += u64::from(choice.score.ring_mbps);
            first_mbps += u64::from(choice.first_score.ring_mbps);
        }
    }
    best_mbps as f64 / first_mbps as f64
}

#[test]
fn the_gain_over_the_first_free_devices() {
    for (text, wanted, free, expected) in [
        (A, 4, 8, 1.00),
        (A, 4, 7, 1.69),
        (A, 4, 6, 1.92),
        (A, 4, 5, 1.64),
        (A, 4, 4, 1.00),
        (A, 2, 8, 2.00),
        (B, 2, 8, 1.00),
        (A, 2, 6, 1.60),
        (B, 2, 6, 1.14),
        (A, 3, 6, 1.16),
        (A, 3, 5, 1.46),
        (C, 4, 7, 1.00),
    ] {
        let gain = gain(text, free, wanted);
        assert!((gain - expected).abs() < 0.005, "k = {wanted}, {free} free: {gain}");
    }
}

#[test]
fn how_often_the_first_four_free_have_no_ring_of_links() {
    let matrix = matrix(A);
    for (free, percent) in [(7, 50), (6, 75)] {
        let patterns = (0..256_u16).map(|it| (0..8).filter(|gpu| it >> gpu & 1 == 1).collect::<GpuSet>());
        let choices: Vec<Choice> =
            patterns.filter(|set| set.len() == free).map(|set| best(&matrix, set, 4)).collect();
        let slow = choices.iter().filter(|choice| choice.first_score.capacity_links == 0).count();
        assert_eq!(slow * 100 / choices.len(), percent);
        let still_slow = choices.iter().filter(|choice| choice.score.capacity_links == 0).count();
        assert!(free < 7 || still_slow == 0);
    }
}

#[test]
fn every_pattern_gets_the_best_of_its_ranking_and_only_free_devices() {
    for text in [A, B, C, D, E, F, G] {
        let matrix = matrix(text);
        for pattern in 1..256_u16 {
            let free: GpuSet = (0..8).filter(|gpu| pattern >> gpu & 1 == 1).collect();
            for wanted in 1..=free.len() {
                let choice = best(&matrix, free, wanted);
                let ranking = ranking(&matrix, free, wanted);
                assert_eq!(
                    Ranked { set: choice.set, score: choice.score },
                    ranking[0],
                    "{free:?}, k = {wanted}"
                );
                assert!(ranking.iter().any(|it| it.set == choice.first && it.score == choice.first_score));
                assert!(choice.set.without(free).is_empty() && choice.set.len() == wanted);
                assert_eq!(choice.ring.iter().copied().collect::<GpuSet>(), choice.set);
                let packed = choose(&matrix, free, wanted, Objective::Pack).unwrap();
                assert!(packed.set.without(free).is_empty() && packed.set.len() == wanted);
                assert!(packed.score.ring_mbps <= choice.score.ring_mbps);
            }
        }
    }
}

#[test]
fn a_virtual_machine_shows_other_links_and_gets_the_same_sets() {
    let metal = matrix(A);
    let virtual_machine = metal.as_in_a_virtual_machine();
    for wanted in 2..=8 {
        assert_eq!(best(&metal, all(&metal), wanted).set, best(&virtual_machine, all(&metal), wanted).set);
    }
}

#[test]
fn packing_serves_two_jobs_as_well_as_any_two_sets_do() {
    for text in [A, B, E, F] {
        let matrix = matrix(text);
        for pattern in 0..256_u16 {
            let free: GpuSet = (0..8).filter(|gpu| pattern >> gpu & 1 == 1).collect();
            for wanted in 2..=free.len() / 2 {
                let ranking = ranking(&matrix, free, wanted);
                let both = |one: &Ranked, other: &Ranked| {
                    let (one, other) = (one.score.ring_mbps, other.score.ring_mbps);
                    (one.min(other), one + other)
                };
                let disjoint =
                    |one: GpuSet| ranking.iter().filter(move |other| other.set.and(one).is_empty());
                let pairs =
                    ranking.iter().flat_map(|one| disjoint(one.set).map(move |other| both(one, other)));
                let packed = choose(&matrix, free, wanted, Objective::Pack).unwrap();
                let ours = Ranked { set: packed.set, score: packed.score };
                let served = disjoint(ours.set).map(|next| both(&ours, next)).max();
                assert_eq!(served, pairs.max(), "{free:?}, k = {wanted}: {:?}", packed.set);
            }
        }
    }
}
