//! `dlrover-diag gpus`: the accelerators of this node, as a run would see them.

use std::{fs, io, path::PathBuf, process::ExitCode, time::Duration};

use clap::value_parser;
use diagnosis::{
    counted::counted,
    gpu_topology::LinkKind,
    gpus::{
        Gpu, GpuTrouble, Host, Inventory, gigabytes,
        health::{is_busy, what_is_broken},
    },
};
use probes::{GpuPlan, inventory_now};
use serde_json::{Value, json};

use super::{log_line, table::Table};
use launcher::{
    environment::Environment,
    failure::{FAILED, SUCCEEDED, USAGE},
    resolve::permille,
};

/// The version of the JSON document.
const SCHEMA: &str = "dlrover.gpus/v1";

/// A recorded inventory is not longer.
const LONGEST_RECORD: u64 = 4 << 20;

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
enum GpusError {
    #[error("{} cannot be read", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a document of `dlrover-diag gpus --json`", .path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// Shows the accelerators of this node, their state, their links, and the host
#[derive(Debug, clap::Args)]
#[command(after_help = "\
NVIDIA's are queried by NVML (libnvidia-ml.so.1), or by nvidia-smi without that library, MetaX's by sysfs and mx-smi; \
none of these is required.

Exit code: 0 when nothing is broken, 1 when an accelerator is, or does not reply, 2 when the command line cannot be used.")]
pub(super) struct Arguments {
    /// One JSON document, for programs
    #[arg(long)]
    json: bool,
    /// The timeout of drivers; without persistence mode a driver takes seconds for each device
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=600), default_value = "30")]
    timeout: u64,
    /// A GPU is busy when more of its memory is taken, as with dlrover-run's option of this name
    #[arg(long = "busy-gpu-threshold", value_name = "PERCENT", value_parser = percent, default_value = "30")]
    busy_permille: u32,
    /// Show a document that --json has written on another node
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

pub(super) fn main(arguments: &Arguments, env: Environment<'_>) -> ExitCode {
    let inventory = match inventory(arguments, env) {
        Ok(inventory) => inventory,
        Err(error) => {
            log_line(format_args!("error: {}", rules::chain(&error)));
            return ExitCode::from(USAGE);
        }
    };
    let text = match arguments.json {
        true => document(&inventory),
        false => for_people(&inventory, arguments.busy_permille),
    };
    let is_well =
        inventory.hangs_at.is_none() && inventory.gpus.iter().all(|gpu| what_is_broken(gpu).is_none());
    super::print(&text, if is_well { SUCCEEDED } else { FAILED })
}

/// Parses the percentage of `--busy-gpu-threshold`, as thousandths.
fn percent(word: &str) -> Result<u32, String> {
    let percent = word.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(|percent| permille(percent / 100.0)).ok_or_else(|| "not a number from 0 to 100".to_owned())
}

fn inventory(arguments: &Arguments, env: Environment<'_>) -> Result<Inventory, GpusError> {
    if let Some(path) = &arguments.from {
        return recorded(path);
    }
    let path = env.tool_path().to_owned();
    let plan = GpuPlan { deadline: Duration::from_secs(arguments.timeout), path, ..GpuPlan::default() };
    Ok(inventory_now(plan))
}

fn recorded(path: &PathBuf) -> Result<Inventory, GpusError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(fs::File::open(path)?, LONGEST_RECORD), &mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|source| GpusError::Read { path: path.clone(), source })?;
    let parsed = serde_json::from_slice::<Inventory>(&bytes);
    Ok(parsed.map_err(|source| GpusError::Parse { path: path.clone(), source })?.bounded())
}

/// The inventory, with the name of its schema.
fn document(inventory: &Inventory) -> String {
    let mut document = json!({ "schema": SCHEMA });
    if let (Value::Object(document), Ok(Value::Object(facts))) =
        (&mut document, serde_json::to_value(inventory))
    {
        document.extend(facts);
    }
    format!("{document}\n")
}

