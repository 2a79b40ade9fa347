//! Eight workers that print as fast as they can, tee'd to log files in memory and to the console.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
    process::Stdio,
};

use super::Sides;
use crate::{
    Outcome,
    figures::{Figures, heading, progress, ratio},
    launcher::{Bench, Plan, Side, TIMEOUT},
    stamps::{first_ns, last_ns, now_ns},
};

const WORKERS: usize = 8;
const LINE: usize = 80;

/// Results of a side.
#[derive(Debug)]
struct Tee {
    /// From the first worker's start to the launcher's end, when all is in the files and on the console.
    mb_per_s: f64,
    /// To the end of the last worker.
    workers_mb_per_s: f64,
}

pub(super) fn measure(bench: &mut Bench, rounds: usize, print_mb: usize) -> Outcome<()> {
    let bytes = print_mb * 1_000_000 / LINE * LINE;
    let rounds = rounds.min(5);
    for piped in [false, true] {
        let (mut sides, mut workers) = (Sides::default(), Sides::default());
        let console = if piped { "a pipe that is read" } else { "/dev/null" };
        for round in 0..rounds {
            for side in bench.sides() {
                progress(format_args!("tee to {console}, {side:?}, round {} of {rounds}", round + 1))?;
                let tee = tee(bench, side, bytes, piped)?;
                sides.of(side).add(tee.mb_per_s);
                workers.of(side).add(tee.workers_mb_per_s);
            }
            if !piped {
                sides.bare.add(bare(bench, bytes)?);
            }
        }
        progress(format_args!(""))?;
        heading(&format!(
            "tee of {WORKERS} workers, {print_mb} MB each in lines of {LINE} bytes, to files and to {console}"
        ))?;
        sides.print("MB/s")?;
        ratio("ours / torchrun", sides.ours.median() / sides.torchrun.median())?;
        held("ours", &workers.ours)?;
        held("torchrun", &workers.torchrun)?;
    }
    Ok(())
}

/// torchrun's workers write their files themselves, and its console copy comes later or not at all.
fn held(name: &str, figures: &Figures) -> Outcome<()> {
    ratio(&format!("of it the workers alone, {name}, MB/s"), figures.median())
}

fn tee(bench: &mut Bench, side: Side, bytes: usize, piped: bool) -> Outcome<Tee> {
    let logs = bench.folder.path().join("logs");
    let log_dir = format!("--log-dir={}", logs.display());
    let (stdout, reader) = if piped {
        let (read, write) = std::io::pipe()?;
        (
            Stdio::from(write),
            Some(std::thread::spawn(move || drain(File::from(std::os::fd::OwnedFd::from(read))))),
        )
    } else {
        (Stdio::null(), None)
    };
    let length = bytes.to_string();
    let options = ["--tee=3", log_dir.as_str()];
    let plan = Plan { workers: WORKERS, options: &options, arguments: &["print", &length], stdout };
    let mut running = bench.start(side, plan)?;
    let started = first_ns(&bench.stamps.take(WORKERS, true, TIMEOUT)?);
    let printed = last_ns(&bench.stamps.take(WORKERS, false, TIMEOUT)?);
    let mut ended = running.succeed()?;
    let in_files = size(&logs);
    fs::remove_dir_all(&logs)?;
    if in_files != (bytes * WORKERS) as u64 {
        progress(format_args!("{side:?}: {in_files} bytes in the files, not {}\n", bytes * WORKERS))?;
    }
    if let Some(reader) = reader {
        let (read, at_ns) = reader.join().map_err(|_| "the reader panicked")?;
        ended = ended.max(at_ns);
        // Each line has a prefix.
        if read <= (bytes * WORKERS) as u64 {
            progress(format_args!("{side:?}: only {read} bytes reached the console\n"))?;
        }
    }
    let mb = (bytes * WORKERS) as f64 / 1e6;
    let per_s = |until: u64| mb / ((until - started) as f64 / 1e9);
    Ok(Tee { mb_per_s: per_s(ended), workers_mb_per_s: per_s(printed) })
}

/// Workers that write files, and no console.
fn bare(bench: &mut Bench, bytes: usize) -> Outcome<f64> {
    bench.stamps.clear()?;
    let logs = bench.folder.path().join("bare");
    fs::create_dir(&logs)?;
    let mut children = Vec::new();
    for worker in 0..WORKERS {
        let mut command = bench.worker(&["print", &bytes.to_string()]);
        children.push(command.stdout(File::create(logs.join(worker.to_string()))?).spawn()?);
    }
    let started = first_ns(&bench.stamps.take(WORKERS, true, TIMEOUT)?);
    for mut child in children {
        child.wait()?;
    }
    let elapsed = (now_ns() - started) as f64 / 1e9;
    bench.stamps.take(WORKERS, false, TIMEOUT)?;
    fs::remove_dir_all(&logs)?;
    Ok((bytes * WORKERS) as f64 / 1e6 / elapsed)
}

/// Returns how much was read, and when it ended.
fn drain(mut pipe: File) -> (u64, u64) {
    let mut buffer = vec![0; 64 << 10];
    let mut count = 0;
    while let Ok(read @ 1..) = pipe.read(&mut buffer) {
        count += read as u64;
    }
    (count, now_ns())
}

fn size(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return fs::metadata(path).map_or(0, |file| file.len());
    };
    entries.flatten().map(|entry| size(&entry.path())).sum()
}
