//! How long a worker does not run while stacks are taken: it reads the clock all the time, and notes each longer gap.
//!
//! A gap is a stop for a native stack, or a wait for a CPU while another process has it; the kernel keeps account of the
//! latter. A dump without native stacks stops nothing. A dump of this one rank leaves the other CPUs free, and so shows
//! the stop alone; with all ranks, what has stopped the worker may have to wait for a CPU itself.

use std::{io::Write as _, path::Path, process::Command, time::Duration};

use super::{
    Setup, dump,
    gaps::{self, Gap, Missed},
    job::{Job, Plan},
    ran::Ran,
};
use crate::{
    Outcome,
    figures::{Figures, heading, line, progress},
    processes::waited_for_cpu_ns,
    stamps::now_ns,
};

/// The rank that reads the clock.
const RANK: usize = 0;

/// Windows of each kind in a round.
const IN_A_ROUND: usize = 4;

/// A window of time, and how long the worker has waited for a CPU in it.
#[derive(Debug, Clone, Copy)]
struct Window {
    from_ns: u64,
    to_ns: u64,
    waited_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    All { native: bool },
    One { native: bool },
    Nothing,
}

const KINDS: [(What, &str); 5] = [
    (What::Nothing, "nothing, as long as the dump before"),
    (What::One { native: false }, "a dump of this rank alone, Python only"),
    (What::One { native: true }, "a dump of this rank alone, native too"),
    (What::All { native: false }, "a dump of all ranks, Python only"),
    (What::All { native: true }, "a dump of all ranks, native too"),
];

/// Measures pauses.
pub(super) fn measure(setup: &mut Setup) -> Outcome<()> {
    let (workers, rounds) = (setup.amount.ranks, setup.amount.rounds);
    let stacks = setup.folder("stacks")?;
    let path = setup.bench.folder.path().join("gaps");
    gaps::make(&path)?;
    let (rank, noted) = (RANK.to_string(), path.display().to_string());
    let arguments = ["spin", rank.as_str(), noted.as_str()];
    progress(format_args!("pause: {workers} ranks are started"))?;
    let arguments = &arguments;
    let plan = Plan { workers, options: &[], arguments, stacks: &stacks, stderr: "stderr", gate: None };
    let job = Job::start(setup, plan)?;
    let pid = *job.pids.get(&RANK).ok_or("there is no such rank")?;
    let mut windows: Vec<Vec<Window>> = vec![Vec::new(); KINDS.len()];
    for round in 0..rounds {
        progress(format_args!("pause, round {} of {rounds}", round + 1))?;
        for _ in 0..IN_A_ROUND {
            let mut length = Duration::from_millis(500);
            // From the longest to the shortest, and then nothing for as long as the longest.
            for index in [4, 0, 3, 2, 1] {
                let window = window(setup, &job, pid, KINDS[index].0, length)?;
                length = Duration::from_nanos(window.to_ns - window.from_ns);
                windows[index].push(window);
            }
        }
    }
    let gaps = gaps::read(&path)?;
    job.stop(setup)?;
    progress(format_args!(""))?;
    print(&windows, &gaps)
}

fn window(setup: &Setup, job: &Job, pid: i32, what: What, length: Duration) -> Outcome<Window> {
    let folder = setup.folder("dump")?;
    let before = waited_for_cpu_ns(pid)?;
    let (from_ns, to_ns) = match what {
        What::Nothing => {
            let from_ns = now_ns();
            std::thread::sleep(length);
            (from_ns, now_ns())
        }
        What::All { native } | What::One { native } => {
            let options: &[&str] = if native { &[] } else { &["--no-native"] };
            let is_one = matches!(what, What::One { .. });
            let command = if is_one {
                of_one(setup, pid, &folder, options)
            } else {
                dump::command(setup, job, &folder, options)
            };
            let ran = Ran::of(setup, command)?;
            (ran.began_ns, ran.ended_ns)
        }
    };
    let waited_ms = waited_for_cpu_ns(pid)?.saturating_sub(before) as f64 / 1e6;
    Ok(Window { from_ns, to_ns, waited_ms })
}

fn of_one(setup: &Setup, pid: i32, folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(&setup.diag);
    command.args(["dump", "--pid", &pid.to_string(), "--path"]).arg(folder).args(options);
    command
}

fn print(windows: &[Vec<Window>], gaps: &[Gap]) -> Outcome<()> {
    heading("a worker that computes, while stacks are taken: the longest time for which it does not run")?;
    let out = &mut std::io::stdout();
    for ((_, name), windows) in KINDS.iter().zip(windows) {
        let [mut longest, mut sums, mut waits, mut rests, mut spans]: [Figures; 5] = Default::default();
        for Window { from_ns, to_ns, waited_ms } in windows {
            let Missed { longest: most, sum } = gaps::within(gaps, *from_ns, *to_ns);
            longest.add(most);
            sums.add(sum);
            waits.add(*waited_ms);
            rests.add((sum - waited_ms).max(0.0));
            spans.add((to_ns - from_ns) as f64 / 1e6);
        }
        writeln!(out, "  {name}")?;
        line("longest", &longest, "ms")?;
        line("in all", &sums, "ms")?;
        line("no CPU", &waits, "ms")?;
        line("the rest", &rests, "ms")?;
        line("of a time", &spans, "ms")?;
    }
    let words = [
        "  longest, in all: gaps above 0.02 ms; no CPU: it could run, and another process had the CPU;",
        "  the rest: it was stopped, or the kernel or the host of this machine was at work",
    ];
    writeln!(out, "{}", words.join("\n"))?;
    Ok(())
}
