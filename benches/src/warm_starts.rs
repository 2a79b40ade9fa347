//! The `warm` bench: what a person waits for when Python workers start, with torch and a checkpoint.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    Outcome,
    figures::{Figures, goal, goal_of_peer, heading, line, progress, ratio},
    launcher::{Bench, Running},
    processes::Memory,
    stamps::{Stamp, last_ns, now_ns},
};

const TRAINER: &str = include_str!("warm_starts/train.py");

/// A try that takes longer counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// After the first step, before a rank is killed: as long as a person needs to see it.
const REST: Duration = Duration::from_secs(1);

/// A line of the log of the launcher.
const READY: &str = "the template of warm workers is ready";

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    /// Jobs of each side and size.
    pub rounds: usize,
    /// Kills in each job.
    pub kills: usize,
    /// Numbers of ranks.
    pub ranks: Vec<usize>,
    /// What they train on: `cpu`, or `cuda`, one device for all ranks.
    pub device: String,
    /// The directory of this project's Python package, to keep checkpoints in memory; else they are files of torch.
    pub flash: Option<PathBuf>,
}

/// What starts the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Start,
    Restart,
    Off,
    Torchrun,
}

const SIDES: [(Side, &str); 4] = [
    (Side::Start, "warm=start"),
    (Side::Restart, "warm=restart"),
    (Side::Off, "warm=off"),
    (Side::Torchrun, "torchrun"),
];

/// The figures of a side.
#[derive(Debug, Default)]
struct Measured {
    first: Figures,
    restart: Figures,
    /// Restarts that were spent on a kill.
    spent: Figures,
    pss_mb: Figures,
    hung_starts: usize,
    hung_restarts: usize,
}

/// Measures and prints.
///
/// # Errors
/// A launcher or a worker fails.
pub fn measure(bench: &mut Bench, python: &Path, amount: &Amount) -> Outcome<()> {
    for &ranks in &amount.ranks {
        let mut all: Vec<(Side, &str, Measured)> =
            SIDES.map(|(side, name)| (side, name, Measured::default())).into();
        // Torchrun has no memory that survives its workers.
        let has_torchrun = bench.torchrun().is_some() && amount.flash.is_none();
        all.retain(|(side, ..)| *side != Side::Torchrun || has_torchrun);
        for round in 0..amount.rounds {
            for (side, name, measured) in &mut all {
                progress(format_args!("{ranks} ranks, round {} of {}, {name}", round + 1, amount.rounds))?;
                job(bench, python, *side, ranks, amount, measured)?;
                bench.expect_none_left()?;
            }
        }
        progress(format_args!(""))?;
        print(ranks, &all)?;
    }
    Ok(())
}

fn job(
    bench: &mut Bench,
    python: &Path,
    side: Side,
    ranks: usize,
    amount: &Amount,
    measured: &mut Measured,
) -> Outcome<()> {
    let script = bench.folder.path().join("train.py");
    fs::write(&script, TRAINER)?;
    let checkpoint = bench.folder.path().join("checkpoint");
    let _from_the_last_job = fs::remove_file(&checkpoint);
    bench.stamps.clear()?;
    let mut command = command(bench, side, ranks)?;
    command.arg(&script).env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1");
    command.env("DLROVER_BENCH_CHECKPOINT", &checkpoint).env("DLROVER_BENCH_DEVICE", &amount.device);
    if let Some(package) = &amount.flash {
        let _from_the_last_job = fs::remove_dir_all(checkpoint.with_extension("folder"));
        command.env("DLROVER_BENCH_FLASH", "1").env("PYTHONPATH", package);
    }
    let mut running = bench.spawn(command, Stdio::null(), "stderr")?;
    let Ok(mut alive) = bench.stamps.take(ranks, true, LIMIT) else {
        measured.hung_starts += 1;
        return running.stop();
    };
    measured.first.add(ms(running.exec_ns, last_ns(&alive)));
    measured.pss_mb.add(pss_mb(&alive)?);
    for turn in 0..amount.kills {
        if side == Side::Restart {
            await_template(&running)?;
        }
        std::thread::sleep(REST);
        let _begun = bench.stamps.drain(false)?;
        let victim = alive.get(turn % alive.len()).ok_or("no worker to kill")?;
        let killed_ns = now_ns();
        kill(Pid::from_raw(victim.pid), Signal::SIGKILL)?;
        let Ok(next) = bench.stamps.take(ranks, true, LIMIT) else {
            measured.hung_restarts += 1;
            break;
        };
        measured.restart.add(ms(killed_ns, last_ns(&next)));
        measured.spent.add(bench.stamps.drain(false)?.len() as f64 / ranks as f64);
        alive = next;
    }
    running.stop()
}

fn command(bench: &Bench, side: Side, ranks: usize) -> Outcome<Command> {
    let mut command = match side {
        Side::Torchrun => Command::new(bench.torchrun().ok_or("no TORCHRUN")?),
        Side::Start | Side::Restart | Side::Off => Command::new(bench.ours()),
    };
    match side {
        Side::Start => command.args(["--warm=start", "-v"]),
        Side::Restart => command.args(["--warm=restart", "-v"]),
        Side::Off => command.args(["--warm=off", "-v"]),
        Side::Torchrun => &mut command,
    };
    command.args(["--standalone", "--max-restarts=100", &format!("--nproc-per-node={ranks}")]);
    Ok(command)
}

