//! The end of a transfer from outside, also while it waits for the other node.

use std::{
    io,
    net::{Shutdown, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Shared by the thread of a transfer and the loop that may end it.
#[derive(Debug, Default)]
pub(super) struct Stop {
    is_set: AtomicBool,
    /// Closed when it is set: a thread that waits for it goes on at once.
    socket: Mutex<Option<TcpStream>>,
}

impl Stop {
    /// Ends the transfer.
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        // One that is closed already ends nothing more.
        let _closed = socket.map(|socket| socket.shutdown(Shutdown::Both));
    }

    /// The transfer goes by this socket.
    ///
    /// # Errors
    /// As [`Stop::check`], and when the process has no room for a descriptor.
    pub(super) fn watch(&self, socket: &TcpStream) -> io::Result<()> {
        let socket = socket.try_clone()?;
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        // After the socket is stored: when it was set before that, nothing has closed the socket.
        self.check()
    }

    /// # Errors
    /// [`io::ErrorKind::Interrupted`] when the transfer is to end.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_set.load(Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it is no longer needed"));
        }
        Ok(())
    }

    /// What a socket said, unless it failed because the transfer is to end.
    ///
    /// # Errors
    /// That of the socket, or of [`Stop::check`].
    pub(super) fn or_stopped<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.or_else(|error| self.check().and(Err(error)))
    }
}
