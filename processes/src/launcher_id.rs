//! `DLROVER_LAUNCHER_ID`: the id that every process of a run has in its environment, and that shows whether its
//! launcher is still alive.

use std::{fmt, fs, os::unix::fs::MetadataExt as _};

use uuid::Uuid;

use crate::tree;

/// The variable with the id.
pub const VARIABLE: &str = "DLROVER_LAUNCHER_ID";

/// The id of one launcher process: `<uuid>:<pid>:<start>:<boot id>:<pid namespace>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherId {
    /// Unique among all launchers.
    pub uuid: Uuid,
    /// Its process id in its namespace.
    pub pid: i32,
    /// Its start time, in clock ticks since boot.
    pub started: u64,
    /// The boot of the machine: process ids are not comparable across boots.
    pub boot: String,
    /// Inode of its pid namespace: process ids are not comparable across namespaces.
    pub namespace: u64,
}

impl LauncherId {
    /// This process's id.
    #[must_use]
    pub fn of_this_process() -> Self {
        let pid = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        let started = tree::process(pid).map_or(0, |process| process.started);
        Self { uuid: Uuid::new_v4(), pid, started, boot: boot_id(), namespace: pid_namespace() }
    }

    /// Parses an id. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let id = Self {
            uuid: Uuid::parse_str(parts.next()?).ok()?,
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
            boot: parts.next()?.to_owned(),
            namespace: parts.next()?.parse().ok()?,
        };
        (parts.next().is_none() && id.pid > 0).then_some(id)
    }

    /// Whether the launcher is certainly dead: same boot, same pid namespace, and no process with its pid and start
    /// time.
    #[must_use]
    pub fn is_provably_dead(&self) -> bool {
        let known = !self.boot.is_empty() && self.namespace != 0 && self.started != 0;
        known
            && self.boot == boot_id()
            && self.namespace == pid_namespace()
            && tree::process(self.pid).is_none_or(|now| now.started != self.started || !now.is_alive())
    }
}

impl fmt::Display for LauncherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uuid, pid, started, boot, namespace } = self;
        write!(f, "{uuid}:{pid}:{started}:{boot}:{namespace}")
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_parsed_as_written_and_this_process_is_alive() {
        let id = LauncherId::of_this_process();
        assert_eq!(LauncherId::parse(&id.to_string()), Some(id.clone()));
        assert!(!id.is_provably_dead());
    }

    #[test]
    fn a_reused_process_id_is_another_launcher() {
        let id = LauncherId::of_this_process();
        let predecessor = LauncherId { started: id.started - 1, ..id };
        assert!(predecessor.is_provably_dead());
    }

    #[test]
    fn another_boot_or_namespace_proves_nothing() {
        let id = LauncherId::of_this_process();
        let dead = LauncherId { started: id.started - 1, ..id };
        assert!(!LauncherId { boot: "other".into(), ..dead.clone() }.is_provably_dead());
        assert!(!LauncherId { namespace: dead.namespace + 1, ..dead.clone() }.is_provably_dead());
        assert!(!LauncherId { boot: String::new(), ..dead }.is_provably_dead());
    }

    proptest::proptest! {
        #[test]
        fn foreign_text_is_refused_and_never_panics(text in ".{0,80}") {
            if let Some(id) = LauncherId::parse(&text) {
                proptest::prop_assert!(id.pid > 0);
            }
        }
    }
}
