//! What must hold of the real processes, whatever the weather: the simulator's invariants (`tests/support/sim`,
//! `checks.rs`) as far as they can be seen from outside. One more is a line in [`INVARIANTS`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use support::{census::Process, seen::Dump};

use super::plan::Plan;

/// A worker that has said where it is.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) node: usize,
    pub(super) round: u32,
    pub(super) rank: u32,
    pub(super) started: SystemTime,
    /// When it was looked last.
    pub(super) is_alive: bool,
    /// Of its world: WORLD_SIZE, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
    pub(super) world: [String; 4],
    pub(super) restarts: String,
    process: Option<Process>,
}

/// All workers that were seen so far.
#[derive(Debug)]
pub(super) struct Sight<'a> {
    pub(super) plan: &'a Plan,
    pub(super) workers: Vec<Worker>,
    /// Workers that failed, by node and round.
    failures: BTreeSet<(usize, u32)>,
    folders: &'a [PathBuf],
    known: BTreeSet<PathBuf>,
}

/// A name, and what is wrong if it does not hold.
type Invariant = (&'static str, fn(&Sight<'_>) -> Option<String>);

/// Asked after every look.
const INVARIANTS: [Invariant; 6] = [
    ("the workers of a round agree about their world", agree),
    ("a rank of a round is held once, and is in the world", hold_a_rank_once),
    ("workers of two rounds never run at once, on whatever hosts", are_of_one_round),
    ("a node's rounds come in order", come_in_order),
    ("a node is charged no more restarts than its workers failed", are_charged_for_failures_only),
    ("mild weather stops no worker", go_on_in_mild_weather),
];

impl<'a> Sight<'a> {
    /// Of the nodes with workers that write to these directories.
    pub(super) fn new(plan: &'a Plan, folders: &'a [PathBuf]) -> Self {
        Self { plan, workers: Vec::new(), failures: BTreeSet::new(), folders, known: BTreeSet::new() }
    }

    /// Looks anew. An error says which invariant does not hold.
    pub(super) fn look(&mut self) -> Result<(), String> {
        // Before new ones are read: a worker that is alive then overlaps with a new one.
        for (node, folder) in self.folders.iter().enumerate() {
            for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                if let Some((_, round)) = rank_and_round(&file.path(), ".failed") {
                    self.failures.insert((node, round));
                }
                if !self.known.contains(&file.path())
                    && let Some(worker) = read(node, &file.path())
                {
                    self.known.insert(file.path());
                    self.workers.push(worker);
                }
            }
        }
        for worker in &mut self.workers {
            worker.is_alive = worker.is_alive && worker.process.as_ref().is_some_and(Process::still_lives);
        }
        for (name, fails) in INVARIANTS {
            if let Some(how) = fails(self) {
                return Err(format!("{name}: {how}\n{:#?}", self.workers));
            }
        }
        Ok(())
    }

    /// The round that began last.
    pub(super) fn youngest(&self) -> Option<u32> {
        self.workers.iter().map(|worker| worker.round).max()
    }

    /// Whether the youngest world has a living worker on every node, and none of them has failed.
    pub(super) fn is_whole(&self) -> bool {
        let nodes = self.plan.nodes();
        let round = self.youngest();
        let is_failing = self.folders.iter().any(|folder| folder.join("fail").exists());
        if is_failing || self.failures.iter().any(|(_, failed)| Some(*failed) == round) {
            return false;
        }
        let mut of_it: Vec<usize> = (self.workers.iter())
            .filter(|worker| Some(worker.round) == round && worker.is_alive)
            .filter(|worker| worker.world[0] == nodes.to_string())
            .map(|worker| worker.node)
            .collect();
        of_it.sort_unstable();
        of_it.dedup();
        of_it.len() == nodes
    }
}

/// Of a file that a probe made.
fn rank_and_round(path: &Path, what: &str) -> Option<(u32, u32)> {
    let (rank, round) = path.file_name()?.to_str()?.strip_suffix(what)?.split_once('.')?;
    Some((rank.parse().ok()?, round.parse().ok()?))
}

