//! Values of one pair, and what they make of it.

use super::{super::*, mb, one_way};
use crate::switchbox::{
    finding::of_values,
    judge::{judge, judge_early},
};

const MIN: f64 = 10_000.0;

fn verdict(style: Style, good: usize, bad: usize) -> Option<Verdict> {
    let values: Vec<Repetition> =
        [vec![one_way(MIN); good], vec![one_way(MIN - 0.1); bad]].into_iter().flatten().collect();
    judge(style, mb(MIN), &values)
}

#[test]
fn repetitions_are_five_and_then_ten() {
    let of = |good, bad| verdict(Style::Repetitions, good, bad);
    assert_eq!(of(4, 0), None);
    assert_eq!(of(5, 0), Some(Verdict::Good));
    assert_eq!(of(0, 5), Some(Verdict::Bad));
    for good in 1..5 {
        assert_eq!(of(good, 5 - good), None, "{good}");
    }
    for (good, expected) in [
        (10, Verdict::Good),
        (8, Verdict::Good),
        (7, Verdict::Unstable),
        (2, Verdict::Unstable),
        (1, Verdict::Bad),
        (0, Verdict::Bad),
    ] {
        assert_eq!(of(good, 10 - good), Some(expected), "{good}");
    }
}

#[test]
fn calls_are_five_and_then_up_to_ten() {
    let of = |good, bad| verdict(Style::Calls, good, bad);
    for (good, bad) in [(0, 0), (1, 0), (4, 0), (4, 1), (7, 2), (0, 1), (0, 4), (1, 2)] {
        assert_eq!(of(good, bad), None, "{good} {bad}");
    }
    for (good, bad) in [(5, 0), (8, 1), (8, 2)] {
        assert_eq!(of(good, bad), Some(Verdict::Good), "{good} {bad}");
    }
    for (good, bad) in [(1, 3), (2, 3), (7, 3)] {
        assert_eq!(of(good, bad), Some(Verdict::Unstable), "{good} {bad}");
    }
    assert_eq!(of(0, 5), Some(Verdict::Bad));
    // Nothing of ten is left open.
    assert!((0..=10).all(|good| of(good, 10 - good).is_some()));
}

/// When the time is over, only what could not have become good any more is bad.
#[test]
fn too_few_values_prove_something_only_where_the_missing_ones_could_not_help() {
    let of = |good, bad| {
        let values = [vec![one_way(MIN); good], vec![one_way(MIN - 0.1); bad]].concat();
        judge_early(mb(MIN), &values)
    };
    for (good, bad) in [(0, 0), (0, 1), (0, 2), (2, 0), (4, 0), (7, 2)] {
        assert_eq!(of(good, bad), Verdict::Untested, "{good} {bad}");
    }
    assert_eq!(of(0, 3), Verdict::Bad);
    assert_eq!(of(2, 3), Verdict::Unstable);
}

#[test]
fn the_slower_direction_counts_and_is_named() {
    let value = Repetition { there: mb(50_000.0), back: Some(mb(9_000.0)) };
    assert_eq!(value.value(), mb(9_000.0));
    let wrong = of_values(Verdict::Bad, mb(MIN), &[value; 5], true).unwrap();
    assert_eq!(wrong.trouble, Trouble::Slow);
    let message = "slow, first->second 50000.0 MB/s, second->first 9000.0 MB/s in \
                 5 solo runs; 0 of 5 reached 10000.0 MB/s both ways, too slow only from the second socket \
                 to the first";
    assert_eq!(wrong.to_string(), message);
    let both = Repetition { there: mb(1.0), back: Some(mb(1.0)) };
    let message = of_values(Verdict::Bad, mb(MIN), &[both], true).unwrap().message;
    assert!(message.ends_with("reached 10000.0 MB/s both ways"), "{message}");
    let message = of_values(Verdict::Bad, mb(MIN), &[one_way(1.0)], true).unwrap().message;
    assert_eq!(message, "1.0 MB/s in 1 solo run; 0 of 1 reached 10000.0 MB/s");
}

#[test]
fn decimals_are_exact() {
    for (text, bytes) in [
        ("10000.00", 10_000_000_000),
        ("9999.9", 9_999_900_000),
        ("0.0000019", 1),
        ("50040.123456", 50_040_123_456),
        ("99999999999999999999.5", u64::MAX),
    ] {
        assert_eq!(Rate::from_decimal(text), Some(Rate(bytes)), "{text}");
    }
    for text in ["", ".", "1", "1.", ".5", "-1.0", "+1.0", "1.0e3", "1.2.3", " 1.0", "nan"] {
        assert_eq!(Rate::from_decimal(text), None, "{text}");
    }
    assert_eq!(Rate(9_999_960_000).to_string(), "9999.9", "never rounded up to the threshold");
    for wrong in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(Rate::from_mb_per_s(wrong), None);
    }
    assert_eq!(Rate::from_mb_per_s(1e300), Some(Rate(u64::MAX)));
}

#[test]
fn a_minimum_is_one_that_a_link_may_reach() {
    assert_eq!(Rate::minimum(10_000.0), Some(mb(MIN)));
    assert_eq!(Rate::minimum(1e9), Some(Rate(1_000_000_000_000_000)));
    for wrong in [0.0, 1e-9, -1.0, 1.1e9, 1e99, f64::INFINITY, f64::NAN] {
        assert_eq!(Rate::minimum(wrong), None, "{wrong}");
    }
}

#[test]
fn texts_are_parsed_back() {
    for trouble in Trouble::ALL {
        assert_eq!(Trouble::parse(trouble.as_str()), Some(trouble));
    }
    assert_eq!(Trouble::parse("broken"), None);
    for path in [Path::Metaxlink, Path::Nvlink, Path::Pcie, Path::Host, Path::Loopback, Path::Unknown] {
        assert_eq!(Path::parse(path.as_str()), path);
    }
    assert_eq!(Path::parse("warp"), Path::Unknown);
    assert_eq!(Expected::parse("nvlink"), Some(Expected::Exactly(Path::Nvlink)));
    assert_eq!(Expected::parse("host"), None);
}
