//! Seeded schedules: `DLROVER_SIM_RUNS=1000000 cargo test -p dlrover-sim --test schedules small -- --nocapture`
//! runs a million; `DLROVER_SIM_SEED=7` runs one.

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
    let tally = family.run_all(0..runs);
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
fn a_thousand_nodes() {
    run(Family { test: "a_thousand_nodes", plan: |seed| Plan::of_size(seed, 1000) }, "1,000 nodes", 10);
}

#[test]
fn ten_thousand_nodes() {
    run(Family { test: "ten_thousand_nodes", plan: |seed| Plan::of_size(seed, 10_000) }, "10,000 nodes", 1);
}
