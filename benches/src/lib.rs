//! Benches: binaries that measure this project and its peer in one run and print a table. Nothing is asserted.
//!
//! * `src/bin/check.rs`: what a network check costs; its cases are in [`check`].
//! * `src/bin/gpus.rs`: the choice of accelerators; its cases are in [`gpus`].
//! * `src/bin/launch.rs`: the launcher and torchrun; its cases are in [`launch`].
//! * `src/bin/rendezvous.rs`: thousands of agents and one job master; its cases are in [`rendezvous`].
//! * `src/bin/stacks.rs`: the stacks of a job that hangs; its cases are in [`stack_dumps`].
//! * `src/bin/store.rs`: the store and torch's own.

pub mod cases;
pub mod check;
pub mod end;
pub mod figures;
pub mod gpus;
pub mod launch;
pub mod launcher;
pub mod machine;
pub mod processes;
pub mod rendezvous;
pub mod stack_dumps;
pub mod stamps;
pub mod warm_starts;

/// The result of a bench; errors are only printed.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
