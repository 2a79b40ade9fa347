//! Progress: counted by the threads that move bytes, read by the thread that reports it.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use diagnosis::network_check::Probed;

/// Received bytes, and when. All times are nanoseconds since `origin`.
#[derive(Debug)]
pub(super) struct Progress {
    origin: Instant,
    began: AtomicU64,
    last: AtomicU64,
    bytes: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// No byte of `total` was received. Until [`begin`](Self::begin), time counts from here.
    pub(super) fn new(total: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            origin: Instant::now(),
            began: zero(),
            last: zero(),
            bytes: zero(),
            total: AtomicU64::new(total),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The first byte is about to be moved.
    pub(super) fn begin(&self) {
        self.began.store(self.now(), Relaxed);
    }

    /// Counts bytes that were received and were right.
    pub(super) fn received(&self, bytes: u64) {
        self.last.store(self.now(), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Sets the count, where another process counts.
    pub(super) fn set(&self, bytes: u64, total: u64) {
        self.total.store(total, Relaxed);
        if self.bytes.swap(bytes, Relaxed) != bytes {
            self.last.store(self.now(), Relaxed);
        }
    }

    /// [`Probed::Unfinished`] as of now.
    pub(super) fn unfinished(&self) -> Probed {
        let now = self.now();
        let began = self.began.load(Relaxed);
        let bytes = self.bytes.load(Relaxed);
        let since = |at: u64| Duration::from_nanos(now.saturating_sub(at));
        let elapsed = since(began);
        let idle = if bytes == 0 { elapsed } else { since(self.last.load(Relaxed)).min(elapsed) };
        Probed::Unfinished { bytes, total: self.total.load(Relaxed), elapsed, idle }
    }
}