/// The template has the time that the workers leave.
fn await_template(running: &Running) -> Outcome<()> {
    let deadline_ns = now_ns() + u64::try_from(LIMIT.as_nanos())?;
    while !running.stderr().contains(READY) {
        if now_ns() > deadline_ns {
            return Err(format!("no template within {} s\n{}", LIMIT.as_secs(), running.stderr()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn pss_mb(workers: &[Stamp]) -> Outcome<f64> {
    let mut kib = 0;
    for worker in workers {
        kib += Memory::of(worker.pid)?.pss;
    }
    Ok(kib as f64 * 1024.0 / 1e6)
}

fn print(ranks: usize, all: &[(Side, &str, Measured)]) -> Outcome<()> {
    let of = |wanted: Side| all.iter().find(|(side, ..)| *side == wanted).map(|(_, _, measured)| measured);
    let mut out = std::io::stdout();
    heading(&format!("exec of the launcher -> first optimizer step of the last of {ranks} ranks"))?;
    for (_, name, measured) in all {
        line(name, &measured.first, "ms")?;
        if measured.hung_starts > 0 {
            writeln!(out, "             none within {} s: {} times", LIMIT.as_secs(), measured.hung_starts)?;
        }
    }
    // The goals of a first step and of memory are for 8 ranks, that of a restart in milliseconds is for 2.
    if let (8, Some(start), Some(peer)) = (ranks, of(Side::Start), of(Side::Torchrun)) {
        goal_of_peer(3.0, &start.first, &peer.first)?;
    }
    heading(&format!(
        "SIGKILL of a rank -> next optimizer step of the last of {ranks} ranks, from a checkpoint"
    ))?;
    for (_, name, measured) in all {
        if !measured.restart.is_empty() {
            line(name, &measured.restart, "ms")?;
            writeln!(out, "             restarts spent: {} (median)", measured.spent.median())?;
        }
        if measured.hung_restarts > 0 {
            writeln!(out, "  {name:10} none within {} s: {} times", LIMIT.as_secs(), measured.hung_restarts)?;
        }
    }
    if let Some(restart) = of(Side::Restart) {
        if ranks == 2 {
            goal("500 ms", restart.restart.median(), " ms", 500.0)?;
        }
        if let Some(peer) = of(Side::Torchrun) {
            goal_of_peer(10.0, &restart.restart, &peer.restart)?;
        }
    }
    heading(&format!("proportional set size of {ranks} workers"))?;
    for (_, name, measured) in all {
        line(name, &measured.pss_mb, "MB")?;
    }
    if let (Some(start), Some(off)) = (of(Side::Start), of(Side::Off)) {
        let share = start.pss_mb.median() / off.pss_mb.median();
        ratio("of that without a template", share)?;
        if ranks == 8 {
            goal("60 %", share * 100.0, " %", 60.0)?;
        }
    }
    Ok(())
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}

/// Parses arguments: `--rounds N`, `--kills N`, `--ranks N,...`, `--device cpu|cuda` and `--flash DIR`.
///
/// # Errors
/// An argument is none of these, a number is 0 or none, the device is another one, or the directory has no Python
/// package.
pub fn amount(mut args: impl Iterator<Item = String>) -> Outcome<Amount> {
    let mut amount = Amount { rounds: 5, kills: 2, ranks: vec![2, 8], device: "cpu".to_owned(), flash: None };
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_default();
        if arg == "--device" {
            if !["cpu", "cuda"].contains(&value.as_str()) {
                return Err(format!("--device is cpu or cuda, not `{value}`").into());
            }
            amount.device = value;
            continue;
        }
        if arg == "--flash" {
            let package = PathBuf::from(&value);
            if !package.join("dlrover_run").is_dir() {
                return Err(format!(
                    "--flash: `{value}` has no directory dlrover_run; give packaging/wheel/python"
                )
                .into());
            }
            amount.flash = Some(fs::canonicalize(package)?);
            continue;
        }
        let numbers: Vec<usize> = value.split(',').filter_map(|text| text.parse().ok()).collect();
        if numbers.is_empty() || numbers.contains(&0) {
            return Err(format!("{arg} needs a number above 0").into());
        }
        match arg.as_str() {
            "--rounds" => amount.rounds = numbers[0],
            "--kills" => amount.kills = numbers[0],
            "--ranks" => amount.ranks = numbers,
            _ => {
                let known = "--rounds, --kills, --ranks, --device and --flash";
                return Err(format!("unknown option `{arg}`; there are {known}").into());
            }
        }
    }
    Ok(amount)
}

/// The interpreter that has torch.
///
/// # Errors
/// `TORCH_PYTHON` names none.
pub fn python() -> Outcome<PathBuf> {
    let python = std::env::var_os("TORCH_PYTHON").map(PathBuf::from);
    python.filter(|path| path.is_file()).ok_or_else(|| "TORCH_PYTHON names no interpreter with torch".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        let of = |line: &str| amount(line.split_ascii_whitespace().map(str::to_owned));
        let amount = |rounds, ranks: &[usize], device: &str| Amount {
            rounds,
            kills: 2,
            ranks: ranks.to_vec(),
            device: device.to_owned(),
            flash: None,
        };
        assert_eq!(of("").unwrap(), amount(5, &[2, 8], "cpu"));
        assert_eq!(of("--ranks 2,4 --rounds 1").unwrap(), amount(1, &[2, 4], "cpu"));
        assert_eq!(of("--device cuda").unwrap(), amount(5, &[2, 8], "cuda"));
        for wrong in
            ["--ranks", "--ranks 0", "--rounds x", "--what 1", "--device", "--device tpu", "--flash /"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
