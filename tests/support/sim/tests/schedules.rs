//! Seeded schedules: `DLROVER_SIM_RUNS=1000000 cargo test -p dlrover-sim --test schedules small -- --nocapture`
//! runs a million (`DLROVER_SIM_FROM=1000000` the next one); `DLROVER_SIM_SEED=7` runs one.

#![allow(clippy::print_stdout, reason = "the suite says what it has run")]

use std::time::Instant;

use dlrover_sim::{
    Plan,
    suite::{Family, number},
};

fn run(family: Family, what: &str, runs: u64) {
    if let Some(seed) = number("DLROVER_SIM_SEED") {
        let report = family.run(seed);
        println!("seed {seed} of {what}: {} steps, {:?}", report.steps, report.verdict);
        return;
    }
    let began = Instant::now();
    let from = number("DLROVER_SIM_FROM").unwrap_or(0);
    let tally = family.run_all(from..from + runs);
    println!(
        "{} schedules of {what}: {} steps, {} jobs succeeded and {} failed, {} groups of workers started, {} records \
         journalled, {} restarts of the master, in {:.1} s",
        tally.schedules,
        tally.steps,
        tally.succeeded,
        tally.failed,
        tally.spawned,
        tally.records,
        tally.restarts,
        began.elapsed().as_secs_f64()
    );
}

#[test]
fn small() {
    let runs = number("DLROVER_SIM_RUNS").unwrap_or(10_000);
    run(Family { test: "small", plan: Plan::of_seed }, "2-16 nodes", runs);
}

#[test]
fn cuts() {
    let runs = number("DLROVER_SIM_RUNS").unwrap_or(10_000);
    run(Family { test: "cuts", plan: Plan::of_cuts }, "2-9 nodes whose ways are cut", runs);
}

#[test]
fn saves() {
    let runs = number("DLROVER_SIM_RUNS").unwrap_or(3000);
    run(Family { test: "saves", plan: Plan::of_saves }, "1-5 nodes that keep checkpoints", runs);
}

/// The invariant would not hold by itself.
#[test]
fn without_the_fence_two_generations_run_at_once() {
    let found = (0..1000).filter_map(|seed| {
        let mut plan = Plan::of_cuts(seed);
        plan.policy.lease = None;
        dlrover_sim::Simulation::new(plan).run().err()
    });
    let found: Vec<String> = found.filter(|words| words.contains("two generations")).collect();
    println!(
        "without the fence two generations ran at once in {} of 1000 schedules: {}",
        found.len(),
        found[0]
    );
    assert!(found.len() > 10);
}

#[test]
fn a_thousand_nodes() {
    run(Family { test: "a_thousand_nodes", plan: |seed| Plan::of_size(seed, 1000) }, "1,000 nodes", 10);
}

#[test]
fn ten_thousand_nodes() {
    run(Family { test: "ten_thousand_nodes", plan: |seed| Plan::of_size(seed, 10_000) }, "10,000 nodes", 1);
}

/// For development: all violations of many schedules by kind, with the shortest schedule of each.
#[test]
#[ignore = "a tool, not a check: DLROVER_SIM_RUNS=2000 cargo test ... survey -- --ignored --nocapture"]
fn survey() {
    let mut kinds: std::collections::BTreeMap<String, (u64, u64, u64)> = std::collections::BTreeMap::new();
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..number("DLROVER_SIM_RUNS").unwrap_or(1000) {
        let of_cuts = std::env::var_os("DLROVER_SIM_CUTS").is_some();
        let of_saves = std::env::var_os("DLROVER_SIM_SAVES").is_some();
        let mut plan = match (of_cuts, of_saves) {
            (true, _) => Plan::of_cuts(seed),
            (false, true) => Plan::of_saves(seed),
            (false, false) => Plan::of_seed(seed),
        };
        plan.stray_messages = std::env::var_os("DLROVER_SIM_STRAY").is_some();
        let mut simulation = dlrover_sim::Simulation::new(plan);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulation.run().err()))
            .unwrap_or_else(|panic| {
                Some(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panicked".to_owned()))
            });
        let Some(violation) = ended else { continue };
        let words = violation.split_once(": ").map_or(&*violation, |(_, words)| words);
        let kind: String = words.chars().filter(|letter| !letter.is_ascii_digit()).take(70).collect();
        let steps = simulation.report().steps;
        let entry = kinds.entry(kind).or_insert((0, seed, steps));
        entry.0 += 1;
        if steps < entry.2 {
            (entry.1, entry.2) = (seed, steps);
        }
    }
    let _default = std::panic::take_hook();
    for (kind, (times, seed, steps)) in kinds {
        println!("{times:6} times, seed {seed} after {steps} steps: {kind}");
    }
}
