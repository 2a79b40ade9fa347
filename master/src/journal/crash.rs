//! Points at which a test kills the master, chosen by `DLROVER_MASTER_CRASH_AT`. Only with debug assertions.

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

    /// The point, and how often it is still to be passed.
    static CHOSEN: OnceLock<(String, AtomicU32)> = OnceLock::new();

    /// Chooses `point[:nth]` for this process, once; `nth` is 1 by default. An invalid number chooses nothing.
    pub fn crash_at(text: &str) {
        let (point, nth) = text.split_once(':').unwrap_or((text, "1"));
        if let Ok(nth) = nth.parse() {
            let _already = CHOSEN.set((point.to_owned(), AtomicU32::new(nth)));
        }
    }

    /// Returns whether this is the chosen point.
    pub(crate) fn is_near(point: &str) -> bool {
        CHOSEN.get().is_some_and(|(chosen, _)| chosen == point)
    }

    /// Kills this process with SIGKILL when it passes the chosen point for the chosen time.
    pub(crate) fn point(point: &str) {
        let Some((_, left)) = CHOSEN.get().filter(|(chosen, _)| chosen == point) else { return };
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let _dead = kill(Pid::this(), Signal::SIGKILL);
        }
    }
}

#[cfg(debug_assertions)]
pub use named::crash_at;
#[cfg(debug_assertions)]
pub(crate) use named::{is_near, point};

/// Nothing in a release build.
#[cfg(not(debug_assertions))]
pub(crate) const fn is_near(_point: &str) -> bool {
    false
}

/// Nothing in a release build.
#[cfg(not(debug_assertions))]
pub(crate) const fn point(_point: &str) {}
