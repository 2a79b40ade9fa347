//! The cases of the `check` bench.

pub mod decision;
pub mod job;
pub mod silent;
