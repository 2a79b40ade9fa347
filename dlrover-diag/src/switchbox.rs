//! `dlrover-diag switchbox`: a manual switchbox check.

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::ArgAction;
use diagnosis::switchbox::{
    Expected, NO_PROBE, PairFinding, Rate, Settings, SwitchboxFinding, SwitchboxStatus, Verdict, check_pairs,
};
use probes::{
    GpuPlan, ProbeProgram, SwitchboxError, SwitchboxTask, TOOL_VARIABLE, check_switchbox, take_inventory,
};
use serde::Serialize;

use super::{log_line, table::Table};
use launcher::{
    box_pairs,
    environment::Environment,
    failure::{FAILED, SUCCEEDED, USAGE},
    host::ThisHost,
    numbers::whole,
    options::SWITCHBOX_PATHS,
    resolve::switchbox::{VARIABLE as PROBE_VARIABLE, default_min_channels, read_probe},
};

/// Checks the links between this node's accelerators and their switchbox
#[derive(Debug, clap::Args)]
#[command(after_help = "\
As dlrover-run --network-check --switchbox-check does before every start of workers; see docs/switchbox.md.
To try a probe where there is no switchbox: --switchbox-probe=host --min-bandwidth=1000

Exit code: 0 when enough pairs are good, 1 when too few are or nothing could be measured, 2 when the command line \
cannot be used.")]
pub(super) struct Arguments {
    /// The pairs of switchbox sockets to check [default: 0:1 2:4 3:5 6:7]
    #[arg(long, value_name = "A:B ...", num_args = 1.., action = ArgAction::Set)]
    box_pairs: Vec<String>,
    /// A pair below this bandwidth is faulty
    #[arg(long, value_name = "MB/S", value_parser = minimum_rate, default_value = "10000")]
    min_bandwidth: Rate,
    /// A node with fewer good pairs than this is faulty [default: 2, or the number of pairs if that is less]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u32::MAX.into()))]
    min_channels: Option<u32>,
    /// What measures the pairs [env: DLROVER_SWITCHBOX_PROBE] [default: auto]
    #[arg(long, value_name = "auto|mxom|cuda|host|CMD")]
    switchbox_probe: Option<OsString>,
    /// Path that the bytes must take; auto: a link, if another pair uses one or the accelerators' model has one
    #[arg(long, value_name = "PATH", value_parser = SWITCHBOX_PATHS.to_vec(), default_value = "auto")]
    switchbox_path: String,
    /// Let --box-pairs pair a socket with itself, to try a probe on one device
    #[arg(long)]
    probe_loopback: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

/// The default of `--box-pairs`.
const BOX_PAIRS: &str = "0:1 2:4 3:5 6:7";

/// Runs it.
pub(super) fn main(arguments: &Arguments, env: Environment<'_>) -> ExitCode {
    let task = match task(arguments, env) {
        Ok(task) => task,
        Err(error) => {
            log_line(format_args!("error: {error}"));
            return ExitCode::from(USAGE);
        }
    };
    let is_json = arguments.json;
    let finding = match check(task, env, !is_json) {
        Ok(finding) => finding,
        Err(error) => {
            log_line(format_args!("error: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    let text = if is_json { json(&finding) } else { table(&finding) };
    let code = match finding.status() {
        SwitchboxStatus::Ok | SwitchboxStatus::Degraded => SUCCEEDED,
        SwitchboxStatus::Untested | SwitchboxStatus::Fault => FAILED,
    };
    super::print(&text, code)
}

/// The value of `--min-bandwidth`.
fn minimum_rate(text: &str) -> Result<Rate, String> {
    let megabytes = text.trim().parse().ok();
    megabytes.and_then(Rate::minimum).ok_or_else(|| format!("expected {}", Rate::MINIMUM))
}

fn task(arguments: &Arguments, env: Environment<'_>) -> Result<SwitchboxTask, String> {
    let are_pairs_given = !arguments.box_pairs.is_empty();
    let given = if are_pairs_given { arguments.box_pairs.join(" ") } else { BOX_PAIRS.to_owned() };
    let pairs = box_pairs::parse(&given)
        .ok_or_else(|| format!("--box-pairs {given}: give pairs of sockets such as 0:1 2:4"))?;
    check_pairs(&pairs, arguments.probe_loopback).map_err(|why| format!("--box-pairs: {why}"))?;
    let min = arguments.min_bandwidth;
    let most = u32::try_from(pairs.len()).unwrap_or(u32::MAX);
    let min_channels = arguments.min_channels.unwrap_or_else(|| default_min_channels(pairs.len()));
    if min_channels > most {
        return Err(format!(
            "--min-channels {min_channels}: --box-pairs names only {}",
            diagnosis::counted::counted(most, "pair")
        ));
    }
    let expected = Expected::parse(&arguments.switchbox_path).unwrap_or_default();
    let models = Vec::new();
    let settings = Settings { pairs, are_pairs_given, min, min_channels, expected, models };
    let given = arguments.switchbox_probe.as_deref();
    let command = given.or_else(|| env.get_filled(PROBE_VARIABLE)).unwrap_or("auto".as_ref());
    let probe = read_probe(command, env, &ThisHost).ok_or_else(|| {
        let name = if given.is_some() { "--switchbox-probe" } else { PROBE_VARIABLE };
        let command = command.to_string_lossy();
        format!("{name} {command}: give auto, mxom, cuda, host, or a command line whose program is on PATH")
    })?;
    Ok(SwitchboxTask::new(settings, probe, env.get(TOOL_VARIABLE)))
}

/// Runs the check and prints its progress on standard error. The last line is skipped if it ends the table.
fn check(mut task: SwitchboxTask, env: Environment<'_>, has_table: bool) -> Result<SwitchboxFinding, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(async {
        let (lines, mut received) = tokio::sync::mpsc::channel(256);
        let printing = async {
            let mut last: Option<String> = None;
            while let Some(line) = received.recv().await {
                last.replace(line).into_iter().for_each(log_line);
            }
            last
        };
        let program = ProbeProgram::default();
        if task.settings.expected == Expected::Alike {
            let plan = GpuPlan { path: env.tool_path().to_owned(), ..GpuPlan::default() };
            let inventory = take_inventory(plan).await;
            task.settings.models = inventory.gpus.into_iter().filter_map(|gpu| gpu.name).collect();
        }
        let (found, last) = tokio::join!(check_switchbox(task, &program, Some(lines), None), printing);
        let is_in_table = |last: &String| {
            has_table && found.as_ref().is_ok_and(|finding| last.ends_with(&finding.to_string()))
        };
        last.filter(|last| !is_in_table(last)).into_iter().for_each(log_line);
        found.map_err(|error| match error {
            SwitchboxError::NoProbe => NO_PROBE.to_owned(),
            error => error.to_string(),
        })
    })
}

/// The columns of the table.
const HEADS: [&str; 9] = ["pair", "devices", "dir", "min MB/s", "median", "max", "passes", "path", "verdict"];

/// One row for each direction of each pair.
fn table(finding: &SwitchboxFinding) -> String {
    let mut table = Table::new(HEADS).with_numbers_in(3..7);
    for pair in &finding.pairs {
        let devices =
            pair.devices.as_ref().map_or_else(|| "-".to_owned(), |(one, other)| format!("{one} -> {other}"));
        let verdict = pair.wrong.as_ref().map_or("good", |wrong| wrong.trouble.as_str());
        let verdict = match (pair.values.is_empty(), pair.alone) {
            (true, _) => verdict.to_owned(),
            (false, true) => format!("{verdict} (alone)"),
            (false, false) => format!("{verdict} (together)"),
        };
        for direction in directions(pair, finding.min) {
            let (min, median, max) = direction.spread_cells();
            table.line([
                pair.pair.to_string(),
                devices.clone(),
                direction.dir.to_owned(),
                min,
                median,
                max,
                format!("{}/{}", direction.passes, direction.of),
                pair.path.to_string(),
                verdict.clone(),
            ]);
        }
    }
    format!("{table}{finding}")
}

/// One direction of a pair.
struct Direction {
    dir: &'static str,
    spread: Option<(Rate, Rate, Rate)>,
    passes: usize,
    of: usize,
}

impl Direction {
    fn new(dir: &'static str, values: &[Rate], min: Rate) -> Self {
        let passes = values.iter().filter(|value| **value >= min).count();
        Self { dir, spread: PairFinding::spread(values.iter().copied()), passes, of: values.len() }
    }

    fn spread_cells(&self) -> (String, String, String) {
        match self.spread {
            Some((min, median, max)) => (min.to_string(), median.to_string(), max.to_string()),
            None => ("-".into(), "-".into(), "-".into()),
        }
    }
}

/// As many as were measured; one empty one of a pair without values.
fn directions(pair: &PairFinding, min: Rate) -> Vec<Direction> {
    let there: Vec<Rate> = pair.values.iter().map(|value| value.there).collect();
    let back: Vec<Rate> = pair.values.iter().filter_map(|value| value.back).collect();
    let mut both = vec![Direction::new("ab", &there, min)];
    if !back.is_empty() {
        both.push(Direction::new("ba", &back, min));
    }
    both
}

/// The same as a document.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    probe: &'a str,
    verdict: &'static str,
    good: usize,
    total: usize,
    min_channels: u32,
    min_mbps: f64,
    took_seconds: f64,
    pairs: Vec<PairDocument<'a>>,
    /// Remarks, whatever the verdict.
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct PairDocument<'a> {
    pair: [u32; 2],
    gpus: Option<[&'a str; 2]>,
    verdict: Verdict,
    reason: Option<&'static str>,
    words: Option<&'a str>,
    path: &'static str,
    alone: bool,
    directions: Vec<DirectionDocument>,
}

#[derive(Debug, Serialize)]
struct DirectionDocument {
    dir: &'static str,
    min_mbps: Option<f64>,
    median_mbps: Option<f64>,
    max_mbps: Option<f64>,
    passes: usize,
    of: usize,
}

fn json(finding: &SwitchboxFinding) -> String {
    let direction = |Direction { dir, spread, passes, of }| DirectionDocument {
        dir,
        min_mbps: spread.map(|it| it.0.mb_per_s()),
        median_mbps: spread.map(|it| it.1.mb_per_s()),
        max_mbps: spread.map(|it| it.2.mb_per_s()),
        passes,
        of,
    };
    let pairs = finding.pairs.iter().map(|pair| PairDocument {
        pair: [pair.pair.0, pair.pair.1],
        gpus: pair.devices.as_ref().map(|(one, other)| [one.as_str(), other]),
        verdict: pair.verdict,
        reason: pair.wrong.as_ref().map(|wrong| wrong.trouble.as_str()),
        words: pair.wrong.as_ref().map(|wrong| wrong.message.as_str()),
        path: pair.path.as_str(),
        alone: pair.alone,
        directions: directions(pair, finding.min).into_iter().map(direction).collect(),
    });
    let document = Document {
        schema: "dlrover.switchbox/v1",
        probe: &finding.probe,
        verdict: finding.status().as_str(),
        good: finding.good(),
        total: finding.pairs.len(),
        min_channels: finding.min_channels,
        min_mbps: finding.min.mb_per_s(),
        took_seconds: Duration::as_secs_f64(&finding.took),
        pairs: pairs.collect(),
        notes: &finding.remarks,
    };
    serde_json::to_string(&document).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use diagnosis::switchbox::{Path, Repetition, SocketPair, Trouble, Wrong};
    use probes::SwitchboxProbe;

    use clap::Parser as _;

    use super::*;
    use crate::{Arguments, Subcommand};

    fn finding() -> SwitchboxFinding {
        let mb = |value| Rate::from_mb_per_s(value).unwrap();
        let both = |there, back| Repetition { there: mb(there), back: Some(mb(back)) };
        let pair = |pair, values, wrong: Option<Wrong>| PairFinding {
            pair,
            devices: Some(("GPU 0 (0000:1b:00.0)".into(), "GPU 1".into())),
            verdict: if wrong.is_none() { Verdict::Good } else { Verdict::Bad },
            wrong,
            values,
            path: Path::Nvlink,
            alone: true,
        };
        let slow = Wrong::new(Trouble::Slow, "900.5 MB/s");
        let gone = Wrong::new(Trouble::NoSuchDevice, "9 is none of the 8 devices here");
        let nothing = PairFinding {
            devices: None,
            path: Path::Unknown,
            alone: false,
            ..pair(SocketPair(8, 9), Vec::new(), Some(gone))
        };
        SwitchboxFinding {
            probe: "cuda".into(),
            min: mb(10_000.0),
            min_channels: 1,
            pairs: vec![
                pair(SocketPair(0, 1), vec![both(50e3, 51e3), both(49e3, 48e3), both(52e3, 50e3)], None),
                pair(SocketPair(2, 4), vec![both(50e3, 900.5)], Some(slow)),
                nothing,
            ],
            took: Duration::from_millis(1234),
            remarks: Vec::new(),
        }
    }

    #[test]
    fn the_table_is_pleasant_to_read() {
        insta::assert_snapshot!(table(&finding()));
    }

    #[test]
    fn the_document_has_the_same() {
        let document: serde_json::Value = serde_json::from_str(&json(&finding())).unwrap();
        insta::assert_snapshot!(format!("{document:#}"));
    }

    #[test]
    fn arguments_become_a_check() {
        let of = |words: &[&str]| {
            let Ok(Arguments { subcommand: Subcommand::Switchbox(arguments) }) =
                crate::Arguments::try_parse_from(["dlrover-diag", "switchbox"].iter().chain(words))
            else {
                return None;
            };
            Some(task(&arguments, Environment(&[])))
        };
        let plain = of(&["--switchbox-probe=host"]).unwrap().unwrap();
        assert_eq!((plain.settings.pairs.len(), plain.settings.min_channels), (4, 2));
        assert_eq!(plain.probe, SwitchboxProbe::Host);
        let two = of(&["--box-pairs", "0:1", "2:4", "--min-bandwidth", "5"]).unwrap().unwrap();
        assert_eq!((two.settings.pairs.len(), two.settings.min), (2, Rate(5_000_000)));
        assert_eq!(
            of(&["--box-pairs", "0:0", "--probe-loopback"]).unwrap().unwrap().settings.min_channels,
            1
        );
        for (words, expected) in [
            (&["--box-pairs", "0:0"][..], "0:0 pairs a socket with itself"),
            (&["--box-pairs", "0:1,1:2"], "socket 1 is in 0:1 and in 1:2"),
            (&["--box-pairs", "0-1"], "--box-pairs 0-1: give pairs of sockets"),
            (&["--switchbox-probe", "cudda"], "--switchbox-probe cudda: give auto, mxom, cuda, host, or a"),
            (&["--switchbox-probe", ""], "--switchbox-probe : give auto, mxom, cuda, host, or a"),
            (&["--min-channels", "5"], "--min-channels 5: --box-pairs names only 4 pairs"),
        ] {
            let error = of(words).unwrap().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        for text in ["-1", "nan", "1e99", "inf", "fast"] {
            let words = ["dlrover-diag", "switchbox", &format!("--min-bandwidth={text}")];
            let error = crate::Arguments::try_parse_from(words).unwrap_err().to_string();
            let expected = format!(
                "invalid value '{text}' for '--min-bandwidth <MB/S>': expected a bandwidth in MB/s above 0 and at most \
                 1000000000"
            );
            assert!(error.contains(&expected), "{error}");
        }
    }
}
