//! The job's token in this process's own environment: read once, and then taken out of it, so that neither the guard, which
//! is forked, nor workers, checks and tools, which inherit, have it.

use std::{env, ffi::OsString, ptr};

use nix::libc;

/// The variable that carries it.
pub(crate) const JOB_TOKEN: &str = "DLROVER_JOB_TOKEN";

/// Takes the token out of the environment, also where `/proc/<pid>/environ` shows it.
///
/// # Safety
/// This process has one thread, and keeps no pointer into the environment.
pub(crate) unsafe fn forget() {
    // SAFETY: one thread: the environment does not change meanwhile.
    let value = unsafe { libc::getenv(c"DLROVER_JOB_TOKEN".as_ptr()) };
    if !value.is_null() {
        // SAFETY: what `getenv` gives is a C string in memory of this process that may be written to: the block that the
        // kernel made, or a copy of libc's. Its terminator stays.
        unsafe { ptr::write_bytes(value, 0, libc::strlen(value)) };
    }
    // SAFETY: as above.
    unsafe { env::remove_var(JOB_TOKEN) };
}

/// What workers may inherit.
pub(crate) fn without(env: Vec<(OsString, OsString)>) -> Vec<(OsString, OsString)> {
    env.into_iter().filter(|(name, _)| name != JOB_TOKEN).collect()
}
