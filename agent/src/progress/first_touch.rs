//! The moment at which a worker first touches one of its files. Until then there is nothing to sample.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::{Interest, unix::AsyncFd};

/// Waits for the first worker that opens, writes or touches a file of its own.
#[derive(Debug)]
pub struct FirstTouch(AsyncFd<OwnedFd>);

impl FirstTouch {
    /// Watches the files. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the kernel has no inotify, or all that this user may have (`/proc/sys/fs/inotify`) are in use.
    pub(super) fn new<'a>(files: impl Iterator<Item = &'a File>) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        for file in files {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            // Workers reach a file by its name in /proc, so that each of them has to open it first. The other two are
            // for a worker that has it from another one.
            let events = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB;
            inotify.add_watch(path.as_str(), events)?;
        }
        // SAFETY: it owns its descriptor, which is neither replaced nor closed meanwhile.
        let watched = unsafe { AsyncFd::register_with_interest(OwnedFd::from(inotify), Interest::READABLE) }?;
        Ok(Self(watched))
    }

    /// Waits until a file is touched. Cancel-safe. The event stays unread: once is enough.
    pub async fn wait(&self) {
        // An error of the runtime ends the wait, too: too early is harmless.
        let _ready = self.0.readable().await;
    }
}
