//! `dlrover-diag stacks`: merges the files of many ranks.

use std::{fs, path::Path, process::Command};

use stacks::RankDump;

use super::{
    ODD, Setup,
    dump::{command, waiting_job},
    ran::Ran,
    whole::whole,
};
use crate::{
    Outcome,
    figures::{Figures, heading, line, progress},
};

/// Nodes among which the same ranks are divided.
const NODES: usize = 8;

/// How many times the ranks of one job are copied, under other numbers.
const COPIES: usize = 16;

/// Measures merges.
pub(super) fn measure(setup: &mut Setup) -> Outcome<()> {
    let (ranks, rounds) = (setup.amount.ranks, setup.amount.rounds);
    progress(format_args!("merge: {ranks} ranks are started"))?;
    let (job, _) = waiting_job(setup)?;
    let one_node = setup.folder("one-node")?;
    Ran::of(setup, command(setup, &job, &one_node, &[]))?;
    job.stop(setup)?;
    let dumps = whole(&one_node, ranks, true)?;
    let nodes = setup.folder("nodes")?;
    write(&nodes, &divided(&dumps))?;
    let many = setup.folder("many")?;
    let copied = copied(&dumps);
    write(&many, &copied)?;

    let folders = [
        (format!("{ranks} ranks on one node"), one_node),
        (format!("{ranks} ranks on {NODES} nodes"), nodes),
        (format!("{} ranks, copies of the same", copied.len()), many),
    ];
    let mut figures = vec![(Figures::default(), Figures::default()); folders.len()];
    for round in 0..rounds {
        progress(format_args!("merge, round {} of {rounds}", round + 1))?;
        for ((_, folder), (wall, cpu)) in folders.iter().zip(&mut figures) {
            let mut merge = Command::new(&setup.diag);
            merge.arg("stacks").arg("--path").arg(folder);
            let ran = Ran::of(setup, merge)?;
            let headline = ran.stdout.lines().next().unwrap_or_default();
            if !headline.contains(ODD) {
                return Err(format!("other ranks are named: {headline}").into());
            }
            wall.add(ran.wall_ms());
            cpu.add(ran.cpu_ms);
        }
    }
    progress(format_args!(""))?;
    for ((name, folder), (wall, cpu)) in folders.iter().zip(&figures) {
        let (files, bytes) = size(folder)?;
        let average = bytes as f64 / 1e3 / files as f64;
        heading(&format!("dlrover-diag stacks of {name}, {average:.1} kB each: exec -> exit"))?;
        line("merge", wall, "ms")?;
        line("of CPU", cpu, "ms")?;
    }
    Ok(())
}

/// The same ranks as if they were on several nodes.
fn divided(dumps: &[RankDump]) -> Vec<RankDump> {
    let of_node = dumps.len().div_ceil(NODES).max(1);
    let host = |index: usize| format!("node-{}", index / of_node);
    dumps.iter().enumerate().map(|(index, dump)| RankDump { host: host(index), ..dump.clone() }).collect()
}

/// The ranks of a larger job that waits in the same places.
fn copied(dumps: &[RankDump]) -> Vec<RankDump> {
    let all = (0..COPIES).flat_map(|_| dumps);
    let world_size = u32::try_from(dumps.len() * COPIES).unwrap_or(u32::MAX);
    all.zip(0..).map(|(dump, rank)| RankDump { rank, world_size, ..dump.clone() }).collect()
}

fn write(folder: &Path, dumps: &[RankDump]) -> Outcome<()> {
    for dump in dumps {
        fs::write(folder.join(dump.name().to_string()), dump.to_json())?;
    }
    Ok(())
}

/// How many files of ranks are in a directory, and their bytes.
fn size(folder: &Path) -> Outcome<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "stacktrace") {
            files += 1;
            bytes += entry.metadata()?.len();
        }
    }
    Ok((files, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_divided_among_nodes_and_copied() {
        let dumps: Vec<RankDump> = (0..16).map(|rank| RankDump::new(rank, 16)).collect();
        let divided = divided(&dumps);
        assert_eq!(
            (&*divided[0].host, &*divided[1].host, &*divided[15].host),
            ("node-0", "node-0", "node-7")
        );
        let copied = copied(&dumps);
        assert_eq!(copied.len(), 16 * COPIES);
        assert!((0..).zip(&copied).all(|(rank, dump)| (dump.rank, dump.world_size) == (rank, 256)));
    }
}
