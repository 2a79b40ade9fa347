//! The CPU time of decisions by number of nodes: a check of a simulated cluster with a third of its nodes broken.

use std::{io::Write as _, time::Duration};

use diagnosis::network_check::{
    Policy,
    rehearsal::{Cluster, rehearse},
};
use nix::{
    sys::time::TimeValLike as _,
    time::{ClockId, clock_gettime},
};

use crate::{
    Outcome,
    figures::{goal, heading},
};

const SIZES: [u32; 5] = [64, 256, 1024, 4096, 16_384];

/// Prints a row for each size.
///
/// # Errors
/// Standard output cannot be written.
pub fn measure() -> Outcome<()> {
    heading(
        "CPU time of a whole check of N simulated nodes, N/3 of them broken (the cluster's own time included)",
    )?;
    let mut last = f64::NAN;
    for nodes in SIZES {
        let faulty = (0..nodes).filter(|node| node % 3 == 1).collect();
        let cluster = Cluster { faulty, seed: 7, ..Cluster::healthy(nodes, nodes.div_ceil(16)) };
        let began = cpu();
        let outcome = rehearse(&cluster, Policy::new(7));
        last = (cpu().saturating_sub(began)).as_secs_f64();
        let wrong = (0..).zip(&outcome.nodes).filter(|(node, it)| it.excluded != (*node % 3 == 1)).count();
        let rounds = outcome.rounds.len();
        writeln!(std::io::stdout(), "  {nodes:6}  {:9.1} ms  {rounds} rounds, {wrong} wrong", last * 1e3)?;
    }
    goal("2 s at 16,384", last, " s", 2.0)
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    now.map_or(Duration::ZERO, |now| Duration::from_nanos(u64::try_from(now.num_nanoseconds()).unwrap_or(0)))
}
