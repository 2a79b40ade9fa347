//! Runs and supervises a check command; its contract is in `wire::command`.

pub(crate) mod answer;
mod output;
pub(super) mod supervisor;
