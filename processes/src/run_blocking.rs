//! Blocking work on a thread of its own, awaited by an event loop.

use std::{io, thread};

use tokio::sync::oneshot;

/// Enough for files, directories, /proc and name lookups.
const STACK_BYTES: usize = 512 << 10;

/// Runs `work` on a new thread and returns its result. tokio's `spawn_blocking` panics where the system has no room
/// for a thread.
///
/// # Errors
/// When there is no room for a thread, or the work panicked.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    thread::Builder::new().name("blocking".into()).stack_size(STACK_BYTES).spawn(move || {
        // The caller may have stopped waiting.
        let _gone = done.send(work());
    })?;
    result.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_the_work_is_an_error() {
        assert_eq!(run_blocking(|| 7).await.unwrap(), 7);
        assert!(run_blocking(|| -> u32 { panic!("on purpose") }).await.is_err());
    }
}
