//! What is seen of a hang from outside, by the kernel's notices of files (`inotify`).

use std::{os::fd::AsFd as _, path::Path, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
};

use super::whole::{EXTENSION, MERGED};
use crate::{Outcome, launcher::is_interrupted, stamps::now_ns};

/// How long a hang may take.
const LIMIT: Duration = Duration::from_secs(60);

/// When things happened, in nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct Seen {
    /// The launcher's program was started again, as the process that reads the stacks.
    pub(super) probe: u64,
    /// The first file of a rank was there.
    pub(super) first_file: u64,
    /// The last of the merged files was there.
    pub(super) pictures: u64,
    /// The launcher's line was there.
    pub(super) printed: u64,
    /// That line.
    pub(super) line: String,
}

/// Watches over a launcher that has started its workers.
#[derive(Debug)]
pub(super) struct Watches {
    inotify: Inotify,
    program: WatchDescriptor,
    folder: WatchDescriptor,
}

/// The time of the first event of each kind, except for the merged files: of the last.
#[derive(Debug, Default)]
struct SoFar {
    probe: Option<u64>,
    first_file: Option<u64>,
    merged: Vec<String>,
    pictures: Option<u64>,
}

impl Watches {
    /// Watches the launcher's program, the directory for the stacks, and the file of the launcher's standard error.
    pub(super) fn new(program: &Path, folder: &Path, stderr: &Path) -> Outcome<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let program = inotify.add_watch(program, AddWatchFlags::IN_OPEN)?;
        let folder = inotify.add_watch(folder, AddWatchFlags::IN_MOVED_TO)?;
        inotify.add_watch(stderr, AddWatchFlags::IN_MODIFY)?;
        Ok(Self { inotify, program, folder })
    }

    /// Waits until the launcher has said that the job hangs. `stderr` returns all that it has said.
    pub(super) fn wait(self, stderr: impl Fn() -> String) -> Outcome<Seen> {
        let deadline_ns = now_ns() + u64::try_from(LIMIT.as_nanos())?;
        let mut so_far = SoFar::default();
        loop {
            let is_new = self.read(&mut so_far)?;
            let printed = now_ns();
            if let Some(line) = is_new.then(&stderr).as_deref().and_then(hang_line) {
                let SoFar { probe, first_file, pictures, .. } = so_far;
                let (Some(probe), Some(first_file), Some(pictures)) = (probe, first_file, pictures) else {
                    return Err(format!("not all was seen of a hang: {so_far:?}; {line}").into());
                };
                return Ok(Seen { probe, first_file, pictures, printed, line: line.to_owned() });
            }
            let left = deadline_ns.saturating_sub(now_ns()).div_ceil(1_000_000);
            if left == 0 {
                return Err(format!("no hang within {} s: {so_far:?}\n{}", LIMIT.as_secs(), stderr()).into());
            }
            if is_interrupted() {
                return Err("interrupted".into());
            }
            let mut ready = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::try_from(left.min(200))?) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes what has happened, and returns whether there was anything.
    fn read(&self, so_far: &mut SoFar) -> Outcome<bool> {
        let events = match self.inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let now = now_ns();
        for event in &events {
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                return Err("the kernel has lost notices of files".into());
            }
            if event.wd == self.program {
                so_far.probe.get_or_insert(now);
            } else if event.wd == self.folder {
                let name = event.name.as_ref().and_then(|name| name.to_str()).unwrap_or_default();
                so_far.file(name, now);
            }
        }
        Ok(true)
    }
}

impl SoFar {
    fn file(&mut self, name: &str, now: u64) {
        if name.ends_with(EXTENSION) {
            self.first_file.get_or_insert(now);
        } else if MERGED.contains(&name) && !self.merged.iter().any(|known| known == name) {
            self.merged.push(name.to_owned());
            self.pictures = (self.merged.len() == MERGED.len()).then_some(now);
        }
    }
}

/// The launcher's line of a hang; not that of a master inside of it, which is the same with a prefix.
fn hang_line(stderr: &str) -> Option<&str> {
    let whole = &stderr[..stderr.rfind('\n')?];
    let is_hang = |line: &&str| line.contains("hang: no rank has") && !line.contains(": master: ");
    let line = whole.lines().find(is_hang)?;
    line.find("hang: ").map(|at| &line[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_when_it_is_whole_and_the_launchers() {
        let master = "2025-11-25T04:00:00Z dlrover-run: master: hang: no rank has made progress\n";
        let ours = "2025-11-25T04:00:01Z dlrover-run: hang: no rank has made progress for 2 s: rank 3";
        assert_eq!(hang_line(&format!("{master}{ours}")), None);
        let line = "hang: no rank has made progress for 2 s: rank 3";
        assert_eq!(hang_line(&format!("{master}{ours}\nmore")), Some(line));
        assert_eq!(hang_line(""), None);
    }

    #[test]
    fn pictures_are_there_when_the_last_of_them_is() {
        let mut so_far = SoFar::default();
        for (now, name) in
            [(1, "hang.json"), (2, "00001-00002.stacktrace"), (3, "00000-00002.stacktrace"), (4, "py_stack")]
        {
            so_far.file(name, now);
        }
        so_far.file("py_stack", 5);
        so_far.file("cpp_stack", 6);
        so_far.file("py_stack.svg", 7);
        assert_eq!((so_far.first_file, so_far.pictures), (Some(2), None));
        so_far.file("cpp_stack.svg", 8);
        assert_eq!((so_far.first_file, so_far.pictures), (Some(2), Some(8)));
    }

    #[test]
    fn the_kernel_tells_of_a_start_and_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let stderr = folder.path().join("stderr");
        std::fs::write(&stderr, "").unwrap();
        let program = std::env::current_exe().unwrap();
        let watches = Watches::new(&program, folder.path(), &stderr).unwrap();
        let mut so_far = SoFar::default();
        assert!(!watches.read(&mut so_far).unwrap());
        let listed = std::process::Command::new(&program).arg("--help").output().unwrap();
        assert!(listed.status.success());
        std::fs::write(folder.path().join("new"), "").unwrap();
        std::fs::rename(folder.path().join("new"), folder.path().join("1-2.stacktrace")).unwrap();
        assert!(watches.read(&mut so_far).unwrap());
        assert!(so_far.probe.is_some() && so_far.first_file.is_some(), "{so_far:?}");
    }
}
