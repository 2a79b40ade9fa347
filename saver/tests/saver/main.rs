//! Savers as an agent starts them: real processes, real sockets, real files.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod client;
mod disks;
mod ending;
mod hostile;
mod kills;
mod loading;
mod parent;
mod saving;
mod support;
mod transfers;
