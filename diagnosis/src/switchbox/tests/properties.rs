//! What holds whatever is measured.

use std::time::Duration;

use proptest::prelude::*;

use super::{super::*, mb, method, one_way, run, settings};
use crate::{moment::Moment, switchbox::judge::judge};

/// Around the minimum, and far from it.
fn any_value() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(10_000.0), 9_000.0..13_000.0, 0.0..60_000.0]
}

fn any_style() -> impl Strategy<Value = Style> {
    prop_oneof![Just(Style::Repetitions), Just(Style::Calls)]
}

/// For each pair, what a run with all others gives and then what runs of its own do; `None` hangs.
type Script = Vec<(Option<Vec<f64>>, Vec<f64>)>;

fn any_script() -> impl Strategy<Value = Script> {
    let together = prop::option::weighted(0.9, prop::collection::vec(any_value(), 5));
    prop::collection::vec((together, prop::collection::vec(any_value(), 10)), 1..7)
}

fn play(script: &Script, style: Style) -> (SwitchboxFinding, Vec<Vec<usize>>) {
    let pairs = (0..).step_by(2).take(script.len()).map(|it| SocketPair(it, it + 1)).collect();
    let settings = Settings { pairs, min_channels: 1, ..settings() };
    let mut taken = vec![0; script.len()];
    let size = if style == Style::Repetitions { 5 } else { 1 };
    run(settings, method(style), |pair, alone| {
        let (together, own) = &script[pair];
        let values: Vec<f64> = if alone && (script.len() > 1 || taken[pair] > 0) {
            let from = taken[pair] % own.len();
            taken[pair] += size;
            own.iter().cycle().skip(from).take(size).copied().collect()
        } else {
            taken[pair] += if script.len() == 1 { size } else { 0 };
            together.as_ref()?.iter().take(size).copied().collect()
        };
        Some(super::measured(&values, Path::Nvlink))
    })
}

proptest! {
    #[test]
    fn the_order_within_a_stage_does_not_matter(
        style in any_style(),
        values in prop::collection::vec(any_value(), 0..11),
        seed in any::<u64>(),
    ) {
        let mut shuffled = values.clone();
        let length = shuffled.len();
        let mut state = seed;
        for at in (1..length).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
        }
        let of = |values: &[f64]| {
            let values: Vec<Repetition> = values.iter().map(|value| one_way(*value)).collect();
            judge(style, mb(10_000.0), &values)
        };
        prop_assert_eq!(of(&values), of(&shuffled));
    }

    #[test]
    fn raising_every_bandwidth_never_worsens_a_verdict(
        style in any_style(),
        script in any_script(),
        more in 0.0..5_000.0,
    ) {
        let raise = |values: &Vec<f64>| values.iter().map(|value| value + more).collect::<Vec<f64>>();
        let raised: Script =
            script.iter().map(|(together, own)| (together.as_ref().map(raise), raise(own))).collect();
        let (before, after) = (play(&script, style).0, play(&raised, style).0);
        for (before, after) in before.pairs.iter().zip(&after.pairs) {
            prop_assert!(after.verdict >= before.verdict, "{before:?} {after:?}");
        }
        prop_assert!(after.good() >= before.good());
    }

    #[test]
    fn no_run_has_a_socket_twice_and_every_pair_is_in_the_first_once(
        style in any_style(),
        script in any_script(),
    ) {
        let (finding, asked) = play(&script, style);
        for pairs in &asked {
            let mut sockets: Vec<u32> =
                pairs.iter().flat_map(|it| [finding.pairs[*it].pair.0, finding.pairs[*it].pair.1]).collect();
            let all = sockets.len();
            sockets.sort_unstable();
            sockets.dedup();
            prop_assert_eq!(sockets.len(), all);
        }
        prop_assert_eq!(&asked[0], &(0..script.len()).collect::<Vec<_>>());
        prop_assert!(asked.windows(2).all(|runs| runs[1].len() <= runs[0].len()), "first together, then alone");
        prop_assert!(asked.iter().filter(|pairs| pairs.len() > 1).count() <= 5);
        prop_assert!(finding.took <= DEADLINE);
        for pair in &finding.pairs {
            prop_assert_eq!(pair.is_good(), pair.wrong.is_none());
            // A measurement with others is no evidence against a pair.
            prop_assert!(pair.is_good() || pair.alone);
        }
    }

    /// However long it takes: only what was seen of a pair alone speaks against it, and the end comes in time.
    #[test]
    fn no_lack_of_time_is_held_against_a_pair(
        style in any_style(),
        is_serial in any::<bool>(),
        count in 2..17_u32,
        runs in prop::collection::vec((0..25_000_u64, prop::collection::vec(any_value(), 5)), 1..20),
    ) {
        let pairs: Vec<SocketPair> = (0..count).map(|it| SocketPair(2 * it, 2 * it + 1)).collect();
        let settings = Settings { pairs, min_channels: count, ..settings() };
        let method = Method { is_serial, ..method(style) };
        let (mut check, mut effects) = Check::new(Moment::START, settings, method);
        let mut now = Moment::START;
        let mut runs = runs.iter().cycle();
        let mut alone = std::collections::BTreeSet::new();
        let finding = loop {
            let mut next = Vec::new();
            for effect in std::mem::take(&mut effects) {
                let Effect::Measure { run, pairs, .. } = effect else { continue };
                let (millis, values) = runs.next().unwrap();
                let (due, end) = (check.deadline().unwrap(), now + Duration::from_millis(*millis));
                now = end.min(due);
                if let [pair] = pairs[..] {
                    alone.insert(pair);
                }
                for pair in pairs.into_iter().filter(|_| end < due) {
                    let size = if style == Style::Repetitions { 5 } else { 1 };
                    let answer = super::measured(&values[..size], Path::Nvlink);
                    next.extend(check.handle(now, Event::Answered { run, pair, answer }));
                }
                if end >= due {
                    next.extend(check.handle(now, Event::Deadline));
                }
            }
            if let Some(Effect::Finish(finding)) = next.last() {
                break finding.clone();
            }
            prop_assert!(!next.is_empty(), "it waits for nothing");
            effects = next;
        };
        prop_assert!(finding.took <= DEADLINE);
        for (place, pair) in finding.pairs.iter().enumerate() {
            let is_condemned = matches!(pair.verdict, Verdict::Bad | Verdict::Unstable);
            prop_assert!(!is_condemned || alone.contains(&place), "{pair:?}");
            let is_untested = pair.wrong.as_ref().is_some_and(|it| it.trouble == Trouble::Untested);
            prop_assert_eq!(pair.verdict == Verdict::Untested, is_untested);
        }
        let is_condemned = |it: &PairFinding| matches!(it.verdict, Verdict::Bad | Verdict::Unstable);
        prop_assert_eq!(finding.status() == SwitchboxStatus::Fault, finding.pairs.iter().any(is_condemned));
    }

    #[test]
    fn exactly_the_minimum_is_enough(min in 0.1..1e6, style in any_style()) {
        let settings = Settings { min: mb(min), ..settings() };
        let (finding, _) = run(settings, method(style), |_, _| {
            Some(super::measured(&[min; 5], Path::Nvlink))
        });
        prop_assert_eq!(finding.status(), SwitchboxStatus::Ok);
    }
}
