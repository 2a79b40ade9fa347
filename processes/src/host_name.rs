//! The name of this host.

use nix::unistd::gethostname;

/// The name of this host, as `socket.gethostname()` of Python has it; empty where it cannot be read.
#[must_use]
pub fn host_name() -> String {
    gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
