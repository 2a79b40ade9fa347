//! Writes that have a time limit: a file may be on a network file system that hangs, or be a FIFO that is not read.

use std::{io, sync::mpsc, thread, time::Duration};

/// How long a write may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Writes on a thread, which is left behind where it takes longer than 5 s.
///
/// # Errors
/// Those of the write; `TimedOut`.
pub(crate) fn in_time(write: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, written) = mpsc::channel();
    let writer = move || {
        let _late = done.send(write());
    };
    thread::Builder::new().name("write".into()).stack_size(256 << 10).spawn(writer)?;
    written.recv_timeout(LIMIT).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
