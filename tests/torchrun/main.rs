//! What torchrun 2.15 does on one node, as cases that a launcher passes or fails.
//!
//! The launcher is ours, or the one named by `LAUNCHER`: `LAUNCHER=torchrun cargo test --test torchrun` judges
//! the reference, so a case that torchrun fails is wrong. Where ours differs on purpose, `differs.rs`
//! has the reason, and the run against torchrun reports the difference.
//!
//! Workers are `trainers/probe.py`; a case has their steps and reads what they saw.

mod bad_input;
mod differs;
mod environment;
mod failures;
mod flags;
mod logs;
mod signals;
mod store;
mod surroundings;
mod training;

use support::launch::Launch;
use support::launcher;

/// A run of the probe without options.
fn launch() -> Launch {
    Launch::new(launcher!())
}
