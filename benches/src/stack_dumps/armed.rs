//! What a worker pays while hangs are watched for: jobs that compute, with the watch and without it, in turn.

use std::{fs, io::Write as _, path::Path, time::Duration};

use diagnosis::counted::counted;

use super::{
    Setup,
    interval::Interval,
    job::{Job, Plan, gate},
};
use crate::{
    Outcome,
    figures::{Figures, Short, heading, line, progress},
    launcher::TIMEOUT,
    stamps::now_ns,
};

/// Goal of the issue, in percent.
const GOAL: f64 = 0.1;

/// Steps of a worker in a run.
const STEPS: usize = 300;

/// Pairs of each way in a round, each of which is measured on the same CPUs twice: the other way round.
const IN_A_ROUND: usize = 4;

/// Of jobs of many ranks, rounds at most, and for how long each is looked at.
const ROUNDS_OF_MANY: usize = 3;
const LOOK: Duration = Duration::from_secs(5);

/// Seconds between two steps of a rank of these.
const PACE: &str = "0.2";

/// How a job is watched.
#[derive(Debug)]
struct Way {
    name: &'static str,
    options: &'static [&'static str],
    declares: bool,
}

/// The first is without the watch; a job that is watched otherwise has the default timeout.
const WAYS: [Way; 3] = [
    Way { name: "--hang-timeout=0", options: &["--hang-timeout=0"], declares: false },
    Way {
        name: "--progress=declared, each step declared",
        options: &["--progress=declared"],
        declares: true,
    },
    Way { name: "--progress=auto, the default", options: &[], declares: false },
];

/// One run of a job that computes.
#[derive(Debug, Clone, Copy, Default)]
struct RunCosts {
    steps_per_s: f64,
    /// Of the workers, for a step.
    cpu_ms: f64,
    /// A declaration.
    call_us: f64,
    /// Of the launcher and its guard, in percent of one CPU.
    launcher: f64,
}

impl RunCosts {
    fn mean(self, other: Self) -> Self {
        Self {
            steps_per_s: self.steps_per_s.midpoint(other.steps_per_s),
            cpu_ms: self.cpu_ms.midpoint(other.cpu_ms),
            call_us: self.call_us.midpoint(other.call_us),
            launcher: self.launcher.midpoint(other.launcher),
        }
    }
}

/// Measures jobs.
pub(super) fn measure(setup: &mut Setup) -> Outcome<()> {
    few(setup)?;
    many(setup)
}

fn few(setup: &mut Setup) -> Outcome<()> {
    let workers = std::thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).clamp(1, 16));
    let turns = setup.amount.rounds * IN_A_ROUND;
    let without = &WAYS[0];
    // The first pair is a control: two jobs that are alike show what the method cannot tell apart.
    let mut pairs: [Vec<[RunCosts; 2]>; 3] = Default::default();
    for turn in 0..turns {
        progress(format_args!("armed, turn {} of {turns}", turn + 1))?;
        for (way, pairs) in WAYS.iter().zip(&mut pairs) {
            // Each is the first to be started as often as the other, and has each half of the CPUs as often.
            let [first, second] = if turn % 2 == 0 { [without, way] } else { [way, without] };
            let once = run(setup, workers, [(first, 0), (second, 1)])?;
            let again = run(setup, workers, [(first, 1), (second, 0)])?;
            let mut pair = [once[0].mean(again[0]), once[1].mean(again[1])];
            if turn % 2 == 1 {
                pair.reverse();
            }
            pairs.push(pair);
        }
    }
    progress(format_args!(""))?;
    let mut noise = Noise::default();
    for (way, pairs) in WAYS.iter().zip(&pairs) {
        print_pairs(workers, [without, way], pairs, &mut noise)?;
    }
    Ok(())
}

/// By how much two jobs that are alike may differ, in percent.
#[derive(Debug, Default)]
struct Noise {
    time: Option<f64>,
    cpu: Option<f64>,
}

