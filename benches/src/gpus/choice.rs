//! The CPU time of the choice: parsing the table and the search, for every number of accelerators.

use std::{hint::black_box, io::Write as _};

use diagnosis::gpu_topology::{GpuSet, LinkKind, Matrix, Objective, PciPath, choose};
use nix::{
    sys::time::TimeValLike as _,
    time::{ClockId, clock_gettime},
};

use super::{A, C, D, F};
use crate::{
    Outcome,
    figures::{Figures, goal, heading},
};

const SYS: LinkKind = LinkKind::Pci(PciPath::System);

fn matrix(size: usize, link: impl Fn(usize, usize) -> LinkKind) -> Outcome<Matrix> {
    let at = |one: usize, other: usize| match one == other {
        true => LinkKind::Same,
        false => link(one.min(other), one.max(other)),
    };
    let rows: Vec<Vec<LinkKind>> =
        (0..size).map(|one| (0..size).map(|other| at(one, other)).collect()).collect();
    Ok(Matrix::new(&rows, &[])?)
}

/// A pseudo-random number for each pair.
fn mixed(one: usize, other: usize, seed: usize) -> usize {
    let mut value = (one * 31 + other * 17 + seed * 7919 + 1) as u32;
    for _ in 0..3 {
        value ^= value << 13;
        value ^= value >> 17;
        value ^= value << 5;
    }
    value as usize
}

/// Machines that exist.
fn built() -> Outcome<Vec<(&'static str, Matrix)>> {
    let mesh = Matrix::parse(A)?;
    let two = |one: usize, other: usize| match one / 8 == other / 8 {
        true => mesh.link(one % 8, other % 8).unwrap_or(SYS),
        false => SYS,
    };
    Ok(vec![
        ("8, cube mesh (A)", mesh.clone()),
        ("8, switched (C)", Matrix::parse(C)?),
        ("8, PCIe (D)", Matrix::parse(D)?),
        ("8, two islands (F)", Matrix::parse(F)?),
        ("16, switched (DGX-2)", matrix(16, |_, _| LinkKind::NvLink(6))?),
        ("16, PCIe, four groups", {
            matrix(16, |one, other| match (one / 4 == other / 4, one / 8 == other / 8) {
                (true, _) => LinkKind::Pci(PciPath::OneBridge),
                (_, true) => LinkKind::Pci(PciPath::NumaNode),
                _ => SYS,
            })?
        }),
        ("16, two cube meshes", matrix(16, two)?),
        (
            "16, two islands",
            matrix(16, |one, other| if one / 8 == other / 8 { LinkKind::MetaXLink } else { SYS })?,
        ),
        ("16, all to all", matrix(16, |_, _| LinkKind::MetaXLink)?),
    ])
}

/// Artificial matrices, to find what is slow.
fn imagined() -> Outcome<Vec<(&'static str, Matrix)>> {
    let mut all = Vec::new();
    for seed in 0..40 {
        let random = |one, other| match mixed(one, other, seed) % 9 {
            count @ 1..=2 => LinkKind::NvLink(count as u32),
            3 => LinkKind::Pci(PciPath::OneBridge),
            _ => SYS,
        };
        all.push(("16, random links", matrix(16, random)?));
    }
    for seed in 0..40 {
        let dense = |one, other| match mixed(one, other, seed) % 6 {
            0 => SYS,
            _ => LinkKind::NvLink(1),
        };
        all.push(("16, random and dense", matrix(16, dense)?));
    }
    for seed in 0..10 {
        let rows: Vec<Vec<f64>> = (0..16_usize)
            .map(|one| {
                (0..16)
                    .map(|other| (mixed(one.min(other), one.max(other), seed) % 5000) as f64 / 100.0)
                    .collect()
            })
            .collect();
        all.push(("16, measured", Matrix::measured(&rows)?));
    }
    Ok(all)
}

/// Prints a row for each box, and the worst of all.
///
/// # Errors
/// Standard output cannot be written.
pub fn measure(rounds: usize) -> Outcome<()> {
    heading("CPU time of one choice (search and ring), over all numbers wanted")?;
    let mut parsing = Figures::default();
    for _ in 0..rounds * 20 {
        let began = cpu_ms();
        black_box(Matrix::parse(black_box(A))?);
        parsing.add(cpu_ms() - began);
    }
    row("reading a table of 8", &parsing, 0)?;
    let mut worst = 0.0_f64;
    for (name, matrix) in built()? {
        let (figures, cut) = timed(&matrix, rounds, Objective::Topology)?;
        worst = worst.max(figures.at(1.0));
        row(name, &figures, cut)?;
    }
    goal("5 ms on any existing machine", worst, " ms", 5.0)?;
    heading("The same on artificial matrices: the worst of each")?;
    let mut last = ("", Figures::default(), 0);
    for (name, matrix) in imagined()? {
        let (figures, cut) = timed(&matrix, 1, Objective::Topology)?;
        if name != last.0 && !last.1.is_empty() {
            row(last.0, &last.1, last.2)?;
            last = (name, Figures::default(), 0);
        }
        last.0 = name;
        last.1.add(figures.at(1.0));
        last.2 += cut;
    }
    row(last.0, &last.1, last.2)?;
    heading("With --gpu-select=pack")?;
    for (name, matrix) in built()?.into_iter().filter(|(name, _)| name.contains("mesh")) {
        let (figures, cut) = timed(&matrix, 1, Objective::Pack)?;
        row(name, &figures, cut)?;
    }
    Ok(())
}

/// Of this process, so that neighbours do not count.
fn cpu_ms() -> f64 {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(f64::NAN, |now| now.num_nanoseconds() as f64 / 1e6)
}

/// Milliseconds of each choice, and how many were cut short.
fn timed(matrix: &Matrix, rounds: usize, objective: Objective) -> Outcome<(Figures, usize)> {
    let (mut figures, mut cut) = (Figures::default(), 0);
    for _ in 0..rounds {
        for wanted in 1..=matrix.size() {
            let began = cpu_ms();
            let choice = choose(black_box(matrix), GpuSet::first(16), wanted, objective)?;
            figures.add(cpu_ms() - began);
            cut += usize::from(!choice.is_proven);
        }
    }
    Ok((figures, cut))
}

fn row(name: &str, figures: &Figures, cut: usize) -> Outcome<()> {
    let cut = if cut == 0 { String::new() } else { format!(", {cut} cut short") };
    writeln!(
        std::io::stdout(),
        "  {name:28} {:8.3} ms  (worst {:.3}; {} times{cut})",
        figures.median(),
        figures.at(1.0),
        figures.len()
    )?;
    Ok(())
}
