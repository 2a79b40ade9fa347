//! The workers of jobs on this node, by the environment of their processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _},
};

use diagnosis::counted::counted;
use probes::StackTarget;
use processes::{
    host_name,
    program::{Link, is_python_by_name, is_wrapper, outermost_python, whose_stacks},
    tree,
};

/// An environment is not longer.
const LONGEST_ENVIRONMENT: u64 = 4 << 20;

/// Jobs and processes that an error names.
const MAX_NAMED: usize = 10;

/// Whose stacks are to be taken, and what is to be said about the choice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Targets {
    /// The job, where all of them are known to be of one.
    pub(super) job: Option<String>,
    pub(super) targets: Vec<StackTarget>,
    pub(super) notes: Vec<String>,
}

/// Why there is nothing to take.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoTargets {
    #[error("no job runs on this node{}; name a process with --pid", not_read(*.unreadable))]
    NoJob { unreadable: usize },
    #[error("no process of job `{run_id}` is on this node; jobs here: {}{}", list(.jobs), not_read(*.unreadable))]
    NoSuchJob { run_id: String, jobs: BTreeMap<String, usize>, unreadable: usize },
    #[error("several jobs run on this node: {}; name one with --run-id", list(.jobs))]
    SeveralJobs { jobs: BTreeMap<String, usize> },
    #[error("there is no process {pid} on this node")]
    NoProcess { pid: u32 },
    #[error("process {pid} is named twice")]
    Twice { pid: u32 },
}

fn list(jobs: &BTreeMap<String, usize>) -> String {
    if jobs.is_empty() {
        return "none".to_owned();
    }
    let named = jobs.iter().take(MAX_NAMED);
    let named = named.map(|(job, workers)| format!("`{job}` ({})", counted(*workers, "worker")));
    let mut named: Vec<String> = named.collect();
    if jobs.len() > MAX_NAMED {
        named.push(format!("{} more", jobs.len() - MAX_NAMED));
    }
    named.join(", ")
}

fn not_read(count: usize) -> String {
    match count {
        0 => String::new(),
        _ => format!(
            " (the environment of {} may not be read; run this as the user of the job, or with CAP_SYS_PTRACE)",
            processes(count)
        ),
    }
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// A process that has the environment of a worker: the worker itself, or one that it has started.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    pid: i32,
    parent: i32,
    started: u64,
    name: String,
    is_python: bool,
    is_wrapper: bool,
    cpu_ticks: u64,
    run_id: String,
    rank: u32,
    world_size: u32,
}

/// The workers of a job; without an id, of the one job that is here.
pub(super) fn of_job(run_id: Option<&str>) -> Result<Targets, NoTargets> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut members = Vec::new();
    let mut unreadable = 0;
    for process in tree::all_pids().filter(|pid| *pid != own).filter_map(tree::process) {
        if !process.is_alive() {
            continue;
        }
        match environment(process.pid) {
            Ok(environment) => members.extend(member(&process, &environment)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => unreadable += 1,
            // It has ended, or is a kernel thread, which has none.
            Err(_) => {}
        }
    }
    chosen(members, run_id, unreadable)
}

fn chosen(members: Vec<Member>, run_id: Option<&str>, unreadable: usize) -> Result<Targets, NoTargets> {
    let mut by_job: BTreeMap<String, BTreeMap<u32, Vec<Member>>> = BTreeMap::new();
    for member in members {
        by_job.entry(member.run_id.clone()).or_default().entry(member.rank).or_default().push(member);
    }
    let jobs = || by_job.iter().map(|(job, ranks)| (job.clone(), ranks.len())).collect();
    let (job, ranks) = match (run_id, by_job.len()) {
        (Some(run_id), _) => by_job.get_key_value(run_id).ok_or_else(|| NoTargets::NoSuchJob {
            run_id: run_id.to_owned(),
            jobs: jobs(),
            unreadable,
        })?,
        (None, 0 | 1) => by_job.iter().next().ok_or(NoTargets::NoJob { unreadable })?,
        (None, _) => return Err(NoTargets::SeveralJobs { jobs: jobs() }),
    };
    let mut found = Targets { job: Some(job.clone()), ..Targets::default() };
    for (rank, members) in ranks {
        let (member, note) = worker(members);
        found.notes.extend(note.map(|note| format!("rank {rank}: {note}")));
        found.targets.extend(member.map(Member::target));
    }
    Ok(found)
}

