//! Many rehearsals.

use serde_json::Value;

use super::{
    super::{read, settings::Mode},
    *,
};

fn request(line: &str) -> Mode {
    read(line).unwrap().mode
}

fn repeated(line: &str, is_json: bool) -> String {
    match request(line) {
        Mode::Repeat { template, seed, runs } => repeat(&template, seed, runs, is_json),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let Mode::Sweep { policy, runs, are_pairs } = request("--sweep 37 --seed 5") else { panic!() };
    let sweep = Sweep::new(&policy, are_pairs);
    let by = |threads| play(sweep.rows(), runs, threads, |row, run| sweep.settings(row, run));
    let alone = by(1);
    assert_eq!(alone, by(3));
    assert_eq!(alone, by(8));
    assert!(alone.iter().all(|tally| tally.runs == 37));
    let text = |tallies: Vec<Tally>| {
        let rows: Vec<(String, Tally)> = (0..).map(|row| sweep.name(row)).zip(tallies).collect();
        (report::sweep(5, &rows), report::sweep_json(5, &rows))
    };
    let (table, document) = text(alone);
    assert_eq!(table.lines().next().unwrap().split_whitespace().next(), Some("kind"));
    let document: Value = serde_json::from_str(&document).unwrap();
    let kinds = document["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), 18);
    assert_eq!((&kinds[0]["kind"], &kinds[0]["runs"]), (&"none".into(), &37.into()));
    assert_eq!(document["all"]["runs"], 18 * 37);
}

#[test]
fn every_two_kinds_are_swept() {
    let Mode::Sweep { policy, runs: 1, are_pairs: true } = request("--sweep-pairs 1") else { panic!() };
    let sweep = Sweep::new(&policy, true);
    assert_eq!(sweep.rows(), 17 * 18 / 2);
    assert_eq!((sweep.name(0), sweep.name(1)), ("node + node".into(), "node + dies@0".into()));
    assert_eq!(sweep.settings(0, 0).cluster.faulty.len(), 2);
    assert_ne!(sweep.settings(0, 0), sweep.settings(0, 1));
    let slow = (0..sweep.rows()).find(|row| sweep.name(*row) == "node + slow nic").unwrap();
    assert!(sweep.settings(slow, 0).policy.exclude_straggler);
}

#[test]
fn runs_are_summed_up_in_one_line() {
    let nothing = "healthy nodes tainted: 0, healthy nodes excluded (not cut off): 0, faults missed: 0; working \
                   links, paths, uplinks or switches named: 0; runs with too many rounds: 0; disconnected pairs in the job: 0";
    let text = repeated("--nodes 16 --faulty random:2 --repeat 50 --seed 3", false);
    assert_eq!(text.lines().next().unwrap(), format!("50 runs: {nothing}"));
    let line = "--nodes 16 --racks 4 --dead-link random --repeat 50";
    let document: Value = serde_json::from_str(&repeated(line, true)).unwrap();
    assert_eq!(
        (&document["runs"], &document["nodes"], &document["racks"]),
        (&50.into(), &16.into(), &4.into())
    );
    assert!(document["missed_never_tested"].as_u64().unwrap() > 20, "{document}");
    assert!(document["words"].as_str().unwrap().contains(" never tested"), "{document}");
    assert_eq!(repeated(line, false), repeated(line, false));
}

#[test]
fn a_run_with_a_flaw_can_be_run_alone() {
    let line = "--nodes 16 --racks 4 --dead-link random --on-bad-path proceed";
    let Mode::Repeat { template, seed, runs } = request(&format!("{line} --repeat 400")) else { panic!() };
    let tallies = play(1, runs, 2, |_, run| template.settings(seed_of_run(seed, run)));
    let examples = tallies[0].flaws.values().flat_map(|seen| &seen.first);
    for example in examples {
        let Mode::Once(by_seed) = request(&format!("{line} --seed {}", example.seed)) else { panic!() };
        let command = example.command.strip_prefix("dlrover-diag rehearse ").unwrap();
        let Mode::Once(by_command) = request(command) else { panic!() };
        assert_eq!(by_seed, by_command);
        assert!(example.seed < 1 << 53);
    }
    let over_cut = &tallies[0].flaws[&tally::Flaw::OverCut];
    assert!(over_cut.runs > 5 && over_cut.first.len() == 5, "{over_cut:?}");
}
