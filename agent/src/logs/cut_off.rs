//! The order to cut streams off: one flag for threads in `poll` and on condition variables.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Never reset.
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

    /// Wakes threads that poll [`Self::fd`]. Threads that wait on a condition variable must be woken with
    /// [`super::console::Source::wake`] too.
    pub(crate) fn give(&self) {
        self.given.store(true, Ordering::SeqCst);
        // It can fail only when the counter is full, and then it is readable already.
        let _ = self.event.write(1);
    }

    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::SeqCst)
    }

    /// Readable once the order was given.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
