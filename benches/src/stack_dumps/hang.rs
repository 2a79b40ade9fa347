//! The automatic way: a job hangs, and its launcher takes the stacks.
//!
//! Nothing is printed when a hang is noticed. The kernel tells when the launcher's program is started for the process
//! that reads the stacks, and when each file is there (`inotify`).

use std::io::Write as _;

use super::{
    Setup,
    dump::LIMIT_S,
    job::{Job, Plan, gate},
    seen::{Seen, Watches},
    whole::whole,
};
use crate::{
    Outcome,
    figures::{Figures, goal, heading, line, progress},
    launcher::TIMEOUT,
    stamps::last_ns,
};

/// The timeout of the hang, in seconds.
const AFTER_S: u32 = 2;

/// Measures hangs.
pub(super) fn measure(setup: &mut Setup) -> Outcome<()> {
    let (ranks, rounds) = (setup.amount.ranks, setup.amount.rounds);
    let mut spans: [Figures; 6] = Default::default();
    let mut sentence = String::new();
    for round in 0..rounds {
        progress(format_args!("hang, round {} of {rounds}", round + 1))?;
        let (due, seen) = hang(setup)?;
        let of_round = [
            (due, seen.probe),
            (seen.probe, seen.first_file),
            (seen.first_file, seen.pictures),
            (seen.probe, seen.pictures),
            (seen.pictures, seen.printed),
            (due, seen.printed),
        ];
        sentence = seen.line;
        for (span, (from, to)) in spans.iter_mut().zip(of_round) {
            span.add((to as f64 - from as f64) / 1e6);
        }
    }
    progress(format_args!(""))?;
    heading(&format!(
        "a job of {ranks} ranks hangs, --hang-timeout={AFTER_S}; workers are looked at each 0.2 s"
    ))?;
    let out = &mut std::io::stdout();
    writeln!(out, "  {sentence}")?;
    let names = [
        "end of the timeout -> noticed: the process that reads stacks is started",
        "noticed -> the first file of a rank",
        "the first file of a rank -> the last picture",
        "noticed -> the last picture",
        "the last picture -> the launcher's line",
        "end of the timeout -> the launcher's line",
    ];
    for (name, span) in names.iter().zip(&spans) {
        writeln!(out, "  {name}")?;
        line("hang", span, "ms")?;
    }
    let [_, _, _, pictures, _, _] = spans;
    goal("8 s, the limit of a node, to the last picture", pictures.median() / 1e3, " s", LIMIT_S)
}

/// A job that hangs, to its line; and the end of the timeout after the last step of any rank.
fn hang(setup: &mut Setup) -> Outcome<(u64, Seen)> {
    let (ranks, stacks) = (setup.amount.ranks, setup.folder("stacks")?);
    let gate = gate(setup, "gate")?;
    let (timeout, path) = (format!("--hang-timeout={AFTER_S}"), gate.display().to_string());
    let plan = Plan {
        workers: ranks,
        options: &[&timeout, "--progress=declared"],
        arguments: &["hang", &path],
        stacks: &stacks,
        stderr: "stderr",
        gate: Some(&gate),
    };
    let mut job = Job::start(setup, plan)?;
    // From here on, the launcher starts nothing else.
    let watches = Watches::new(setup.bench.ours(), &stacks, job.running.stderr_path())?;
    job.open_gate();
    let last_step_ns = last_ns(&setup.bench.stamps.take(ranks, false, TIMEOUT)?);
    let seen = watches.wait(|| job.running.stderr())?;
    whole(&stacks, ranks, true)?;
    if !seen.line.contains(&format!("rank {} is in ", ranks - 1)) {
        return Err(format!("another rank is named: {}", seen.line).into());
    }
    job.stop(setup)?;
    Ok((last_step_ns + u64::from(AFTER_S) * 1_000_000_000, seen))
}
