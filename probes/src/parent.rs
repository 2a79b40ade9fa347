//! The caller's side: starts a probe, reads its output, ends it.

pub(crate) mod command;
pub(crate) mod gpus;
pub(crate) mod handle;
pub(crate) mod local;
mod process;
pub(crate) mod ring;
pub(crate) mod stacks;
pub(crate) mod switchbox;