fn for_people(inventory: &Inventory, busy_permille: u32) -> String {
    let mut text = format!("{inventory}\n");
    if !inventory.gpus.is_empty() {
        text.push_str(&format!("\n{}", states(inventory, busy_permille)));
    }
    if !inventory.links.is_empty() {
        text.push_str(&format!("\n{}", links(inventory)));
    }
    text.push_str(&format!("\n{}\n", host(&inventory.host)));
    for note in &inventory.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn states(inventory: &Inventory, busy_permille: u32) -> Table {
    let mut table =
        Table::new(["GPU", "MODEL", "PCI", "NUMA", "MEMORY (GB)", "UTIL", "TEMP", "ECC", "NVLINKS", "STATE"]);
    for gpu in &inventory.gpus {
        let up = gpu.nvlinks.iter().filter(|link| link.is_active).count();
        let links =
            if gpu.nvlinks.is_empty() { "-".into() } else { format!("{up} of {}", gpu.nvlinks.len()) };
        let memory = match (gpu.memory_used, gpu.memory_total) {
            (Some(used), Some(total)) => format!("{} of {}", gigabytes(used), gigabytes(total)),
            _ => "-".into(),
        };
        table.line([
            gpu.index.to_string(),
            or_dash(gpu.name.as_deref()),
            or_dash(gpu.pci.as_deref()),
            or_dash(gpu.numa_node),
            memory,
            or_dash(gpu.utilisation_percent.map(|percent| format!("{percent} %"))),
            or_dash(gpu.temperature_celsius.map(|degrees| format!("{degrees} °C"))),
            or_dash(gpu.ecc_uncorrected),
            links,
            state(gpu, busy_permille),
        ]);
    }
    table
}

fn state(gpu: &Gpu, busy_permille: u32) -> String {
    if let Some(reason) = what_is_broken(gpu) {
        return format!("BROKEN: {reason}");
    }
    let mut states = Vec::new();
    if gpu.trouble == Some(GpuTrouble::NotPermitted) {
        states.push("permission denied".into());
    }
    if is_busy(gpu, busy_permille) {
        let pids: Vec<String> = gpu.processes.iter().map(|process| process.pid.to_string()).collect();
        states.push(if pids.is_empty() {
            "busy".into()
        } else {
            let noun = if pids.len() == 1 { "process" } else { "processes" };
            format!("busy: {noun} {}", pids.join(", "))
        });
    }
    if gpu.is_mig {
        states.push("split (MIG)".into());
    }
    if !gpu.throttled.is_empty() {
        states.push(format!("throttled: {}", gpu.throttled.join(", ")));
    }
    for xid in &gpu.xids {
        states.push(format!("Xid {} ({})", xid.code, counted(xid.count, "time")));
    }
    if states.is_empty() { "ok".into() } else { states.join("; ") }
}

/// As `nvidia-smi topo -m` shows them.
fn links(inventory: &Inventory) -> Table {
    let indices: Vec<u32> = inventory.gpus.iter().map(|gpu| gpu.index).collect();
    let name = |index: &u32| format!("GPU{index}");
    let mut table = Table::default();
    table.line(std::iter::once(String::new()).chain(indices.iter().map(name)));
    for a in &indices {
        let cell = |b: &u32| {
            let (low, high) = (*a.min(b), *a.max(b));
            let found = inventory.links.iter().find(|link| (link.a, link.b) == (low, high));
            let link = if a == b { Some(LinkKind::Same) } else { found.map(|link| link.link) };
            link.map_or_else(|| "?".into(), |link| link.to_string())
        };
        table.line(std::iter::once(name(a)).chain(indices.iter().map(cell)));
    }
    table
}

fn host(host: &Host) -> String {
    let limit = |limit: Option<String>| limit.map_or_else(String::new, |limit| format!(" (limit {limit})"));
    let cpus =
        limit(host.limits.cpu_percent.map(|percent| format!("{}.{:02}", percent / 100, percent % 100)));
    let memory = limit(host.limits.memory.map(|bytes| format!("{} GB", gigabytes(bytes))));
    format!(
        "host: CPUs: {}{cpus}, {} of {} GB of memory available{memory}, load {}",
        or_dash(host.cpus),
        or_dash(host.memory_available.map(gigabytes)),
        or_dash(host.memory_total.map(gigabytes)),
        or_dash(host.load_percent.map(|percent| format!("{}.{:02}", percent / 100, percent % 100)))
    )
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

#[cfg(test)]
mod tests;