fn print_pairs(workers: usize, ways: [&Way; 2], pairs: &[[RunCosts; 2]], noise: &mut Noise) -> Outcome<()> {
    let out = &mut std::io::stdout();
    let [without, with] = ways.map(|way| way.name);
    let each = counted(workers, "worker");
    heading(&format!("two jobs that compute at the same time, each with {each}: {with}, and {without}"))?;
    let of = |side: usize, what: fn(&RunCosts) -> f64| {
        let mut figures = Figures::default();
        pairs.iter().for_each(|pair| figures.add(what(&pair[side])));
        figures
    };
    for (side, way) in ways.into_iter().enumerate() {
        writeln!(out, "  {}", way.name)?;
        line("steps", &of(side, |run| run.steps_per_s), "/s")?;
        line("CPU", &of(side, |run| run.cpu_ms), "ms")?;
        line("launcher", &of(side, |run| run.launcher * 10.0), "ms/s")?;
        if way.declares {
            line("a call", &of(side, |run| run.call_us), "us")?;
        }
    }
    let time = |[without, with]: &[RunCosts; 2]| more(with.steps_per_s, without.steps_per_s);
    let cpu = |[without, with]: &[RunCosts; 2]| more(without.cpu_ms, with.cpu_ms);
    let differences: [(&str, Vec<f64>, &mut Option<f64>); 2] = [
        ("time of a step", pairs.iter().map(time).collect(), &mut noise.time),
        ("CPU time of a step", pairs.iter().map(cpu).collect(), &mut noise.cpu),
    ];
    for (what, differences, noise) in differences {
        let interval = Interval::of(&differences);
        writeln!(out, "  {what}, more: {interval}")?;
        match *noise {
            None => *noise = Some(interval.farthest()),
            Some(noise) => writeln!(out, "  goal: at most {GOAL} %: {}", interval.against(GOAL, noise))?,
        }
    }
    if with == without {
        writeln!(out, "  a control: what these differ by is what cannot be told apart here")?;
        return Ok(());
    }
    // What can be accounted for has no noise to speak of.
    let launcher = of(1, |run| run.launcher).median() - of(0, |run| run.launcher).median();
    let calls = of(1, |run| run.call_us / run.cpu_ms / 10.0).median();
    let sum = launcher.max(0.0) / workers as f64 + calls;
    let verdict = if sum <= GOAL { "holds" } else { "does not hold" };
    writeln!(
        out,
        "  by account: {launcher:.4} % of a CPU more for the launcher, {calls:.4} % of a step for the call"
    )?;
    writeln!(out, "  goal: at most {GOAL} % of the workers' CPUs: {sum:.4} %, {verdict}")?;
    Ok(())
}

/// By how many percent the second is more than the first.
fn more(first: f64, second: f64) -> f64 {
    (second / first - 1.0) * 100.0
}

/// Two jobs at the same time, so that a machine that is slower for a while is so for both; each on the half of the CPUs
/// with this number.
fn run(setup: &mut Setup, workers: usize, ways: [(&Way, usize); 2]) -> Outcome<[RunCosts; 2]> {
    let stacks = setup.folder("stacks")?;
    let (mut jobs, mut folders) = (Vec::new(), Vec::new());
    for ((way, half), name) in ways.into_iter().zip(["first", "second"]) {
        let results = setup.folder(name)?;
        let gate = gate(setup, &format!("gate-{name}"))?;
        let (folder, path) = (results.display().to_string(), gate.display().to_string());
        let (count, declares) = (STEPS.to_string(), if way.declares { "declares" } else { "plain" });
        let first_cpu = (half * workers).to_string();
        let arguments = ["steps", &path, &folder, &count, declares, &first_cpu];
        let (stderr, gate) = (&*format!("stderr-{name}"), Some(&*gate));
        let plan =
            Plan { workers, options: way.options, arguments: &arguments, stacks: &stacks, stderr, gate };
        jobs.push(Job::start(setup, plan)?);
        folders.push(results);
    }
    let before = jobs.iter().map(|job| job.running.used()).collect::<Outcome<Vec<_>>>()?;
    let from_ns = now_ns();
    jobs.iter_mut().for_each(Job::open_gate);
    setup.bench.stamps.take(workers * 2, false, TIMEOUT)?;
    let elapsed = (now_ns() - from_ns) as f64;
    let mut costs = [RunCosts::default(); 2];
    for (((job, before), folder), costs) in jobs.iter().zip(before).zip(&folders).zip(&mut costs) {
        let results = (0..workers).map(|rank| result(folder, rank)).collect::<Outcome<Vec<_>>>()?;
        let mean = |what: fn(&Steps) -> f64| results.iter().map(what).sum::<f64>() / workers as f64;
        *costs = RunCosts {
            steps_per_s: mean(|result| result.count / result.wall_ns * 1e9),
            cpu_ms: mean(|result| result.cpu_ns / result.count / 1e6),
            call_us: mean(|result| result.call_ns / 1e3),
            launcher: job.running.used()?.since(before).cpu_ns as f64 / elapsed * 100.0,
        };
    }
    Job::stop_all(jobs, setup)?;
    Ok(costs)
}