/// Of the processes of one rank the one whose stacks matter: the outermost, or the outermost Python program below it,
/// where a shell or another program has started that.
fn worker(members: &[Member]) -> (Option<&Member>, Option<String>) {
    let pids: BTreeSet<i32> = members.iter().map(|member| member.pid).collect();
    let outermost = members.iter().filter(|member| !pids.contains(&member.parent));
    // A process of an earlier start may be left over.
    let Some(root) = outermost.clone().max_by_key(|member| (member.started, member.pid)) else {
        return (None, None);
    };
    let others = outermost.count() - 1;
    let note = (others > 0).then(|| {
        format!(
            "also with this rank: {}; the stacks are those of the process started last, {}",
            processes(others),
            root.pid
        )
    });
    if root.is_python || !root.is_wrapper {
        return (Some(root), note);
    }
    let link = |member: &Member| Link {
        pid: member.pid,
        parent: member.parent,
        is_python: member.is_python,
        cpu_ticks: member.cpu_ticks,
    };
    let Some(python) = outermost_python(root.pid, members, link) else { return (Some(root), note) };
    let of_child = whose_stacks((root.pid, &root.name), (python.pid, &python.name));
    (Some(python), Some(note.map_or(of_child.clone(), |note| format!("{note}; {of_child}"))))
}

impl Member {
    fn target(&self) -> StackTarget {
        StackTarget {
            rank: self.rank,
            world_size: self.world_size,
            pid: self.pid.unsigned_abs(),
            started: Some(self.started),
            step: None,
            host: host_name(),
            may_be_wrapper: false,
        }
    }
}

/// Processes by their numbers.
pub(super) fn of_pids(pids: &[u32]) -> Result<Targets, NoTargets> {
    let mut found = Targets::default();
    let mut jobs = BTreeSet::new();
    let mut has_ranks = true;
    for (index, pid) in pids.iter().enumerate() {
        if pids[..index].contains(pid) {
            return Err(NoTargets::Twice { pid: *pid });
        }
        let process = i32::try_from(*pid).ok().and_then(tree::process);
        let process = process.ok_or(NoTargets::NoProcess { pid: *pid })?;
        let environment = environment(process.pid).ok();
        jobs.insert(environment.as_deref().and_then(run_id).map(str::to_owned));
        let of_environment = environment.as_deref().and_then(rank);
        has_ranks &= of_environment.is_some();
        let (rank, world_size) = of_environment.unwrap_or((0, 1));
        let started = Some(process.started);
        let step = None;
        let host = host_name();
        // The process that was named is taken, whatever it is.
        let may_be_wrapper = false;
        found.targets.push(StackTarget { rank, world_size, pid: *pid, started, step, host, may_be_wrapper });
    }
    let ranks: BTreeSet<u32> = found.targets.iter().map(|target| target.rank).collect();
    let sizes: BTreeSet<u32> = found.targets.iter().map(|target| target.world_size).collect();
    if pids.len() > 1 && (!has_ranks || ranks.len() < pids.len() || sizes.len() > 1) {
        let world_size = u32::try_from(pids.len()).unwrap_or(u32::MAX);
        for (rank, target) in (0..).zip(&mut found.targets) {
            (target.rank, target.world_size) = (rank, world_size);
        }
        let why = "the environment of the processes does not give them distinct ranks of one job";
        found.notes.push(format!("{why}, so they are numbered in the order of --pid"));
    }
    found.job = if jobs.len() == 1 { jobs.pop_first().flatten() } else { None };
    Ok(found)
}

