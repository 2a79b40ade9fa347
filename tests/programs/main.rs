//! What all programs have in common: each can run as a probe, and refuses options that cannot work at the start.
//! [`rooms`] asserts which crate may depend on which.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod probe_hook;
mod refused_at_start;
mod rooms;
mod shadowed;
mod versions;
