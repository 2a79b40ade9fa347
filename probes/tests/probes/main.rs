//! Probes as an agent starts them: real processes, real sockets on loopback.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod command;
#[path = "../../../tests/support/fake_library.rs"]
mod fake_library;
mod gpus;
mod local;
mod peer;
mod process;
mod ring;
mod stacks;
mod support;
mod switchbox;
