//! Support for whole-program tests: start a launcher, inspect what it and its workers did, leave nothing behind.
//!
//! Start with [`launch::Launch`]; jobs of several nodes with [`cluster::Cluster`]. Every process of a run has a marker
//! in its environment, so a run can be swept, and the kernel can be asked whether a process is left ([`marked`]).

pub mod census;
pub mod cluster;
pub mod fake_library;
pub mod launch;
pub mod marked;
pub mod seen;
pub mod unknown_peer;
pub mod web;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine; only a hang gets this far.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The repository's `tests` directory.
#[must_use]
pub fn tests_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A worker of `tests/trainers`.
#[must_use]
pub fn trainer(name: &str) -> PathBuf {
    tests_dir().join("trainers").join(name)
}

/// Polls until there is an answer.
///
/// # Panics
/// It has not come after [`TIMEOUT`].
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < TIMEOUT, "{what}: waited for {TIMEOUT:?} in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a port that was free just now.
///
/// # Panics
/// The host has none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
