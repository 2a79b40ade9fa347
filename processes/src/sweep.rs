//! Kills what a dead launcher left behind when its guard was killed too. Runs at the start of a launcher.
//!
//! Only processes of the same user with the id of a provably dead launcher are killed. A process that cleared its
//! environment is found only where workers have a cgroup.
//!
//! A worker may have submitted another job (`sbatch` and `at` pass the environment on), and a launcher may be part of
//! that job: then the job's processes carry a dead launcher's id, but are not leftovers. A script that has not
//! started its launcher yet cannot be distinguished from a leftover.

use std::{
    cell::LazyCell,
    fs::{self, File},
    io::Read as _,
    process,
    time::Duration,
};

use nix::{libc, unistd::getuid};

use crate::{
    cgroup,
    launcher_id::{LauncherId, VARIABLE},
    tree::{self, Process},
};

/// Room for most environments; larger ones take another read.
const USUAL_ENVIRONMENT: usize = 8 << 10;

/// A sweep ends after this many scans in a row that find nothing.
const EMPTY_SCANS: u32 = 3;

/// The launcher id in a process's environment.
#[must_use]
pub fn id_of_process(pid: i32) -> Option<LauncherId> {
    // `fs::read` begins with 32 bytes, since files in /proc have no length.
    let mut environment = Vec::with_capacity(USUAL_ENVIRONMENT);
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(u64::MAX).read_to_end(&mut environment).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let text = std::str::from_utf8(entry).ok()?;
        LauncherId::parse(text.strip_prefix(VARIABLE)?.strip_prefix('=')?)
    })
}

/// Kills leftovers of dead launchers until none is left or `timeout` has passed, and returns those found first.
/// Blocks.
#[must_use]
pub fn sweep(timeout: Duration) -> Vec<Process> {
    let mut found: Vec<Process> = leftovers().collect();
    let mut empty_scans = if found.is_empty() { EMPTY_SCANS } else { 0 };
    // A cgroup also holds processes that cleared their environment.
    found.extend(cgroup::sweep(active_ids));
    let _left = tree::kill_until_gone(timeout, leftovers, || {
        // A process that forks all the time may be missing from a scan, so a single empty one proves little.
        if empty_scans < EMPTY_SCANS {
            empty_scans = if leftovers().next().is_none() { empty_scans + 1 } else { 0 };
        }
        empty_scans == EMPTY_SCANS
    });
    found
}

/// The ids in the environments of a process and its ancestors.
fn ids_of_ancestors(mut pid: i32) -> Vec<LauncherId> {
    let mut ids = Vec::new();
    while pid > 0 {
        ids.extend(id_of_process(pid));
        pid = tree::process(pid).map_or(0, |process| process.parent);
    }
    ids
}

/// The newest first: they have had the least time to fork again since the list was made.
fn leftovers() -> impl Iterator<Item = Process> {
    let me = getuid().as_raw();
    // Computed anew in each scan, and only if the id of a dead launcher is found.
    let spared = LazyCell::new(active_ids);
    let is_leftover = move |id: LauncherId| id.is_provably_dead() && !spared.contains(&id);
    let mut pids: Vec<i32> = tree::all_pids().collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter()
        .filter(move |pid| owner(*pid) == Some(me))
        .filter(move |pid| id_of_process(*pid).is_some_and(&is_leftover))
        .filter_map(tree::process)
        .filter(Process::is_alive)
}

/// Ids that running launchers have inherited: this one, and every one that has a guard.
fn active_ids() -> Vec<LauncherId> {
    let guards = tree::all_pids()
        .filter_map(tree::process)
        .filter(|process| process.name.as_bytes() == crate::GUARD_NAME.to_bytes());
    let launchers = guards.map(|guard| guard.parent).chain(i32::try_from(process::id()).ok());
    launchers.flat_map(ids_of_ancestors).collect()
}

fn owner(pid: i32) -> Option<libc::uid_t> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(format!("/proc/{pid}")).ok().map(|folder| folder.uid())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        os::unix::process::ExitStatusExt as _,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// A process with this id that runs code of its own: during exec the kernel shows no environment.
    fn process_with_id(id: &LauncherId) -> Child {
        let mut cat = Command::new("cat");
        cat.env(VARIABLE, id.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut cat = cat.spawn().unwrap();
        cat.stdin.as_mut().unwrap().write_all(b"ready\n").unwrap();
        let mut line = String::new();
        BufReader::new(cat.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        cat
    }

    #[test]
    fn a_job_submitted_by_a_worker_is_spared() {
        // Of another boot, so that no concurrent sweep kills it.
        let id = LauncherId { boot: "another".into(), ..LauncherId::of_this_process() };
        let mut script = Command::new("sh")
            .args(["-c", "env -u DLROVER_LAUNCHER_ID sleep 1000 & echo $!; wait"])
            .env(VARIABLE, id.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sibling: i32 = line.trim().parse().unwrap();
        assert!(ids_of_ancestors(sibling).contains(&id));
        tree::signal_one(sibling, nix::sys::signal::Signal::SIGKILL);
        script.wait().unwrap();
    }

    #[test]
    fn leftovers_of_a_dead_launcher_end_and_those_of_a_living_one_stay() {
        let living = LauncherId::of_this_process();
        let dead = LauncherId { started: living.started - 1, ..living.clone() };
        let mut orphan = process_with_id(&dead);
        let mut sibling = process_with_id(&living);
        assert_eq!(id_of_process(i32::try_from(orphan.id()).unwrap()), Some(dead));
        let orphan_pid = i32::try_from(orphan.id()).unwrap();
        assert!(sweep(Duration::from_secs(60)).iter().any(|process| process.pid == orphan_pid));
        assert_eq!(orphan.wait().unwrap().signal(), Some(9));
        assert!(sibling.try_wait().unwrap().is_none());
        sibling.kill().unwrap();
        sibling.wait().unwrap();
    }
}
