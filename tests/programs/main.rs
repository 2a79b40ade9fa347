//! What all programs have in common: each can run as a probe, and refuses options that cannot work at the start.
//! [`crate_dependencies`] asserts which crate may depend on which.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod crate_dependencies;
mod probe_hook;
mod refused_at_start;
mod shadowed;
mod versions;
