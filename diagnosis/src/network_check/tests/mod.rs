//! The check as a whole. The invariants have their numbers from the study that this design comes from.

mod clusters;
mod deadlines;
mod elements;
mod events;
mod kinds;
mod messages;
mod mix;
mod paths;
mod proofs;
mod recompute;
mod rounds;
mod stragglers;
mod survey;
mod table;
mod times;
mod verdicts;