fn read(node: usize, path: &Path) -> Option<Worker> {
    let (rank, round) = rank_and_round(path, ".dump")?;
    let started = fs::metadata(path).and_then(|found| found.modified()).ok()?;
    let dump: Dump = serde_json::from_slice(&fs::read(path).ok()?).expect("the probe writes JSON");
    let process = Process::of(dump.pid).filter(|process| {
        process.variable("DLROVER_ROUND") == Some(round.to_string())
            && process.variable("RANK") == Some(rank.to_string())
    });
    Some(Worker {
        node,
        round,
        rank,
        started,
        is_alive: process.is_some(),
        world: ["WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
            .map(|name| dump.var(name).to_owned()),
        restarts: dump.var("TORCHELASTIC_RESTART_COUNT").to_owned(),
        process,
    })
}

fn agree(sight: &Sight<'_>) -> Option<String> {
    let mut worlds: BTreeMap<u32, &Worker> = BTreeMap::new();
    sight.workers.iter().find_map(|worker| {
        let first = *worlds.entry(worker.round).or_insert(worker);
        (first.world != worker.world).then(|| format!("{first:?} and {worker:?}"))
    })
}

fn hold_a_rank_once(sight: &Sight<'_>) -> Option<String> {
    let mut held: BTreeMap<(u32, u32), &Worker> = BTreeMap::new();
    sight.workers.iter().find_map(|worker| {
        let is_in = worker.world[0].parse().is_ok_and(|size: u32| worker.rank < size);
        match held.insert((worker.round, worker.rank), worker) {
            Some(other) => Some(format!("{other:?} and {worker:?}")),
            None => (!is_in).then(|| format!("{worker:?}")),
        }
    })
}

fn are_of_one_round(sight: &Sight<'_>) -> Option<String> {
    let mut alive = sight.workers.iter().filter(|worker| worker.is_alive);
    let first = alive.next()?;
    alive.find(|worker| worker.round != first.round).map(|worker| format!("{first:?} and {worker:?}"))
}

fn come_in_order(sight: &Sight<'_>) -> Option<String> {
    let mut by_start: Vec<&Worker> = sight.workers.iter().collect();
    by_start.sort_by_key(|worker| (worker.node, worker.started));
    by_start.windows(2).find_map(|pair| {
        let [earlier, later] = pair else { return None };
        (earlier.node == later.node && earlier.round >= later.round)
            .then(|| format!("{earlier:?}, then {later:?}"))
    })
}

fn are_charged_for_failures_only(sight: &Sight<'_>) -> Option<String> {
    sight.workers.iter().find_map(|worker| {
        let failed =
            sight.failures.iter().filter(|(node, round)| *node == worker.node && *round < worker.round);
        let failed = failed.count();
        let is_right = worker.restarts.parse().is_ok_and(|restarts: usize| restarts <= failed);
        (!is_right).then(|| format!("{failed} failures before it: {worker:?}"))
    })
}

fn go_on_in_mild_weather(sight: &Sight<'_>) -> Option<String> {
    let is_second = |worker: &&Worker| worker.round != 0;
    sight.workers.iter().find(is_second).filter(|_| sight.plan.is_mild).map(|worker| format!("{worker:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn worker(node: usize, round: u32, rank: u32) -> Worker {
        Worker {
            node,
            round,
            rank,
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(round.into()),
            is_alive: false,
            world: ["2", "2", "10.80.0.1", "4000"].map(str::to_owned),
            restarts: "0".to_owned(),
            process: None,
        }
    }

    /// The names of what does not hold.
    fn broken(plan: &Plan, workers: Vec<Worker>) -> Vec<&'static str> {
        let sight = Sight { workers, ..Sight::new(plan, &[]) };
        INVARIANTS.iter().filter(|(_, fails)| fails(&sight).is_some()).map(|(name, _)| *name).collect()
    }

    #[test]
    fn every_check_can_fail() {
        let plan = Plan { is_mild: false, ..Plan::of(0) };
        let of = |workers: [Worker; 2]| broken(&plan, workers.into());
        assert_eq!(of([worker(0, 0, 0), worker(1, 0, 1)]), [""; 0]);
        let mut other = worker(1, 0, 1);
        other.world[3] = "4001".to_owned();
        assert_eq!(of([worker(0, 0, 0), other]), [INVARIANTS[0].0]);
        assert_eq!(of([worker(0, 0, 1), worker(1, 0, 1)]), [INVARIANTS[1].0]);
        assert_eq!(of([worker(0, 0, 0), worker(1, 0, 2)]), [INVARIANTS[1].0]);
        let alive = |worker| Worker { is_alive: true, ..worker };
        assert_eq!(of([alive(worker(0, 0, 0)), alive(worker(0, 1, 0))]), [INVARIANTS[2].0]);
        assert_eq!(of([alive(worker(0, 0, 0)), alive(worker(1, 1, 0))]), [INVARIANTS[2].0]);
        assert_eq!(of([worker(0, 0, 0), alive(worker(1, 1, 0))]), [""; 0]);
        let late = Worker { started: SystemTime::now(), ..worker(0, 0, 0) };
        assert_eq!(of([late, worker(0, 1, 0)]), [INVARIANTS[3].0]);
        let charged = Worker { restarts: "1".to_owned(), ..worker(1, 1, 1) };
        assert_eq!(of([worker(0, 1, 0), charged]), [INVARIANTS[4].0]);
        let mild = Plan { is_mild: true, ..Plan::of(0) };
        assert_eq!(broken(&mild, vec![worker(0, 0, 0), worker(0, 1, 0)]), [INVARIANTS[5].0]);
    }
}
