//! One job master and its nodes in memory: the machines of `rules` wired together, with a virtual clock, a network
//! that loses, delays and repeats, and parts that crash and come back. All of it follows from one seed.
//!
//! [`Plan`] says what a schedule is, [`Simulation`] runs it and checks the invariants of `checks` after every step.
//! The shells are modelled as they behave: what the master does waits for its journal (`master`), a node's words
//! are said one at a time and dropped with their stream (`network`), workers end when they like (`node`).

mod checks;
mod clock;
mod faults;
pub mod journal;
mod master;
mod network;
mod node;
pub mod plan;
pub mod prng;
mod probes;
mod questions;
mod simulation;
pub mod suite;

pub use self::{
    plan::{End, Fault, Plan, Rates, Slot},
    simulation::{Report, Simulation},
};
