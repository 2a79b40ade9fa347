//! Work that blocks, on a thread of its own beside the loop.

use std::{io, thread};

use tokio::sync::oneshot;

/// Enough for what is done here: files, folders, /proc.
const STACK_BYTES: usize = 512 << 10;

/// Does `work` aside. tokio's own `spawn_blocking` panics where the system has no room for a thread, and its
/// caller, who was to be told the end, with it.
///
/// # Errors
/// When there is no room for a thread, or the work panicked.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, end) = oneshot::channel();
    thread::Builder::new().name("aside".into()).stack_size(STACK_BYTES).spawn(move || {
        // Who asked may have stopped waiting.
        let _gone = done.send(work());
    })?;
    end.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_aside_is_an_error_here() {
        assert_eq!(run_blocking(|| 7).await.unwrap(), 7);
        assert!(run_blocking(|| -> u32 { panic!("on purpose") }).await.is_err());
    }
}
