//! Which node, link, switch or accelerator is at fault: the decisions of every check. Pure, like `rules`: no IO, no
//! clock, no environment and no randomness. Its `clippy.toml` enforces it.
//!
//! | question | module |
//! |---|---|
//! | which node, link or switch is at fault | [`network_check`] |
//! | which channel of a switchbox is bad | [`switchbox`] |
//! | which accelerators a node has, and whether they can be used | [`gpus`] |
//! | which accelerators the workers get | [`gpu_topology`] |
//! | why a node is excluded | [`exclusion`] |

pub mod counted;
pub mod exclusion;
pub mod gpu_topology;
pub mod gpus;
pub mod moment;
pub mod network_check;
pub mod rng;
pub mod switchbox;

pub use moment::Moment;
