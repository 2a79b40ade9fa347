//! The cases of the `launch` bench. Each measures all sides in turn, so that a noisy machine disturbs them
//! alike, and prints its rows with their goals.

mod idle;
mod memory;
mod restart;
mod start;
mod tee;

use crate::{
    Outcome,
    figures::Figures,
    launcher::{Bench, Side},
};

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub rounds: usize,
    /// Seconds of the idle measurement.
    pub idle_secs: u64,
    /// What each worker prints, in MB.
    pub print_mb: usize,
}

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    Start,
    Restart,
    Memory,
    Idle,
    Tee,
    Exit,
}

/// Letter, name and case.
pub const CASES: [(&str, &str, Case); 6] = [
    ("a", "start", Case::Start),
    ("b", "restart", Case::Restart),
    ("c", "memory", Case::Memory),
    ("d", "idle", Case::Idle),
    ("e", "tee", Case::Tee),
    ("f", "exit", Case::Exit),
];

/// Measures and prints.
///
/// # Errors
/// A launcher fails.
pub fn measure(cases: &[Case], bench: &mut Bench, amount: Amount) -> Outcome<()> {
    let wants = |case| cases.contains(&case);
    if wants(Case::Start) || wants(Case::Exit) {
        start::measure(bench, amount.rounds, wants(Case::Start), wants(Case::Exit))?;
    }
    if wants(Case::Restart) {
        restart::measure(bench, amount.rounds)?;
    }
    if wants(Case::Memory) {
        memory::measure(bench)?;
    }
    if wants(Case::Idle) {
        idle::measure(bench, amount.idle_secs)?;
    }
    if wants(Case::Tee) {
        tee::measure(bench, amount.rounds, amount.print_mb)?;
    }
    Ok(())
}

/// The figures of every side.
#[derive(Debug, Default, Clone)]
struct Sides {
    ours: Figures,
    torchrun: Figures,
    /// Without a launcher.
    bare: Figures,
}

impl Sides {
    fn of(&mut self, side: Side) -> &mut Figures {
        match side {
            Side::Ours => &mut self.ours,
            Side::Torchrun => &mut self.torchrun,
        }
    }

    fn print(&self, unit: &str) -> Outcome<()> {
        for (name, figures) in [("ours", &self.ours), ("torchrun", &self.torchrun), ("bare", &self.bare)] {
            if !figures.is_empty() {
                crate::figures::line(name, figures, unit)?;
            }
        }
        Ok(())
    }
}

fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}

/// Returns numbers between 0 and 1 that fill the range evenly, so that nothing is in step with a launcher that polls its
/// workers ten times a second.
fn phase(turn: usize) -> f64 {
    (turn as f64 * 0.618_033_988_75).fract()
}
