//! The version that every program of this project prints.

/// The release, the commit that it was built from if that is known, and the target: `0.2.0 (0123456789ab,
/// x86_64-unknown-linux-gnu)`. `build.rs` finds out the last two.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("DLROVER_BUILD"), ")");
