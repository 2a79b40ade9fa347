//! Benches: plain binaries that measure ours and the peer in one run and print a table. Nothing is asserted.
//!
//! * `src/bin/check.rs`: what a network check costs; its cases are in [`check`].
//! * `src/bin/gpus.rs`: the choice of accelerators; its cases are in [`gpus`].
//! * `src/bin/launch.rs`: the launcher beside torchrun; its cases are in [`launch`].
//! * `src/bin/rendezvous.rs`: thousands of agents and one job master; its cases are in [`rendezvous`].
//! * `src/bin/store.rs`: the store beside torch's own.

pub mod cases;
pub mod check;
pub mod figures;
pub mod gpus;
pub mod launch;
pub mod launcher;
pub mod machine;
pub mod processes;
pub mod rendezvous;
pub mod stamps;

/// Of a bench, which is read by people.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
