//! Points at which a test has the master killed. The launcher reads which from `DLROVER_MASTER_CRASH_AT`.
//! A build without debug assertions has none of it.

#[cfg(debug_assertions)]
mod named {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    /// Point and how often it is still to be passed.
    static CHOSEN: OnceLock<(String, AtomicU32)> = OnceLock::new();

    /// Chooses `point[:nth]` for this process, once; the first time is the default. A number that is none chooses
    /// nothing, and the test sees a master that lives.
    pub fn crash_at(words: &str) {
        let (point, nth) = words.split_once(':').unwrap_or((words, "1"));
        if let Ok(nth) = nth.parse() {
            let _already = CHOSEN.set((point.to_owned(), AtomicU32::new(nth)));
        }
    }

    /// Whether this is the point at which this process dies, soon or now.
    pub(crate) fn is_near(point: &str) -> bool {
        CHOSEN.get().is_some_and(|(chosen, _)| chosen == point)
    }

    /// Dies here, as by SIGKILL, when it is the chosen point for the chosen time.
    pub(crate) fn point(point: &str) {
        let Some((_, left)) = CHOSEN.get().filter(|(chosen, _)| chosen == point) else { return };
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // It cannot fail for the own process; and if it did, the test would see a master that lives.
            let _dead = kill(Pid::this(), Signal::SIGKILL);
        }
    }
}

#[cfg(debug_assertions)]
pub use named::crash_at;
#[cfg(debug_assertions)]
pub(crate) use named::{is_near, point};

/// No release dies on demand.
#[cfg(not(debug_assertions))]
pub(crate) const fn is_near(_point: &str) -> bool {
    false
}

/// No release dies on demand.
#[cfg(not(debug_assertions))]
pub(crate) const fn point(_point: &str) {}
