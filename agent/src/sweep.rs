//! At the start: ends what a dead launcher left behind, in case its guard was killed with it.
//!
//! Only processes of our own user that carry the mark of a launcher that is provably dead are touched, so
//! never those of a sibling. A process that cleared its environment is found only where workers have a cgroup.
//!
//! A worker may have asked a scheduler for a further job (`sbatch` and `at` pass the environment on), and a
//! launcher may be part of that job: then it, the script around it and what runs beside it carry a dead launcher's
//! mark and are no leftovers. A script that has not come to its launcher yet cannot be told from one.

use std::{
    fs, process, thread,
    time::{Duration, Instant},
};

use nix::{libc, unistd::getuid};

use crate::{
    cgroup, guard,
    launcher_id::{LauncherId, VARIABLE},
    tree::{self, Process},
};

/// Between two passes.
const AGAIN: Duration = Duration::from_millis(5);

/// The mark in a process's environment.
#[must_use]
pub fn mark_of(pid: i32) -> Option<LauncherId> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let text = std::str::from_utf8(entry).ok()?;
        LauncherId::parse(text.strip_prefix(VARIABLE)?.strip_prefix('=')?)
    })
}

/// Kills leftovers of dead launchers until none is left or `patience` is over, and gives what it found first.
/// Blocks.
#[must_use]
pub fn sweep(patience: Duration) -> Vec<Process> {
    let deadline = Instant::now() + patience;
    let mut left = leftovers();
    let mut found = left.clone();
    // A cgroup also holds those that cleared their environment.
    found.extend(cgroup::sweep());
    // Again and again: one that forks all the time may slip through a pass, and the killed need a moment to die.
    while !left.is_empty() && Instant::now() < deadline {
        tree::kill_pass(leftovers);
        thread::sleep(AGAIN);
        left = leftovers();
    }
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

fn leftovers() -> Vec<Process> {
    let me = getuid().as_raw();
    let own = tree::all_pids().filter(|pid| owner(*pid) == Some(me));
    let mut found: Vec<(Process, LauncherId)> = own
        .filter_map(|pid| {
            let mark = mark_of(pid).filter(LauncherId::is_provably_dead)?;
            Some((tree::process(pid)?, mark))
        })
        .filter(|(process, _)| process.is_alive())
        .collect();
    if !found.is_empty() {
        let spared = marks_at_work();
        found.retain(|(_, mark)| !spared.contains(mark));
    }
    found.into_iter().map(|(process, _)| process).collect()
}

/// Marks that launchers at work have got from above: this one, and every one that has a guard.
fn marks_at_work() -> Vec<LauncherId> {
    let guards = tree::all_pids()
        .filter_map(tree::process)
        .filter(|process| process.name.as_bytes() == guard::NAME.to_bytes());
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
        io::{BufRead as _, BufReader},
        os::unix::process::ExitStatusExt as _,
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn marked(id: &LauncherId) -> Child {
        Command::new("sleep").arg("1000").env(VARIABLE, id.to_string()).stdout(Stdio::null()).spawn().unwrap()
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
