//! What a node finds out about itself: whether its processor, its loopback and its accelerators work, and how fast
//! it computes.

use std::{collections::BTreeMap, time::Duration};

use diagnosis::network_check::{ComputeTime, LocalCheck, LocalFault};
use tokio::sync::watch;

use super::{
    handle::{Limits, ProbeRun, Subscribers, supervise},
    process::{self, StartError},
};
use crate::{
    GRACE, Helper,
    wire::{End, Task},
};

/// How a node checks itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPlan {
    /// The check is killed then: what it was at hangs, and that is a fault.
    pub deadline: Duration,
    /// Whether accelerators are looked at, where there are any.
    pub accelerators: bool,
    /// What accelerators are called by, where that is known: their places on the bus, and the numbers that the
    /// inventory has for them.
    pub places: BTreeMap<String, u32>,
    /// How its process is started.
    pub helper: Helper,
}

impl Default for LocalPlan {
    /// Ten seconds, with accelerators.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            accelerators: true,
            places: BTreeMap::new(),
            helper: Helper::default(),
        }
    }
}

/// Checks this node, in a process of its own, on a tokio runtime. Never fails: a check that dies or hangs is a fault
/// too, of the component `probe`, or of the one that it was at.
pub async fn check_locally(plan: LocalPlan) -> LocalCheck {
    let task = Task::Local { accelerators: plan.accelerators, places: plan.places.clone() };
    let fault = match run(&plan, &task, None).await {
        Ok(ProbeRun { end: Some(End::Local(check)), .. }) => return check,
        Ok(run) => unanswered(&plan, &run),
        Err(error) => LocalFault::unanswered(None, rules::chain(&error)),
    };
    LocalCheck { fault: Some(fault), ..LocalCheck::default() }
}

/// Measures the time of the compute probe again, `times` times, all of one kind. Empty when it cannot be measured, or
/// is ended before by true in `cancel` or the end of its sender.
pub async fn measure_compute(times: u32, plan: LocalPlan, cancel: watch::Receiver<bool>) -> Vec<ComputeTime> {
    let task = Task::Compute { times, accelerators: plan.accelerators };
    match run(&plan, &task, Some(cancel.clone())).await {
        Ok(ProbeRun { end: Some(End::Compute(times)), .. }) => times,
        // Nobody waits for them any more.
        Ok(_) if *cancel.borrow() || cancel.has_changed().is_err() => Vec::new(),
        Ok(run) => {
            let LocalFault { component, reason } = unanswered(&plan, &run);
            tracing::warn!(component, reason, "the compute probe gave no times");
            Vec::new()
        }
        Err(error) => {
            tracing::warn!(error = rules::chain(&error), "the compute probe did not start");
            Vec::new()
        }
    }
}

async fn run(
    plan: &LocalPlan,
    task: &Task,
    cancel: Option<watch::Receiver<bool>>,
) -> Result<ProbeRun, StartError> {
    let started = process::start(&plan.helper, task, None)?;
    let limits = Limits { cancel, deadline: Some(plan.deadline), grace: GRACE };
    Ok(supervise(started, limits, Subscribers::default()).await)
}

fn unanswered(plan: &LocalPlan, run: &ProbeRun) -> LocalFault {
    LocalFault::unanswered(run.at.as_deref(), run.no_answer(plan.deadline))
}
