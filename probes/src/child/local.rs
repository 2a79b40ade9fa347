//! In the probe's process: whether processor, loopback and accelerators work, and how fast the node computes.

mod clock;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod factors;
mod loopback;

pub(super) mod check;

pub(super) use clock::cgroup_files;