fn environment(pid: i32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(LONGEST_ENVIRONMENT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a str> {
    let of = |entry: &'a [u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
    std::str::from_utf8(environment.split(|byte| *byte == 0).find_map(of)?).ok()
}

/// The job.
fn run_id(environment: &[u8]) -> Option<&str> {
    value(environment, "TORCHELASTIC_RUN_ID").filter(|id| !id.is_empty())
}

/// Rank and size of the world.
fn rank(environment: &[u8]) -> Option<(u32, u32)> {
    let number = |name| value(environment, name)?.parse::<u32>().ok();
    let (rank, world_size) = (number("RANK")?, number("WORLD_SIZE")?);
    (rank < world_size).then_some((rank, world_size))
}

fn member(process: &tree::Process, environment: &[u8]) -> Option<Member> {
    let run_id = run_id(environment)?.to_owned();
    let (rank, world_size) = rank(environment)?;
    Some(Member {
        pid: process.pid,
        parent: process.parent,
        started: process.started,
        is_python: is_python_by_name(process),
        is_wrapper: is_wrapper(process),
        cpu_ticks: tree::cpu_ticks(process.pid).unwrap_or_default(),
        name: process.name.clone(),
        run_id,
        rank,
        world_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: i32, parent: i32, rank: u32, name: &str) -> Member {
        Member {
            pid,
            parent,
            started: pid.unsigned_abs().into(),
            name: name.to_owned(),
            is_python: name.starts_with("python"),
            is_wrapper: name == "bash",
            cpu_ticks: 0,
            run_id: "a".to_owned(),
            rank,
            world_size: 4,
        }
    }

    /// Rank and process of each target, and the notes.
    fn taken(members: Vec<Member>) -> (Vec<(u32, u32)>, Vec<String>) {
        let found = chosen(members, None, 0).unwrap();
        let targets = found.targets.iter().map(|target| (target.rank, target.pid));
        (targets.collect(), found.notes)
    }

    #[test]
    fn data_loaders_of_a_worker_are_not_workers() {
        let members = vec![
            member(12, 10, 1, "python3"),
            member(10, 2, 1, "python3"),
            member(11, 2, 0, "python3"),
            member(13, 12, 1, "python3"),
        ];
        assert_eq!(taken(members), (vec![(0, 11), (1, 10)], vec![]));
    }

    #[test]
    fn the_python_program_below_a_shell_is_taken() {
        let members = vec![
            member(10, 2, 3, "bash"),
            member(11, 10, 3, "numactl"),
            member(12, 11, 3, "python3"),
            member(13, 12, 3, "python3"),
        ];
        let note = "rank 3: the worker is process 10 (bash); the stacks are those of process 12 (python3), which it \
                    has started";
        assert_eq!(taken(members), (vec![(3, 12)], vec![note.to_owned()]));
        let no_python = vec![member(10, 2, 3, "train"), member(11, 10, 3, "sh")];
        assert_eq!(taken(no_python), (vec![(3, 10)], vec![]));
        let with_helper = vec![member(10, 2, 3, "train"), member(11, 10, 3, "python3")];
        assert_eq!(taken(with_helper), (vec![(3, 10)], vec![]), "it trains itself");
    }

    #[test]
    fn of_two_workers_of_one_rank_the_youngest_is_taken() {
        let members = vec![member(10, 2, 0, "python3"), member(20, 3, 0, "python3")];
        let note =
            "rank 0: also with this rank: 1 process; the stacks are those of the process started last, 20";
        assert_eq!(taken(members), (vec![(0, 20)], vec![note.to_owned()]));
    }

    #[test]
    fn errors_name_the_jobs_that_are_there() {
        let error = |members, run_id| chosen(members, run_id, 0).unwrap_err().to_string();
        let other = || Member { run_id: "b".to_owned(), ..member(20, 2, 0, "python3") };
        let two = || vec![member(10, 2, 0, "python3"), member(11, 2, 1, "python3"), other()];
        assert_eq!(
            error(two(), Some("c")),
            "no process of job `c` is on this node; jobs here: `a` (2 workers), `b` (1 worker)"
        );
        assert_eq!(
            error(two(), None),
            "several jobs run on this node: `a` (2 workers), `b` (1 worker); name one with --run-id"
        );
        assert_eq!(error(vec![], None), "no job runs on this node; name a process with --pid");
        assert_eq!(error(vec![], Some("c")), "no process of job `c` is on this node; jobs here: none");
        assert!(chosen(vec![], None, 3).unwrap_err().to_string().contains("of 3 processes may not be read"));
    }

    #[test]
    fn ranks_are_below_the_size_of_the_world() {
        assert_eq!(rank(b"RANK=3\0WORLD_SIZE=4\0"), Some((3, 4)));
        for wrong in [&b"RANK=4\0WORLD_SIZE=4\0"[..], b"RANK=x\0WORLD_SIZE=4", b"RANK=1", b"", b"\0\0=\0"] {
            assert_eq!(rank(wrong), None);
        }
    }

    #[test]
    fn a_loop_of_parents_ends() {
        let members = vec![member(10, 2, 0, "sh"), member(11, 10, 0, "sh"), member(10, 11, 0, "sh")];
        assert!(chosen(members, None, 0).is_ok());
    }
}
