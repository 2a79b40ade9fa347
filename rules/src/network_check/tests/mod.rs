//! The check as a whole. The invariants have their numbers from the study that this design comes from.

mod table;
mod words;
