//! What must follow.
//!
//! | signalled                        | the run                                     | exit code | report          |
//! |----------------------------------|---------------------------------------------|-----------|-----------------|
//! | worker, a restart is left        | restarts all workers, once                  | 0         | none, a notice  |
//! | worker, none is left             | fails                                       | 1         | the box, it is the root cause |
//! | worker, stopped and asked to end | waits for it until it is asked to end       | 1         | ended by SIGTERM |
//! | descendant                       | continues unchanged                         | 0         | none            |
//! | guard                            | fails, without a (further) restart          | 1         | names the guard |
//! | guard, when all workers had succeeded  | has succeeded already                 | 0         | none            |
//! | launcher                         | is gone                                     | signal    | none            |

use std::ops::RangeInclusive;

use support::launch::Outcome;
use support::seen::Report;

use crate::Signalled;
use crate::plan::{Attack, Plan, Stage, Target};

/// How the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Succeeds,
    /// The report, with the signalled worker as root cause.
    WorkerBlamed,
    GuardBlamed,
    /// Only when the launcher is signalled.
    AskedToEnd,
    /// The launcher itself was signalled.
    Signalled,
}

/// What must follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// One of these: at the edge of a stage it may be over at the signal.
    pub endings: Vec<Ending>,
    /// How often all workers are started again.
    pub restarts: RangeInclusive<u32>,
}

/// The table above.
pub fn expected(plan: &Plan) -> Expected {
    let (ending, restarts) = match (plan.target, plan.attack, plan.max_restarts) {
        (Target::Launcher, _, _) => (Ending::Signalled, 0),
        (Target::Guard, _, _) => (Ending::GuardBlamed, 0),
        (Target::Worker, Attack::StopThenTerm, _) => (Ending::AskedToEnd, 0),
        (Target::Worker, _, 0) => (Ending::WorkerBlamed, 0),
        (Target::Worker, _, _) => (Ending::Succeeds, 1),
        (Target::Descendant, _, _) => (Ending::Succeeds, 0),
    };
    let mut expected = Expected { endings: vec![ending], restarts: restarts..=restarts };
    match plan.stage {
        Stage::Running => {}
        // A worker failed by itself; a descendant's end prevents no restart.
        Stage::Restarting if ending == Ending::Succeeds => expected.restarts = 1..=1,
        Stage::Restarting => expected.restarts = 0..=1,
        Stage::Ending => expected.endings.push(Ending::Succeeds),
    }
    expected
}

impl Ending {
    /// What the launcher's own end looks like.
    pub fn code_and_signal(self, plan: &Plan) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Succeeds => (Some(0), None),
            Self::WorkerBlamed | Self::GuardBlamed | Self::AskedToEnd => (Some(1), None),
            Self::Signalled => (None, Some(plan.attack.signal() as i32)),
        }
    }
}

/// Returns where the run differs.
pub fn contradictions(
    plan: &Plan,
    expected: &Expected,
    signalled: Option<&Signalled>,
    asked_to_end: bool,
    outcome: &Outcome,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("does not hold: {what}"));
        }
    };
    // What it swept may be of another test on this machine.
    let stderr: String = outcome
        .stderr
        .split_inclusive('\n')
        .filter(|line| !line.contains("left behind by a killed launcher"))
        .collect();
    let stderr = &stderr;
    let says = |what: &str| stderr.contains(what);
    let is = (outcome.code, outcome.signal);
    let ought = expected.endings.iter().map(|ending| (*ending, ending.code_and_signal(plan)));
    let ought: Vec<_> = ought.collect();
    let Some((ending, _)) = ought.iter().find(|(_, ought)| *ought == is) else {
        return vec![format!("it ends with (code, signal) {is:?} where one of these belongs: {ought:?}")];
    };
    must(!says("panicked"), "no panic");
    // A launcher that is gone, or that lost its guard, starts no worker.
    let ready = |rank: u32, attempt: u32| outcome.file(&format!("worker.{rank}.{attempt}")).is_some();
    let attempts = (0..4).filter(|attempt| (0..plan.workers).any(|rank| ready(rank, *attempt))).max();
    must(
        expected.restarts.contains(&attempts.unwrap_or(0)),
        &format!("the last attempt is in {:?}; it is {attempts:?}", expected.restarts),
    );
    let in_box = says("ChildFailedError");
    must(in_box == (*ending == Ending::WorkerBlamed), "the box is there when a worker is to blame");
    let rank = signalled.and_then(|signalled| signalled.rank).unwrap_or(0);
    let pid = signalled.map_or(0, |signalled| signalled.process.pid);
    let (signal, name) = (plan.attack.signal() as i32, plan.attack.signal().as_str());
    match ending {
        Ending::Succeeds if plan.target == Target::Worker => {
            let of = plan.max_restarts;
            must(
                says(&format!(
                    "rank {rank} (local rank {rank}, pid {pid}) was killed by {name}; restarting all workers (restart 1 of {of})"
                )),
                "the restart is told",
            );
        }
        Ending::Succeeds if plan.stage == Stage::Restarting => {
            must(says("exited with code 3; restarting all workers (restart 1 of"), "the restart is told");
        }
        Ending::Succeeds => must(!says("dlrover-run:"), "it has nothing to tell"),
        Ending::WorkerBlamed => match Report::read(stderr) {
            Ok(report) => {
                let root = &report.root_cause;
                must(root.pid == pid, "the root cause's pid is the signalled process's");
                must(root.rank == format!("{rank} (local_rank: {rank})"), "its rank is");
                must(
                    root.exitcode.starts_with(&format!("-{signal} (pid: PID)")),
                    "its exit code is the signal",
                );
                must(
                    says(&format!("rank {rank} (local rank {rank}, pid {pid}) failed first")),
                    "it is explained",
                );
            }
            Err(error) => must(false, &format!("the box can be read: {error}")),
        },
        Ending::GuardBlamed => {
            must(says(&format!("guard process was killed by {name}")), "the guard is named");
        }
        Ending::AskedToEnd => {
            must(asked_to_end, "a stopped worker does not end by itself");
            must(says("stopped by SIGTERM; no worker is left"), "it reports the signal");
        }
        Ending::Signalled => must(!says("dlrover-run: error"), "the dead say nothing"),
    }
    wrong
}
