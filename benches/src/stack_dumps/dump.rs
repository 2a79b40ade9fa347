//! `dlrover-diag dump` of a job, as a person calls it, beside py-spy for one process after the other.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    ODD, Setup,
    job::{Job, Plan},
    ran::Ran,
    whole::whole,
};
use crate::{
    Outcome,
    figures::{Figures, goal, heading, line, progress, ratio},
    stamps::now_ns,
};

/// How long the stacks of a node may take when its job hangs, in seconds: `DUMP_LIMIT` of the agent.
pub(super) const LIMIT_S: f64 = 8.0;

/// py-spy takes seconds for all ranks, so it runs less often.
const ROUNDS_OF_PEER: usize = 3;

#[derive(Debug, Default)]
struct Costs {
    wall_ms: Figures,
    cpu_ms: Figures,
}

impl Costs {
    fn print(&self, name: &str) -> Outcome<()> {
        line(name, &self.wall_ms, "ms")?;
        line("of CPU", &self.cpu_ms, "ms")
    }
}

/// A job whose workers wait, and the directory for its stacks.
pub(super) fn waiting_job(setup: &mut Setup) -> Outcome<(Job, PathBuf)> {
    let stacks = setup.folder("stacks")?;
    let workers = setup.amount.ranks;
    let arguments = &["wait"];
    let plan = Plan { workers, options: &[], arguments, stacks: &stacks, stderr: "stderr", gate: None };
    let job = Job::start(setup, plan)?;
    Ok((job, stacks))
}

/// `dlrover-diag dump` of a job.
pub(super) fn command(setup: &Setup, job: &Job, folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(&setup.diag);
    command.args(["dump", "--run-id", &job.run_id, "--path"]).arg(folder).args(options);
    command
}

/// Measures dumps.
pub(super) fn measure(setup: &mut Setup) -> Outcome<()> {
    let (ranks, rounds) = (setup.amount.ranks, setup.amount.rounds);
    let (mut python, mut native) = (Costs::default(), Costs::default());
    let (mut peer_python, mut peer_native) = (Costs::default(), Costs::default());
    progress(format_args!("dump: {ranks} ranks are started"))?;
    let (job, _) = waiting_job(setup)?;
    let mut headline = String::new();
    let mut skipped = None;
    for round in 0..rounds {
        progress(format_args!("dump, round {} of {rounds}", round + 1))?;
        for (options, costs) in [(&["--no-native"][..], &mut python), (&[][..], &mut native)] {
            let folder = setup.folder("dump")?;
            let ran = Ran::of(setup, command(setup, &job, &folder, options))?;
            whole(&folder, ranks, options.is_empty())?;
            ran.stdout.lines().next().unwrap_or_default().clone_into(&mut headline);
            if !headline.starts_with(&format!("rank {} is in ", ranks - 1)) || !headline.contains(ODD) {
                return Err(format!("another rank is named: {headline}").into());
            }
            costs.wall_ms.add(ran.wall_ms());
            costs.cpu_ms.add(ran.cpu_ms);
        }
        if round < ROUNDS_OF_PEER && skipped.is_none() {
            progress(format_args!("dump by py-spy, round {} of {}", round + 1, rounds.min(ROUNDS_OF_PEER)))?;
            let both = peer(setup, &job, &[], &mut peer_python)
                .and_then(|()| peer(setup, &job, &["--native"], &mut peer_native));
            // That the peer fails is no failure of what is measured here.
            skipped = both.err().map(|error| error.to_string());
        }
    }
    job.stop(setup)?;
    progress(format_args!(""))?;
    let all = "files, pictures and verdict";
    heading(&format!("dlrover-diag dump of {ranks} ranks on one node: exec -> exit, with {all}"))?;
    let mut out = std::io::stdout();
    writeln!(out, "  {headline}")?;
    writeln!(
        out,
        "  every dump had the Python stacks of {ranks} ranks, and with native ones those of {ranks}"
    )?;
    native.print("native too")?;
    python.print("Python")?;
    goal("8 s, the limit in a hang", native.wall_ms.median() / 1e3, " s", LIMIT_S)?;
    if let Some(why) = skipped {
        writeln!(out, "  py-spy was skipped: {why}")?;
        return Ok(());
    }
    heading(&format!("py-spy dump, for each of the {ranks} processes one after the other, without a merge"))?;
    peer_native.print("native too")?;
    peer_python.print("Python")?;
    ratio("py-spy / ours, native too", peer_native.wall_ms.median() / native.wall_ms.median())?;
    ratio("py-spy / ours, Python", peer_python.wall_ms.median() / python.wall_ms.median())?;
    ratio("py-spy / ours, CPU, native too", peer_native.cpu_ms.median() / native.cpu_ms.median())?;
    ratio("py-spy / ours, CPU, Python", peer_python.cpu_ms.median() / python.cpu_ms.median())
}

/// py-spy's dumps of all ranks, each of which must have the place where its rank waits.
fn peer(setup: &Setup, job: &Job, options: &[&str], costs: &mut Costs) -> Outcome<()> {
    let py_spy = setup.py_spy.as_ref().ok_or("PY_SPY names none")?;
    let (began_ns, mut cpu_ms) = (now_ns(), 0.0);
    for (rank, pid) in &job.pids {
        let mut command = Command::new(py_spy);
        command.args(["dump", "--pid", &pid.to_string()]).args(options);
        let ran = Ran::of(setup, command)?;
        cpu_ms += ran.cpu_ms;
        if !ran.stdout.contains("train_step") {
            return Err(format!("py-spy does not see where rank {rank} is: {}", ran.stdout).into());
        }
    }
    costs.wall_ms.add((now_ns() - began_ns) as f64 / 1e6);
    costs.cpu_ms.add(cpu_ms);
    Ok(())
}
