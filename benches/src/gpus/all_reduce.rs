//! What the choice is worth: an all-reduce of the chosen set beside that of the median set and of the first free ones.

use std::io::Write as _;

use diagnosis::gpu_topology::{GpuSet, Matrix, Objective, choose, ranking};

use super::{A, C, ring::all_reduce};
use crate::{
    Outcome,
    figures::{Figures, heading, progress},
};

const WANTED: usize = 4;

/// Values of 4 bytes that are reduced: the slow rings take half a second.
const COUNT: usize = 1 << 19;

/// What the fastest hop of a box is slowed down to, in bytes a second: sockets of 2 cores carry a ring of these.
const FASTEST: f64 = 20e6;

/// Prints the times on boxes A and C with each one of the devices busy in turn.
///
/// # Errors
/// Standard output cannot be written, or a sum is wrong.
pub fn measure(rounds: usize) -> Outcome<()> {
    let on_mesh = on("A, cube mesh", &Matrix::parse(A)?, rounds)?;
    let verdict = if on_mesh >= 1.6 { "holds" } else { "does not hold" };
    writeln!(
        std::io::stdout(),
        "  goal: chosen at least 1.6 times faster than the median set: {on_mesh:.2}, {verdict}"
    )?;
    let switched = on("C, switched", &Matrix::parse(C)?, rounds)?;
    let verdict = if (0.95..=1.05).contains(&switched) { "holds" } else { "does not hold" };
    writeln!(
        std::io::stdout(),
        "  goal: no gain where all are alike, 0.95 to 1.05: {switched:.2}, {verdict}"
    )?;
    Ok(())
}

fn on(name: &str, matrix: &Matrix, rounds: usize) -> Outcome<f64> {
    heading(&format!(
        "{name}, one of 8 busy: ring all-reduce of {} MiB among {WANTED} (one ring, every hop paced by the matrix; least of {rounds})",
        (COUNT * 4) >> 20
    ))?;
    let pairs = (0..8).flat_map(|one| (0..8).map(move |other| (one, other)));
    let fastest = pairs.map(|(one, other)| matrix.mbps(one, other)).max().unwrap_or(1);
    let scale = FASTEST / f64::from(fastest);
    let (mut chosen, mut median, mut first) = (Figures::default(), Figures::default(), Figures::default());
    for busy in 0..8 {
        let free = GpuSet::first(8).without([busy].into_iter().collect());
        let choice = choose(matrix, free, WANTED, Objective::Topology)?;
        let ranked = ranking(matrix, free, WANTED);
        let middle = ranked.get(ranked.len() / 2).map_or(choice.set, |middle| middle.set);
        progress(format_args!("gpu {busy} busy"))?;
        let mut least = [f64::INFINITY; 3];
        for _ in 0..rounds {
            // One after the other, so that a neighbour's load meets all three.
            for (least, set) in least.iter_mut().zip([choice.set, middle, choice.first]) {
                *least = least.min(time(matrix, set, scale)?);
            }
        }
        for (least, figures) in least.into_iter().zip([&mut chosen, &mut median, &mut first]) {
            figures.add(least);
        }
    }
    progress(format_args!(""))?;
    let mean = |figures: &Figures| {
        let count = figures.len();
        (0..count).map(|place| figures.at(place as f64 / (count - 1).max(1) as f64)).sum::<f64>()
            / count as f64
    };
    for (name, figures) in [("chosen", &chosen), ("median set", &median), ("first free", &first)] {
        let mean = mean(figures);
        writeln!(
            std::io::stdout(),
            "  {name:12} mean {mean:7.1} ms  ({:.1} .. {:.1} of {})",
            figures.at(0.0),
            figures.at(1.0),
            figures.len()
        )?;
    }
    writeln!(std::io::stdout(), "  over the first free ones: {:.2}", mean(&first) / mean(&chosen))?;
    Ok(mean(&median) / mean(&chosen))
}

/// Milliseconds of one all-reduce in the set's best order.
fn time(matrix: &Matrix, set: GpuSet, scale: f64) -> Outcome<f64> {
    let ring = choose(matrix, set, set.len(), Objective::Topology)?.ring;
    let hops = ring.iter().zip(ring.iter().cycle().skip(1));
    let rates: Vec<f64> = hops.map(|(one, next)| f64::from(matrix.mbps(*one, *next)) * scale).collect();
    Ok(all_reduce(&rates, COUNT)?.as_secs_f64() * 1e3)
}
