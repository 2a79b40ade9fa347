//! `dlrover-diag topo`: how this host's accelerators are connected, and which of them `--gpu-select` would take.

mod report;

use std::{
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
};

use clap::{ArgAction, builder::NonEmptyStringValueParser};
use diagnosis::{
    gpu_topology::{CannotChoose, Choice, GpuSet, Matrix, Objective, Score, choose, ranking},
    gpus::health::BUSY_PERMILLE,
};

use super::log_line;
use launcher::{
    environment::Environment,
    failure::{FAILED, SUCCEEDED, USAGE},
    gpu_choice::{
        broken, busy,
        inventory::{NoInventory, by_drivers, from_file},
    },
    host::ThisHost,
};

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
enum TopoError {
    #[error("{0}; give a table with --file (- for standard input)")]
    NoInventory(#[source] NoInventory),
    #[error("{0}")]
    File(#[source] NoInventory),
    #[error("standard input cannot be read: {0}")]
    Stdin(#[source] io::Error),
    #[error("standard input: {0}")]
    Matrix(#[from] diagnosis::gpu_topology::BadMatrix),
    #[error("--busy names GPU {gpu}, which does not exist (GPUs found: {size}, numbered from 0)")]
    NoSuchGpu { gpu: usize, size: usize },
    #[error(transparent)]
    Choose(#[from] CannotChoose),
}

impl TopoError {
    /// Whether the command line is at fault.
    const fn exit_code(&self) -> u8 {
        match self {
            Self::NoSuchGpu { .. } | Self::Choose(_) => USAGE,
            Self::NoInventory(_) | Self::File(_) | Self::Stdin(_) | Self::Matrix(_) => FAILED,
        }
    }
}

/// Shows how this host's GPUs are connected, and the best of them for so many workers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The model (docs/gpus.md): the capacity of a set is the number of rings of direct links that it carries at once, or \
the slowest hop of its best ring where there is none; the gain is the modelled ring bandwidth of the best set over that of \
the first free GPUs.

Exit code: 0, 1 when there is no topology, 2 when the command line cannot be used.")]
pub(super) struct Arguments {
    /// Choose N of them [default: every number, one line each; with --json all that are free]
    #[arg(short = 'k', long = "gpus", value_name = "N")]
    wanted: Option<usize>,
    /// Read the table from here instead of asking nvidia-smi or mx-smi; -: from standard input
    #[arg(long, value_name = "FILE", value_parser = NonEmptyStringValueParser::new())]
    file: Option<String>,
    /// Exclude these; without --file also those whose memory is taken
    #[arg(long, value_name = "GPU,...", value_delimiter = ',', action = ArgAction::Set)]
    busy: Vec<usize>,
    /// Choose as --gpu-select=pack: leave a good set for the next job
    #[arg(long)]
    pack: bool,
    /// Also the ranking of all sets of N: the first ones, with --json all
    #[arg(long)]
    explain: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(super) fn main(arguments: &Arguments, env: Environment<'_>) -> ExitCode {
    match answer(arguments, env) {
        Ok(text) => super::print(&text, SUCCEEDED),
        Err(error) => {
            log_line(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn answer(arguments: &Arguments, env: Environment<'_>) -> Result<String, TopoError> {
    let (matrix, mut used, broken) = match arguments.file.as_deref() {
        Some("-") => (from_stdin()?, GpuSet::default(), GpuSet::default()),
        Some(file) => {
            let matrix = from_file(&ThisHost, Path::new(file)).map_err(TopoError::File)?;
            (matrix, GpuSet::default(), GpuSet::default())
        }
        None => {
            let found = by_drivers(&ThisHost, env);
            let (matrix, gpus) = found.map_err(TopoError::NoInventory)?;
            (matrix, busy(&gpus, BUSY_PERMILLE), broken(&gpus))
        }
    };
    if let Some(gpu) = arguments.busy.iter().find(|gpu| **gpu >= matrix.size()) {
        return Err(TopoError::NoSuchGpu { gpu: *gpu, size: matrix.size() });
    }
    used = used.or(arguments.busy.iter().copied().collect());
    let free = GpuSet::first(matrix.size()).without(used).without(broken);
    let objective = if arguments.pack { Objective::Pack } else { Objective::Topology };
    let Arguments { wanted, explain: explains, .. } = *arguments;
    if arguments.json {
        let number = wanted.unwrap_or(free.len());
        // No GPU is free, and no number was requested.
        let is_empty = wanted.is_none() && free.is_empty();
        let choice = if is_empty { nothing() } else { choose(&matrix, free, number, objective)? };
        let ranked = explains.then(|| if is_empty { Vec::new() } else { ranking(&matrix, free, number) });
        return Ok(report::json(&matrix, &choice, ranked.as_deref()));
    }
    let mut text = report::table(&matrix, free, broken);
    match wanted {
        None => {
            let choices = (2..=free.len()).map(|wanted| choose(&matrix, free, wanted, objective));
            text.push_str(&report::overview(&matrix, &choices.collect::<Result<Vec<_>, _>>()?));
        }
        Some(wanted) => text.push_str(&report::choice(&matrix, &choose(&matrix, free, wanted, objective)?)),
    }
    if explains && (wanted.is_some() || !free.is_empty()) {
        text.push_str(&report::ranking(&matrix, free, wanted.unwrap_or(free.len())));
    }
    Ok(text)
}

/// The choice when no GPU is free.
fn nothing() -> Choice {
    let (set, score) = (GpuSet::default(), Score::default());
    Choice { set, ring: Vec::new(), score, first: set, first_score: score, is_proven: true }
}

fn from_stdin() -> Result<Matrix, TopoError> {
    let mut bytes = Vec::new();
    io::stdin().take(Matrix::LONGEST_TEXT as u64 + 1).read_to_end(&mut bytes).map_err(TopoError::Stdin)?;
    Ok(Matrix::parse(&String::from_utf8_lossy(&bytes))?)
}
