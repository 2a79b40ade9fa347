//! What must follow.
//!
//! | struck                              | the run                                  | exit code | report          |
//! |-------------------------------------|------------------------------------------|-----------|-----------------|
//! | worker, a restart is left           | restarts all workers, once               | 0         | none, a notice  |
//! | worker, none is left                | fails                                    | 1         | the box, it is the root cause |
//! | worker, stopped and asked to end    | waits for it until it is asked to end    | 1         | ended by SIGTERM |
//! | descendant                          | goes on as if nothing had happened       | 0         | none            |
//! | guard                               | fails, without a restart                 | 1         | names the guard |
//! | launcher                            | is gone                                  | signal    | none            |

use support::launch::Outcome;
use support::seen::Report;

use crate::Victim;
use crate::plan::{Blow, Plan, Target};

/// How the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Succeeds,
    /// The box, with the struck worker as root cause.
    WorkerBlamed,
    GuardBlamed,
    /// Only when somebody asks the launcher.
    AskedToEnd,
    /// The launcher itself was struck.
    Struck,
}

/// What must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub ending: Ending,
    /// How often all workers are started again.
    pub restarts: u32,
}

/// The table above.
pub fn expected(plan: &Plan) -> Expected {
    let (ending, restarts) = match (plan.target, plan.blow, plan.max_restarts) {
        (Target::Launcher, _, _) => (Ending::Struck, 0),
        (Target::Guard, _, _) => (Ending::GuardBlamed, 0),
        (Target::Worker, Blow::StopThenTerm, _) => (Ending::AskedToEnd, 0),
        (Target::Worker, _, 0) => (Ending::WorkerBlamed, 0),
        (Target::Worker, _, _) => (Ending::Succeeds, 1),
        (Target::Descendant, _, _) => (Ending::Succeeds, 0),
    };
    Expected { ending, restarts }
}

/// Where the run did otherwise.
pub fn contradictions(
    plan: &Plan,
    expected: &Expected,
    victim: &Victim,
    asked_to_end: bool,
    outcome: &Outcome,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("does not hold: {what}"));
        }
    };
    // What it swept is of another test that runs on this machine, and none of our business.
    let stderr: String =
        outcome.stderr.split_inclusive('\n').filter(|line| !line.contains("had left behind")).collect();
    let stderr = &stderr;
    let says = |what: &str| stderr.contains(what);
    let is = (outcome.code, outcome.signal);
    let ought = expected.code_and_signal(plan);
    must(is == ought, &format!("it ends with (code, signal) {ought:?}; it is {is:?}"));
    must(!says("panicked"), "nobody panics");
    // A launcher that is gone, or that lost its guard, starts nobody.
    let ready = |rank: u32, attempt: u32| outcome.file(&format!("worker.{rank}.{attempt}")).is_some();
    let attempts = (0..4).filter(|attempt| (0..plan.workers).any(|rank| ready(rank, *attempt))).max();
    must(
        attempts.unwrap_or(0) == expected.restarts,
        &format!("the last attempt is {}; it is {attempts:?}", expected.restarts),
    );
    let in_box = says("ChildFailedError");
    must(in_box == (expected.ending == Ending::WorkerBlamed), "the box is there when a worker is to blame");
    let rank = victim.rank.unwrap_or(0);
    let (pid, signal) = (victim.process.pid, plan.blow.signal());
    match expected.ending {
        Ending::Succeeds if expected.restarts > 0 => {
            let of = plan.max_restarts;
            must(
                says(&format!(
                    "rank {rank} (local rank {rank}, pid {pid}) was ended by signal {signal}; restarting all workers (restart 1 of {of})"
                )),
                "the restart is told",
            );
        }
        Ending::Succeeds => must(!says("dlrover-run:"), "it has nothing to tell"),
        Ending::WorkerBlamed => match Report::read(stderr) {
            Ok(report) => {
                let root = &report.root_cause;
                must(root.pid == pid, "the root cause's pid is the victim's");
                must(root.rank == format!("{rank} (local_rank: {rank})"), "its rank is");
                must(
                    root.exitcode.starts_with(&format!("-{signal} (pid: PID)")),
                    "its exit code is the blow",
                );
                must(
                    says(&format!("rank {rank} (local rank {rank}, pid {pid}) failed first")),
                    "it is explained",
                );
            }
            Err(error) => must(false, &format!("the box can be read: {error}")),
        },
        Ending::GuardBlamed => {
            must(says(&format!("guard process was ended by signal {signal}")), "the guard is named");
        }
        Ending::AskedToEnd => {
            must(asked_to_end, "a stopped worker does not end by itself");
            must(says("ended by SIGTERM; no worker is left"), "it says who ended it");
        }
        Ending::Struck => must(!says("dlrover-run: error"), "the dead say nothing"),
    }
    wrong
}
