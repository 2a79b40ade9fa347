//! The launcher: argv, environment, words for people, exit codes.
//!
//! Read first: [`front_door`], which calls the others in order: `argv` (words to options, as argparse),
//! `cli` (options over `PET_*`), `resolve` (what was asked for to what the agent is told). What a flag is
//! called and what its help says: `options`.

mod accelerators;
mod argv;
mod box_pairs;
mod cli;
mod completion;
mod environment;
pub mod front_door;
pub mod help;
pub mod host;
mod invalid;
mod nproc;
mod numa;
mod options;
mod python_number;
mod redirects;
pub mod resolve;
#[cfg(test)]
mod testing;
mod usage;

pub use box_pairs::BoxPair;
