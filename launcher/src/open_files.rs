//! How many files this process may open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// As many as the system lets it. The master takes a connection from each node and the store one or more from each
/// worker of the job, and the usual soft limit is 1024. Workers keep the limit they would have had: they are started
/// by the guard.
pub fn raise() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With the old limit a job of some hundred ranks still runs.
        let _as_before = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
