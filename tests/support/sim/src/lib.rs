//! One job master and its nodes in memory: the state machines of `rules` with a virtual clock, a network that loses,
//! delays and repeats messages, and parts that crash and come back. All of it follows from one seed.
//!
//! [`Plan`] is a schedule, [`Simulation`] runs it and checks the invariants of `checks` after every step. The shells
//! are modelled as they behave: effects of the master wait for its journal (`master`), messages of a node are sent
//! one at a time and dropped with their stream (`network`), workers end at any time (`node`).

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
mod savers;
mod simulation;
pub mod suite;
mod trainers;

pub use self::{
    plan::{End, Fault, Plan, Rates, Saves, Slot},
    simulation::{Report, Simulation},
};
