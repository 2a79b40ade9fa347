//! Writes to disk wait while a worker saves.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

/// Shared by the loop, which knows of saves, and the threads that write.
#[derive(Debug, Default)]
pub(super) struct Pause {
    is_on: Mutex<bool>,
    changed: Condvar,
}

impl Pause {
    pub(super) fn set(&self, is_on: bool) {
        let mut now = self.is_on.lock().unwrap_or_else(PoisonError::into_inner);
        if *now != is_on {
            *now = is_on;
            self.changed.notify_all();
        }
    }

    /// Those that wait look again whether they are still to.
    pub(super) fn wake(&self) {
        // With the lock: a thread that has just looked is waiting by then.
        let _now = self.is_on.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Returns when there is no pause, `is_over` says so, or after `limit`.
    pub(super) fn wait(&self, limit: Duration, is_over: impl Fn() -> bool) {
        let now = self.is_on.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(now, limit, |is_on| *is_on && !is_over());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        thread,
    };

    use super::*;

    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wait_ends_with_the_pause_with_what_waits_and_at_its_limit() {
        let pause = Arc::new(Pause::default());
        let is_over = Arc::new(AtomicBool::new(false));
        // A thread looks with the lock, so one that has looked waits by the time that the lock is free.
        let (looked, looks) = mpsc::channel();
        let waits = |limit| {
            let (pause, is_over, looked) = (Arc::clone(&pause), Arc::clone(&is_over), looked.clone());
            let is_over = move || {
                looked.send(()).unwrap();
                is_over.load(Ordering::Relaxed)
            };
            thread::spawn(move || pause.wait(limit, is_over))
        };
        waits(NEVER).join().unwrap();
        pause.set(true);
        waits(Duration::from_millis(1)).join().unwrap();
        while looks.try_recv().is_ok() {}
        let waiting = waits(NEVER);
        looks.recv().unwrap();
        pause.set(false);
        waiting.join().unwrap();
        pause.set(true);
        while looks.try_recv().is_ok() {}
        let waiting = waits(NEVER);
        looks.recv().unwrap();
        is_over.store(true, Ordering::Relaxed);
        pause.wake();
        waiting.join().unwrap();
    }
}
