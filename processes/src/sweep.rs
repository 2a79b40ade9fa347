//! At the start: ends what a dead launcher left behind, in case its guard was killed with it.
//!
//! Only processes of our own user that carry the mark of a launcher that is provably dead are touched, so
//! never those of a sibling. A process that cleared its environment is found only where workers have a cgroup.
//!
//! A worker may have asked a scheduler for a further job (`sbatch` and `at` pass the environment on), and a
//! launcher may be part of that job: then it, the script around it and what runs beside it carry a dead launcher's
//! mark and are no leftovers. A script that has not come to its launcher yet cannot be told from one.

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

/// The mark in a process's environment.
#[must_use]
pub fn mark_of(pid: i32) -> Option<LauncherId> {
    // `fs::read` begins with 32 bytes, since files in /proc tell no length.
    let mut environment = Vec::with_capacity(USUAL_ENVIRONMENT);
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(u64::MAX).read_to_end(&mut environment).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let text = std::str::from_utf8(entry).ok()?;
        LauncherId::parse(text.strip_prefix(VARIABLE)?.strip_prefix('=')?)
    })
}

/// Kills leftovers of dead launchers until none is left or `patience` is over, and gives what it found first.
/// Blocks.
#[must_use]
pub fn sweep(timeout: Duration) -> Vec<Process> {
    let mut found: Vec<Process> = leftovers().collect();
    let mut empty_scans = if found.is_empty() { EMPTY_SCANS } else { 0 };
    // A cgroup also holds processes that cleared their environment.
    found.extend(cgroup::sweep(marks_at_work));
    let _left = tree::kill_until_gone(timeout, leftovers, || {
        // A process that forks all the time may be missing from a scan, so a single empty one proves little.
        if empty_scans < EMPTY_SCANS {
            empty_scans = if leftovers().next().is_none() { empty_scans + 1 } else { 0 };
        }
        empty_scans == EMPTY_SCANS
    });
    found
}

/// The marks that a process and those above it were started with.
fn marks_above(mut pid: i32) -> Vec<LauncherId> {
    let mut marks = Vec::new();
    while pid > 0 {
        marks.extend(mark_of(pid));
        pid = tree::process(pid).map_or(0, |process| process.parent);
    }
    marks
}

/// The newest first: between the list and the look at it they have had the least time to fork themselves away.
fn leftovers() -> impl Iterator<Item = Process> {
    let me = getuid().as_raw();
    // Asked for anew with each look, and only when a dead launcher's mark is seen.
    let spared = LazyCell::new(marks_at_work);
    let is_leftover = move |mark: LauncherId| mark.is_provably_dead() && !spared.contains(&mark);
    let mut pids: Vec<i32> = tree::all_pids().collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter()
        .filter(move |pid| owner(*pid) == Some(me))
        .filter(move |pid| mark_of(*pid).is_some_and(&is_leftover))
        .filter_map(tree::process)
        .filter(Process::is_alive)
}

/// Marks that launchers at work have got from above: this one, and every one that has a guard.
fn marks_at_work() -> Vec<LauncherId> {
    let guards = tree::all_pids()
        .filter_map(tree::process)
        .filter(|process| process.name.as_bytes() == crate::GUARD_NAME.to_bytes());
    let launchers = guards.map(|guard| guard.parent).chain(i32::try_from(process::id()).ok());
    launchers.flat_map(marks_above).collect()
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

    /// A process with this mark that runs code of its own: in the middle of exec the kernel shows no environment yet.
    fn marked(id: &LauncherId) -> Child {
        let mut cat = Command::new("cat");
        cat.env(VARIABLE, id.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut cat = cat.spawn().unwrap();
        cat.stdin.as_mut().unwrap().write_all(b"ready\n").unwrap();
        let mut line = String::new();
        BufReader::new(cat.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        cat
    }

    #[test]
    fn a_job_that_a_worker_submitted_carries_its_mark_and_is_spared() {
        // Of another boot, so that nobody's sweep takes it for a leftover meanwhile.
        let mark = LauncherId { boot: "another".into(), ..LauncherId::of_this_process() };
        let mut script = Command::new("sh")
            .args(["-c", "env -u DLROVER_LAUNCHER_ID sleep 1000 & echo $!; wait"])
            .env(VARIABLE, mark.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let beside: i32 = line.trim().parse().unwrap();
        assert!(marks_above(beside).contains(&mark));
        tree::signal_one(beside, nix::sys::signal::Signal::SIGKILL);
        script.wait().unwrap();
    }

    #[test]
    fn leftovers_of_a_dead_launcher_end_and_those_of_a_living_one_stay() {
        let living = LauncherId::of_this_process();
        let dead = LauncherId { started: living.started - 1, ..living.clone() };
        let mut orphan = marked(&dead);
        let mut sibling = marked(&living);
        assert_eq!(mark_of(i32::try_from(orphan.id()).unwrap()), Some(dead));
        let orphan_pid = i32::try_from(orphan.id()).unwrap();
        assert!(sweep(Duration::from_secs(60)).iter().any(|process| process.pid == orphan_pid));
        assert_eq!(orphan.wait().unwrap().signal(), Some(9));
        assert!(sibling.try_wait().unwrap().is_none());
        sibling.kill().unwrap();
        sibling.wait().unwrap();
    }
}
