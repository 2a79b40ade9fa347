//! A cgroup for all workers of a launcher, where the host allows one: `cgroup.kill` ends everything in it at once,
//! even after launcher and guard were killed at the same instant (by the sweep of the next start). Needs version 2.
//! Most containers see their cgroups read-only; then only the process tree is killed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::unistd::{self, Pid};

use crate::{
    launcher_id::LauncherId,
    tree::{self, Process},
};

/// Names of our cgroups: this prefix and the launcher's id.
const PREFIX: &str = "dlrover-run.";

/// The cgroup of one launcher's workers. Clones refer to the same one.
#[derive(Debug, Clone)]
pub struct Cgroup {
    path: PathBuf,
    /// The open directory, into which a child can be forked.
    folder: Arc<File>,
    /// Whether it was ever killed.
    killed: Arc<AtomicBool>,
    /// Open `cgroup.procs`: a process that writes 0 to it moves in.
    procs: Arc<File>,
}

impl Cgroup {
    /// Makes the cgroup below this process's own; `None` where that is not possible.
    #[must_use]
    pub fn make(id: &LauncherId) -> Option<Self> {
        Self::make_in(&own_folder()?, id).ok()
    }

    fn make_in(parent: &Path, id: &LauncherId) -> io::Result<Self> {
        let path = parent.join(format!("{PREFIX}{id}"));
        fs::create_dir(&path)?;
        let open = || {
            // Before Linux 5.14 there is no `cgroup.kill`, and so no use for a cgroup.
            fs::metadata(path.join("cgroup.kill"))?;
            Ok((File::open(&path)?, OpenOptions::new().write(true).open(path.join("cgroup.procs"))?))
        };
        match open() {
            Ok((folder, procs)) => {
                Ok(Self { path, folder: Arc::new(folder), killed: Arc::default(), procs: Arc::new(procs) })
            }
            Err(error) => {
                let _left_for_the_sweep = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Moves this process in. Makes one system call and nothing else, so it may be called between fork and exec. A
    /// process that cannot move is found in the process tree.
    pub fn enter(&self) {
        let _stays_outside = unistd::write(&*self.procs, b"0");
    }

    /// Moves another process in, which takes some milliseconds. One that cannot move is found in the process tree.
    pub fn add(&self, pid: Pid) {
        let _stays_outside = unistd::write(&*self.procs, pid.to_string().as_bytes());
    }

    /// The open directory, to fork into it. `None` once it was killed: Linux 6.18 kills processes that are forked into
    /// such a cgroup (it compares the number of kills with that of the parent's own cgroup). Moving in still works.
    #[must_use]
    pub fn fork_target(&self) -> Option<BorrowedFd<'_>> {
        (!self.killed.load(Ordering::Relaxed)).then(|| self.folder.as_fd())
    }

    /// The open files, to keep them when others are closed.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.folder.as_fd(), self.procs.as_fd()]
    }

    /// Kills everything in it.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        kill(&self.path);
    }

    /// Removes the cgroup. Fails while a process is left in it; then the next start's sweep does it.
    pub fn remove(&self) {
        let _left_for_the_sweep = fs::remove_dir(&self.path);
    }
}

fn kill(path: &Path) {
    // The process tree is killed too.
    let _the_walk_remains =
        File::options().write(true).open(path.join("cgroup.kill")).and_then(|mut file| file.write_all(b"1"));
}

/// Kills and removes cgroups of provably dead launchers, except those in `spared`. Returns the processes that were in
/// them.
#[must_use]
pub fn sweep(spared: impl Fn() -> Vec<LauncherId>) -> Vec<Process> {
    let mut swept = Vec::new();
    let Some(folder) = own_folder() else { return swept };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| LauncherId::parse(name.strip_prefix(PREFIX)?));
        if id.is_some_and(|id| id.is_provably_dead() && !spared().contains(&id)) {
            let members = fs::read_to_string(entry.path().join("cgroup.procs")).unwrap_or_default();
            let members = members.lines().filter_map(|pid| tree::process(pid.parse().ok()?));
            swept.extend(members.filter(Process::is_alive));
            kill(&entry.path());
            // Its processes may not be gone yet; then the next start removes it.
            let _still_busy = fs::remove_dir(entry.path());
        }
    }
    swept
}

/// The directory of this process's version 2 cgroup.
fn own_folder() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup2 ").then(|| left.split(' ').nth(4))?
    })?;
    Some(Path::new(mount).join(own.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::{CommandExt as _, ExitStatusExt as _},
        process::Command,
    };

    use super::*;

    #[test]
    fn everything_in_the_cgroup_ends_at_once() {
        let mut id = LauncherId::of_this_process();
        let Some(cgroup) = Cgroup::make(&id) else {
            println!("skipped: this host gives us no writable version 2 cgroup");
            return;
        };
        let inside = cgroup.clone();
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sleep 1000 & exec sleep 1000"]);
        // SAFETY: `enter` only writes to an open file.
        unsafe {
            command.pre_exec(move || {
                inside.enter();
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let members = || fs::read_to_string(cgroup.path.join("cgroup.procs")).unwrap();
        assert!(members().lines().any(|pid| pid == child.id().to_string()));
        // Of a living launcher, so the sweep spares it.
        assert!(sweep(Vec::new).is_empty());
        assert!(child.try_wait().unwrap().is_none());
        cgroup.kill();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        // A dead launcher's is killed and removed once it is empty.
        id.started -= 1;
        let left = Cgroup::make(&id).unwrap();
        assert!(sweep(Vec::new).is_empty());
        assert!(!left.path.exists());
        // The orphan's zombie is reaped by init; until then the directory is busy.
        while cgroup.path.exists() {
            cgroup.remove();
            std::thread::yield_now();
        }
    }
}
