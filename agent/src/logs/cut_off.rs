//! The order to stop waiting: one flag that a thread in `poll` and a thread on a condition variable both see.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Given once, never taken back.
#[derive(Debug)]
pub(crate) struct CutOff {
    given: AtomicBool,
    event: EventFd,
}

impl CutOff {
    pub(crate) fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { given: AtomicBool::new(false), event })
    }

    /// Wakes whoever polls [`Self::fd`]. Threads that wait on a condition variable must be woken as well,
    /// with [`super::console::Source::wake`].
    pub(crate) fn give(&self) {
        self.given.store(true, Ordering::SeqCst);
        // It can fail only when the counter is full, and then it is readable already.
        let _ = self.event.write(1);
    }

    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::SeqCst)
    }

    /// Readable from the order on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