/// What a worker has noted.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Steps {
    count: f64,
    wall_ns: f64,
    cpu_ns: f64,
    call_ns: f64,
}

fn result(folder: &Path, rank: usize) -> Outcome<Steps> {
    let text = fs::read_to_string(folder.join(rank.to_string()))?;
    parse(&text).ok_or_else(|| format!("rank {rank} has noted `{}`", text.trim_end()).into())
}

fn parse(text: &str) -> Option<Steps> {
    let numbers = text.split_ascii_whitespace().map(str::parse::<u64>).collect::<Result<Vec<_>, _>>().ok()?;
    match numbers[..] {
        [count, wall, cpu, call] if count > 0 && wall > 0 && cpu > 0 => Some(Steps {
            count: count as f64,
            wall_ns: wall as f64,
            cpu_ns: cpu as f64,
            call_ns: call as f64,
        }),
        _ => None,
    }
}

/// A job of many ranks, which declare their steps at the pace of a training and use no CPU.
fn many(setup: &mut Setup) -> Outcome<()> {
    let (workers, rounds) = (setup.amount.ranks, setup.amount.rounds.min(ROUNDS_OF_MANY));
    let mut figures: [Figures; 2] = Default::default();
    let ways = [&WAYS[0], &WAYS[1]];
    for round in 0..rounds {
        for (way, figures) in ways.iter().zip(&mut figures) {
            progress(format_args!("armed, {workers} ranks, {}, round {} of {rounds}", way.name, round + 1))?;
            let stacks = setup.folder("stacks")?;
            let (options, arguments) = (way.options, &["pace", PACE]);
            let plan = Plan { workers, options, arguments, stacks: &stacks, stderr: "stderr", gate: None };
            let job = Job::start(setup, plan)?;
            let (before, from_ns) = (job.running.used()?, now_ns());
            std::thread::sleep(LOOK);
            let spent = job.running.used()?.since(before).cpu_ns as f64 / 1e6;
            figures.add(spent / ((now_ns() - from_ns) as f64 / 1e9));
            job.stop(setup)?;
        }
    }
    progress(format_args!(""))?;
    heading(&format!("CPU time of the launcher of {workers} ranks, a step of each in {PACE} s"))?;
    let [without, with] = &figures;
    line("without", without, "ms/s")?;
    line("watched", with, "ms/s")?;
    let more = (with.median() - without.median()) / 10.0;
    let share = more / workers as f64;
    writeln!(
        std::io::stdout(),
        "  {} % of one CPU more, which is {share:.4} % of a CPU for each rank",
        Short(more)
    )?;
    let verdict = if share <= GOAL { "holds" } else { "does not hold" };
    writeln!(std::io::stdout(), "  goal: at most {GOAL} % of a CPU for each rank: {verdict}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_four_numbers_of_which_three_are_not_0() {
        let steps = parse("150 1500000000 1400000000 3000\n").unwrap();
        assert_eq!((steps.count, steps.wall_ns, steps.cpu_ns, steps.call_ns), (150.0, 1.5e9, 1.4e9, 3000.0));
        for wrong in ["", "150 1 1", "0 1 1 1", "150 0 1 1", "150 1 1 x", "150 1 1 1 1", "-1 1 1 1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_tenth_more_is_10_percent() {
        assert!((more(10.0, 11.0) - 10.0).abs() < 1e-9);
    }
}
