//! The report of many rehearsals.

use std::fmt::{self, Write as _};

use serde_json::json;

use super::{
    super::{super::table::Table, settings::Template, truth::Reason, words::count},
    tally::{Flaw, Tally},
};

/// Rows of a sweep of which examples are shown to people; the JSON has all.
const MAX_EXAMPLES: usize = 40;

/// One line, and the seeds of runs with a flaw.
pub(super) fn summary(template: &Template, seed: u64, tally: &Tally) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _cannot_fail = write_summary(&mut text, template, seed, tally);
    text
}

fn write_summary(text: &mut String, template: &Template, seed: u64, tally: &Tally) -> fmt::Result {
    writeln!(text, "{}", sentence(tally))?;
    let (nodes, racks) = template.size();
    let (nodes, racks) = (count(nodes as usize, "node"), count(racks as usize, "rack"));
    writeln!(text, "simulated: {nodes} in {racks}; the seeds of the runs are derived from --seed {seed}")?;
    let (mean, most) = (tally.mean_rounds(), tally.most_rounds);
    writeln!(text, "rounds: {mean:.2} on average, {most} at most")?;
    for (number, what) in [
        (tally.cut_off, "excluded healthy nodes that the simulated fault cuts off"),
        (tally.undecided_runs, "inconclusive runs, in which the job would fail with exit code 202"),
        (
            tally.mass_failures,
            "runs with more faulty nodes than --taint-guard allows, in which the job would fail with exit code 203",
        ),
    ] {
        if number > 0 {
            writeln!(text, "{what}: {number}")?;
        }
    }
    for (flaw, seen) in tally.flaws.iter().filter(|(_, seen)| seen.runs > 0) {
        let runs = count(usize::try_from(seen.runs).unwrap_or(usize::MAX), "run");
        let seeds: Vec<String> = seen.first.iter().map(|it| format!("--seed {}", it.seed)).collect();
        let more = if seen.runs > seen.first.len() as u64 { ", ..." } else { "" };
        writeln!(text, "{} in {runs}: {}{more}", flaw.words(), seeds.join(", "))?;
        if let Some(first) = seen.first.first() {
            writeln!(text, "    {}", first.command)?;
        }
    }
    Ok(())
}

/// All counts in one line.
fn sentence(tally: &Tally) -> String {
    let of = |flaw| tally.seen(flaw).1;
    let missed: u64 = tally.not_found.values().sum();
    let reasons: Vec<String> = Reason::ALL
        .iter()
        .filter_map(|reason| Some((reason, tally.not_found.get(reason)?)))
        .map(|(reason, count)| format!("{count} {}", reason.words()))
        .collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    format!(
        "{}: healthy nodes tainted: {}, healthy nodes excluded (not cut off): {}, faults missed: {missed}{reasons}; \
         working links, paths, uplinks or switches named: {}; runs with too many rounds: {}; disconnected pairs in the job: {}",
        count(usize::try_from(tally.runs).unwrap_or(usize::MAX), "run"),
        of(Flaw::HealthyTainted),
        of(Flaw::HealthyExcluded),
        of(Flaw::WrongNames),
        tally.seen(Flaw::OverBound).0,
        of(Flaw::OverCut),
    )
}

/// The same for programs.
pub(super) fn summary_json(template: &Template, seed: u64, tally: &Tally) -> String {
    let (nodes, racks) = template.size();
    let mut document = document(tally);
    if let Some(fields) = document.as_object_mut() {
        fields.insert("nodes".into(), json!(nodes));
        fields.insert("racks".into(), json!(racks));
        fields.insert("seed".into(), json!(seed));
        fields.insert("words".into(), json!(sentence(tally)));
    }
    document.to_string()
}

