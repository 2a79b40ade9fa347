//! Links that are disturbed now and then: a good one must pass, a bad one must not, a flapping one neither.

use super::{super::*, measured, method, run, settings};

/// xorshift64*: the same numbers on every run.
struct Rng(u64);

impl Rng {
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        f64::from(u32::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32).unwrap())
            / f64::from(u32::MAX)
    }
}

const STYLES: [Style; 2] = [Style::Repetitions, Style::Calls];

/// Shares of (good, unstable, bad) among pairs of such a link. 8 % of the repetitions lose up to 60 %, as in the
/// design's own simulation; all scatter by 2 %.
fn shares(style: Style, speed: impl FnMut(&mut Rng) -> f64) -> (f64, f64, f64) {
    shares_of(4, style, speed)
}

/// The same of the first pairs, with others that are good.
fn shares_of(pairs: usize, style: Style, mut speed: impl FnMut(&mut Rng) -> f64) -> (f64, f64, f64) {
    const CHECKS: u32 = 2000;
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let mut counts = (0, 0, 0);
    let size = if style == Style::Repetitions { 5 } else { 1 };
    for _ in 0..CHECKS {
        let (finding, _) = run(settings(), method(style), |pair, _| {
            let values: Vec<f64> = (0..size)
                .map(|_| {
                    let scatter = 0.98 + 0.04 * rng.share();
                    let disturbed = if rng.share() < 0.08 { 0.4 + 0.5 * rng.share() } else { 1.0 };
                    let speed = if pair < pairs { speed(&mut rng) } else { 14_000.0 };
                    speed * scatter * disturbed
                })
                .collect();
            Some(measured(&values, Path::Metaxlink))
        });
        for pair in finding.pairs.into_iter().take(pairs) {
            match pair.verdict {
                Verdict::Good => counts.0 += 1,
                Verdict::Unstable => counts.1 += 1,
                Verdict::Bad => counts.2 += 1,
                Verdict::Untested => panic!("there was time"),
            }
        }
    }
    let all = f64::from(CHECKS) * f64::from(u32::try_from(pairs).unwrap());
    (f64::from(counts.0) / all, f64::from(counts.1) / all, f64::from(counts.2) / all)
}

#[test]
fn a_good_link_is_good_and_a_bad_one_bad() {
    for style in STYLES {
        for speed in [50_000.0, 14_000.0, 12_000.0] {
            let (good, ..) = shares(style, |_| speed);
            println!("{style:?}: a link of {speed} MB/s is good {:.2} %", good * 100.0);
            assert!(good >= 0.99, "{style:?}, {speed}: {good}");
        }
        let (good, _, bad) = shares(style, |_| 9_000.0);
        assert!(good < 1e-9 && bad > 0.999, "{style:?}: {good} {bad}");
    }
}

#[test]
fn a_link_that_flaps_half_of_the_time_is_no_channel() {
    let flapping = |rng: &mut Rng| if rng.share() < 0.5 { 14_000.0 } else { 3_000.0 };
    for (style, pairs) in STYLES.into_iter().flat_map(|style| [(style, 1), (style, 4)]) {
        let (good, unstable, bad) = shares_of(pairs, style, flapping);
        let [good_share, unstable_share, bad_share] = [good, unstable, bad].map(|share| share * 100.0);
        println!(
            "{style:?}: {pairs} of 4 pairs flap: good {good_share:.2} %, unstable {unstable_share:.2} %, bad {bad_share:.2} %"
        );
        assert!(good < 0.085 && unstable > 0.85, "{style:?}: {good} {unstable} {bad}");
    }
}

#[test]
fn a_link_that_is_near_the_minimum_is_looked_at_again() {
    for style in STYLES {
        let (good, unstable, bad) = shares(style, |_| 10_300.0);
        println!("{style:?}: a link of 10300 MB/s is good {:.2} %", good * 100.0);
        assert!(unstable + bad < 0.5 && good > 0.5, "{style:?}: {good} {unstable} {bad}");
    }
}
