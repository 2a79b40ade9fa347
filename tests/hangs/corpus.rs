//! Jobs by seeds, each with what is to be said of it, and a table of what was said. It fails when a healthy job is
//! declared or does not end, when a job fails by itself, when a hang is declared more than 2 s after its timeout or lacks
//! a file, and when fewer than 95 % of the hangs name exactly the right ranks.
//!
//! ```sh
//! cargo test -p dlrover-tests --test hangs corpus -- --ignored --nocapture
//! ```
//!
//! `DLROVER_HANG_SEED` (default 1), `DLROVER_HANG_DRAWS` (jobs of each kind, default 4), `DLROVER_HANG_ONLY` (parts of
//! the kinds' names, comma-separated), `DLROVER_HANG_JOBS` (jobs at a time, default 2), `TORCH_PYTHON` (adds torch).

use std::{env, io::Write as _, sync::Mutex, thread};

use dlrover_sim::prng::Prng;
use support::launcher;

use crate::{
    case::{Case, KINDS, TORCH_KINDS},
    observed::observe,
    score::{HEAD, Score},
    torch_python,
};

fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = env::var(variable) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{variable}={text}: a number is needed"))
}

/// The cases of a seed: so many draws of each kind, then torch with 2 and with 4 ranks.
fn cases(seed: u64, draws: u64, only: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, kind) in (0_u64..).zip(KINDS) {
        let mut prng = Prng::new(seed * 1000 + place);
        cases.extend((0..draws).map(|_| Case::drawn(*kind, &mut prng)));
    }
    if let Some(python) = torch_python() {
        let mut prng = Prng::new(seed);
        for (kind, ranks) in TORCH_KINDS.iter().flat_map(|kind| [(kind, 2), (kind, 4)]) {
            cases.push(Case::of_torch(*kind, ranks, prng.small(0, ranks - 1), python.clone()));
        }
    } else {
        let _written = writeln!(std::io::stderr(), "skipped: the kinds with torch: TORCH_PYTHON is not set");
    }
    cases.retain(|case| only.split(',').any(|part| case.kind.name.contains(part)));
    cases
}

#[test]
#[ignore = "takes minutes"]
fn corpus() {
    let only = env::var("DLROVER_HANG_ONLY").unwrap_or_default();
    let seed = number("DLROVER_HANG_SEED", 1);
    let cases = cases(seed, number("DLROVER_HANG_DRAWS", 4), &only);
    assert!(!cases.is_empty(), "no kind has {only:?} in its name");
    let score = Mutex::new(Score::default());
    let next = Mutex::new(cases.iter().enumerate());
    let say = |line: &str| {
        // Past cargo's capture; a closed stderr fails nothing.
        let _written = writeln!(std::io::stderr(), "{line}");
    };
    say(&format!("seed {seed}\n{HEAD}"));
    let work = || loop {
        let Some((number, case)) = next.lock().expect("no panic holds it").next() else { return };
        let observed = observe(case, case.launch(launcher!()));
        let line = score.lock().expect("no panic holds it").add(number, case, &observed);
        say(&line);
    };
    thread::scope(|scope| {
        for _ in 0..number("DLROVER_HANG_JOBS", 2) {
            let _worker = scope.spawn(work);
        }
    });
    let score = score.into_inner().expect("no panic holds it");
    say(&score.to_string());
    assert_eq!(score.shortfalls(), [""; 0]);
}

/// The same seed gives the same jobs, all of which are possible.
#[test]
fn cases_are_possible() {
    let (first, second) = (cases(7, 40, ""), cases(7, 40, ""));
    assert_eq!(format!("{first:?}"), format!("{second:?}"));
    assert!(cases(1, 4, "").len() >= 60);
    for case in first {
        assert!(case.who < case.ranks && (1..=6).contains(&case.ranks), "{case:?}");
        let expected = case.expected().unwrap_or_default();
        assert!(expected.iter().all(|rank| *rank < case.ranks), "{case:?}");
        let is_pair = case.kind.name == "deadlock";
        assert!(!is_pair || expected.len() == 2, "{case:?}");
    }
}