/// One tally. The most used counts have fields of their own; the same and more are in `flaws`.
fn document(tally: &Tally) -> serde_json::Value {
    let of = |flaw| tally.seen(flaw).1;
    let reason = |reason| tally.not_found.get(&reason).copied().unwrap_or(0);
    json!({
        "runs": tally.runs,
        "healthy_tainted": of(Flaw::HealthyTainted),
        "healthy_excluded": of(Flaw::HealthyExcluded),
        "healthy_cut_off": tally.cut_off,
        "missed": tally.not_found.values().sum::<u64>(),
        "missed_never_tested": reason(Reason::NeverTested) + reason(Reason::BrokeLater),
        "missed_by_reason": tally.not_found,
        "wrong_names": of(Flaw::WrongNames),
        "over_bound": tally.seen(Flaw::OverBound).0,
        "known_cuts_trained_over": of(Flaw::OverCut),
        "runs_with_unseen_faults": tally.unseen_runs,
        "runs_undecided": tally.undecided_runs,
        "runs_with_mass_failure": tally.mass_failures,
        "rounds_mean": tally.mean_rounds(),
        "rounds_most": tally.most_rounds,
        "flaws": tally.flaws,
    })
}

/// The table of a sweep, a line for each kind of fault, and the first run of each flaw. The numbers are runs.
pub(super) fn sweep(seed: u64, rows: &[(String, Tally)]) -> String {
    let heading = [
        "kind",
        "runs",
        "healthy tainted",
        "healthy excluded",
        "missed",
        "never shown",
        "wrong names",
        "over bound",
        "disconnected pairs",
        "inconclusive",
    ];
    let columns = heading.len();
    let mut table = Table::new(heading).with_numbers_in(1..columns);
    let mut sum = Tally::default();
    for (name, tally) in rows {
        table.line(cells(name, tally));
        sum.merge(tally.clone());
    }
    table.line(cells("all", &sum));
    let mut text = format!("{table}\n{}\n", explained(seed));
    let examples = rows.iter().flat_map(|(name, tally)| {
        let seen = tally.flaws.iter().filter_map(|(flaw, seen)| Some((flaw, seen.first.first()?)));
        seen.map(move |(flaw, first)| format!("{name}, {}: {}\n", flaw.words(), first.command))
    });
    let examples: Vec<String> = examples.collect();
    if !examples.is_empty() {
        text.push_str("\nThe first run with each flaw, by kind:\n");
    }
    examples.iter().take(MAX_EXAMPLES).for_each(|example| text.push_str(example));
    if examples.len() > MAX_EXAMPLES {
        text.push_str(&format!("... and {} more; --json has all\n", examples.len() - MAX_EXAMPLES));
    }
    text
}

fn explained(seed: u64) -> String {
    format!(
        "All numbers count runs; the clusters are generated from --seed {seed}. `missed`: tests showed a fault that is \
         not named. `never shown`: a\nfault is not named, but the faulty part was not tested while it was broken, \
         or passed its tests, or is inconclusive, or another\nfault hides it. `wrong names`: something \
         that works is named. `over bound`: more rounds than such faults may take.\n`disconnected pairs`: the job \
         would start with nodes that failed to reach each other in the check."
    )
}

fn cells(name: &str, tally: &Tally) -> Vec<String> {
    let flaws = |flaws: &[Flaw]| flaws.iter().map(|flaw| tally.seen(*flaw).0).collect::<Vec<_>>();
    let numbers = [
        vec![tally.runs],
        flaws(&[Flaw::HealthyTainted, Flaw::HealthyExcluded, Flaw::Missed]),
        vec![tally.unseen_runs],
        flaws(&[Flaw::WrongNames, Flaw::OverBound, Flaw::OverCut]),
        vec![tally.undecided_runs],
    ];
    let numbers = numbers.concat().into_iter().map(|number| number.to_string());
    std::iter::once(name.to_owned()).chain(numbers).collect()
}

/// The same for programs.
pub(super) fn sweep_json(seed: u64, rows: &[(String, Tally)]) -> String {
    let mut sum = Tally::default();
    let kinds = rows.iter().map(|(name, tally)| {
        sum.merge(tally.clone());
        let mut document = document(tally);
        if let Some(fields) = document.as_object_mut() {
            fields.insert("kind".into(), json!(name));
        }
        document
    });
    let kinds: Vec<_> = kinds.collect();
    json!({ "seed": seed, "kinds": kinds, "all": document(&sum) }).to_string()
}
