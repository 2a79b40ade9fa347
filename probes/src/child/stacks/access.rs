//! Whether the memory of a process may be read, and what to change when it may not.

use std::{fs, os::unix::fs::MetadataExt as _};

use nix::errno::Errno;

use super::process::{line_of, text};

/// The number of `CAP_SYS_PTRACE`.
const SYS_PTRACE: u32 = 19;

/// What is to be done in every case.
const REMEDY: &str = "add CAP_SYS_PTRACE (in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])";

/// Reads a byte of a process's memory, as everything after it will.
///
/// # Errors
/// As process_vm_readv(2); `EPERM` and `EACCES` when it is not permitted.
pub(super) fn check(pid: i32) -> Result<(), Errno> {
    // An address that is no memory is refused only after the permission is checked.
    let maps = fs::File::open(format!("/proc/{pid}/maps"));
    maps.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
    match super::native::memory::read(pid, 0, &mut [0]) {
        Ok(_) | Err(Errno::EFAULT | Errno::EIO) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Why a process may not be read, in words, with the remedy.
pub(super) fn refusal(pid: i32, status: &str, error: &Errno) -> String {
    let name = match *error {
        Errno::EPERM => "EPERM",
        Errno::EACCES => "EACCES",
        Errno::ESRCH => return format!("process {pid} has ended"),
        Errno::ENOSYS => return "this kernel has no process_vm_readv (ENOSYS)".to_owned(),
        other => return format!("the memory of process {pid} cannot be read: {}", other.desc()),
    };
    let own = text("/proc/self/status").unwrap_or_default();
    let facts = Facts {
        user: effective_user(status),
        own_user: effective_user(&own),
        may_trace: may_trace(&own),
        yama: text("/proc/sys/kernel/yama/ptrace_scope").and_then(|text| text.trim().parse().ok()),
        owner: fs::metadata(format!("/proc/{pid}/stat")).ok().map(|meta| meta.uid()),
    };
    format!("permission denied ({name}): {}", facts.words(pid))
}

fn effective_user(status: &str) -> Option<u32> {
    line_of(status, "Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn may_trace(status: &str) -> bool {
    let effective = line_of(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    effective.is_some_and(|effective| effective >> SYS_PTRACE & 1 == 1)
}

/// What the permission depends on.
struct Facts {
    user: Option<u32>,
    own_user: Option<u32>,
    may_trace: bool,
    /// `kernel.yama.ptrace_scope`, where the kernel has Yama.
    yama: Option<u32>,
    /// The user to whom the files of the process in `/proc` belong: root when it is not dumpable.
    owner: Option<u32>,
}

impl Facts {
    fn words(&self, pid: i32) -> String {
        match (self.user, self.own_user) {
            // Neither the capability nor the user matters then.
            _ if self.yama == Some(3) => {
                "kernel.yama.ptrace_scope is 3: no program may read the memory of another process until the next \
                 boot; boot with a lower value"
                    .to_owned()
            }
            (Some(user), Some(own)) if user != own && !self.may_trace => {
                // Yama refuses the user of the process, too.
                let as_user = (matches!(self.yama, None | Some(0)) && user != 0).then(|| format!("user {user}"));
                let users: Vec<String> =
                    as_user.into_iter().chain((own != 0).then(|| "root".to_owned())).collect();
                let run_it =
                    if users.is_empty() { String::new() } else { format!("run it as {}, or ", users.join(" or as ")) };
                format!(
                    "process {pid} belongs to user {user}, and this program runs as user {own} without \
                     CAP_SYS_PTRACE; {run_it}{REMEDY}"
                )
            }
            _ if self.may_trace => format!(
                "this program has CAP_SYS_PTRACE, but a security module or another user namespace denies access to \
                 process {pid}; see the kernel log and the profiles of AppArmor, SELinux and seccomp"
            ),
            _ => match self.yama {
                Some(1) => format!(
                    "kernel.yama.ptrace_scope is 1, and process {pid} is not a descendant of this program; set it to 0, or {REMEDY}"
                ),
                Some(2) => format!("kernel.yama.ptrace_scope is 2; {REMEDY}"),
                _ if self.owner == Some(0) && self.user != Some(0) => format!(
                    "process {pid} is not dumpable (prctl PR_SET_DUMPABLE, or a program with other privileges); {REMEDY}"
                ),
                _ => format!(
                    "this program has no CAP_SYS_PTRACE, and process {pid} has other privileges, or a security \
                     module denies access to it; {REMEDY}"
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(user: u32, own_user: u32, may_trace: bool, yama: Option<u32>, owner: u32) -> String {
        let (user, own_user, owner) = (Some(user), Some(own_user), Some(owner));
        Facts { user, own_user, may_trace, yama, owner }.words(77)
    }

    #[test]
    fn the_reason_and_the_remedy_are_named() {
        assert_eq!(
            words(1000, 1001, false, None, 1000),
            "process 77 belongs to user 1000, and this program runs as user 1001 without CAP_SYS_PTRACE; run it as user \
             1000 or as root, or add CAP_SYS_PTRACE (in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
        );
        assert_eq!(
            words(1000, 1000, false, Some(1), 1000),
            "kernel.yama.ptrace_scope is 1, and process 77 is not a descendant of this program; set it to 0, or add \
             CAP_SYS_PTRACE (in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
        );
        assert!(words(0, 0, false, Some(2), 0).starts_with("kernel.yama.ptrace_scope is 2; add"));
        assert!(words(1000, 0, false, None, 1000).contains("; run it as user 1000, or add CAP_SYS_PTRACE"));
        assert!(
            words(1000, 1001, false, Some(1), 1000)
                .contains("CAP_SYS_PTRACE; run it as root, or add CAP_SYS_PTRACE")
        );
        assert!(words(1000, 0, false, Some(1), 1000).contains("without CAP_SYS_PTRACE; add CAP_SYS_PTRACE"));
        assert!(
            words(0, 1001, false, None, 0).contains("CAP_SYS_PTRACE; run it as root, or add CAP_SYS_PTRACE")
        );
        for (own_user, may_trace) in [(0, true), (0, false), (1001, false)] {
            assert!(words(0, own_user, may_trace, Some(3), 0).contains("until the next boot"));
        }
        assert!(words(1000, 1000, false, Some(0), 0).contains("not dumpable"));
        assert!(words(0, 0, false, None, 0).contains("has no CAP_SYS_PTRACE"));
        assert!(words(0, 0, true, None, 0).contains("AppArmor"));
    }

    #[test]
    fn rights_are_read_from_the_status() {
        let status = "Uid:\t1000\t1001\t1000\t1000\nCapEff:\t0000000000080000\n";
        assert_eq!(effective_user(status), Some(1001));
        assert!(may_trace(status));
        assert!(!may_trace("CapEff:\t000001fffff7ffff\n"));
        assert!(!may_trace("CapEff:\t\n"));
    }

    #[test]
    fn this_process_may_be_read() {
        assert_eq!(check(i32::try_from(std::process::id()).unwrap()), Ok(()));
    }
}
