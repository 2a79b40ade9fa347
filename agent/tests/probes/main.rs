//! Probes as an agent starts them: real processes, real sockets on loopback.

mod local;
mod peer;
mod process;
mod ring;
mod support;
