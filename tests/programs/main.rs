//! What all programs have in common: each is a probe when it is called so, and refuses at the start what cannot be done.
//! [`rooms`] holds which crate may import which.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

mod probe_hook;
mod refused_at_start;
mod rooms;
