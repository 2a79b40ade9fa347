//! A program of the user's, watched over; its contract is in `wire::command`.

pub(crate) mod answer;
mod output;
pub(super) mod supervisor;
