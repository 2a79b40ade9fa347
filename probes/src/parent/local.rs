//! Tests of a node alone: processor, loopback and accelerators, and how fast it computes.

use std::{collections::BTreeMap, time::Duration};

use diagnosis::network_check::{ComputeTime, LocalCheck, LocalFault};
use tokio::sync::watch;

use super::{
    handle::{Limits, ProbeRun, Subscribers, supervise},
    process::{self, StartError},
};
use crate::{
    GRACE, ProbeProgram,
    wire::{End, Task},
};

/// How a node checks itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPlan {
    /// The check is killed then; its current step is at fault.
    pub deadline: Duration,
    /// Whether accelerators are checked, if there are any.
    pub accelerators: bool,
    /// The numbers of accelerators in the inventory, by PCI address.
    pub places: BTreeMap<String, u32>,
    /// How its process is started.
    pub program: ProbeProgram,
}

impl Default for LocalPlan {
    /// Ten seconds, with accelerators.
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            accelerators: true,
            places: BTreeMap::new(),
            program: ProbeProgram::default(),
        }
    }
}

/// Checks this node, in a process of its own, on a tokio runtime. Never fails: a check that dies or hangs is a fault
/// too, of its current step or of the component `probe`.
pub async fn check_locally(plan: LocalPlan) -> LocalCheck {
    let task = Task::Local { accelerators: plan.accelerators, places: plan.places.clone() };
    let fault = match run(&plan, &task, None).await {
        Ok(ProbeRun { end: Some(End::Local(check)), .. }) => return check,
        Ok(run) => unanswered(&plan, &run),
        Err(error) => LocalFault::unanswered(None, rules::chain(&error)),
    };
    LocalCheck { fault: Some(fault), ..LocalCheck::default() }
}

/// Repeats the compute probe `times` times, all of one kind. Empty when it cannot be measured, or is cancelled by
/// true in `cancel` or the end of its sender.
pub async fn measure_compute(times: u32, plan: LocalPlan, cancel: watch::Receiver<bool>) -> Vec<ComputeTime> {
    let task = Task::Compute { times, accelerators: plan.accelerators };
    match run(&plan, &task, Some(cancel.clone())).await {
        Ok(ProbeRun { end: Some(End::Compute(times)), .. }) => times,
        // The times are not awaited any more.
        Ok(_) if *cancel.borrow() || cancel.has_changed().is_err() => Vec::new(),
        Ok(run) => {
            let LocalFault { component, reason } = unanswered(&plan, &run);
            tracing::warn!(%component, reason, "the compute probe gave no times");
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
    let started = process::start(&plan.program, task, None)?;
    let limits = Limits { cancel, deadline: Some(plan.deadline), grace: GRACE };
    Ok(supervise(started, limits, Subscribers::default()).await)
}

fn unanswered(plan: &LocalPlan, run: &ProbeRun) -> LocalFault {
    LocalFault::unanswered(run.at.as_deref(), run.no_answer(plan.deadline))
}
