//! Holds back native stacks until the Python stacks of all ranks are read.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

pub(super) struct Gate {
    left: Mutex<usize>,
    opened: Condvar,
}

impl Gate {
    /// Opens when so many have passed.
    pub(super) fn new(left: usize) -> Self {
        Self { left: Mutex::new(left), opened: Condvar::new() }
    }

    /// One more has passed.
    pub(super) fn pass(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.opened.notify_all();
        }
    }

    /// Waits until it is open, or for this time: one rank that cannot be read does not cost the others theirs.
    pub(super) fn wait(&self, timeout: Duration) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let _either_way = self.opened.wait_timeout_while(left, timeout, |left| *left > 0);
    }
}
