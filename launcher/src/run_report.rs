//! `--report-json`: the outcome of a run as a JSON document, for schedulers and scripts. Its schema is
//! docs/run-report.v1.schema.json.

mod file;

use std::{cell::RefCell, path::PathBuf, rc::Rc, time::Instant};

use agent::{Report, WorkerEvidence};
use chrono::{DateTime, SecondsFormat, Utc};
use processes::host_name;
use rules::{
    failure::{ExitCause, Failure, Outcome, WorkerFailure},
    push::Push,
    root_cause::RootCause,
    signal_name::signal_text,
    worker_group::{Effect, Event},
    world::Assignment,
};
use serde_json::{Value, json};

pub(crate) use self::file::ReportFileError;
use crate::{
    failure::{self, OomCounter},
    resolve::LaunchPlan,
};

/// The name of the document's schema.
const SCHEMA: &str = "dlrover.run-report/v1";

/// The report of a run that is on. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct RunReport {
    path: Option<PathBuf>,
    run_id: String,
    max_restarts: u32,
    host: String,
    began: Instant,
    began_at: DateTime<Utc>,
    /// What the workers were assigned last.
    world: Rc<RefCell<Option<Assignment>>>,
}

impl RunReport {
    /// The report of this plan.
    pub(crate) fn new(plan: &LaunchPlan) -> Self {
        Self {
            path: plan.report_json.clone(),
            run_id: plan.agent.run_id.to_string(),
            max_restarts: plan.agent.max_restarts,
            host: host_name(),
            began: Instant::now(),
            began_at: Utc::now(),
            world: Rc::default(),
        }
    }

    /// Sees an event of the agent and the effects that were decided.
    pub(crate) fn observe(&self, event: &Event, effects: &[Effect]) {
        if let Event::Pushed(Push::Assigned(assignment)) = event
            && effects.iter().any(|effect| matches!(effect, Effect::Prepare { .. }))
        {
            self.world.replace(Some(Assignment::clone(assignment)));
        }
    }

    /// Writes the outcome of a run, if a file is wanted.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, report: &Report, exit_code: u8) -> Result<(), ReportFileError> {
        self.write_document(|| self.document(report, exit_code))
    }

    /// The same for a run that could not start.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_start_error(&self, error: &dyn std::error::Error) -> Result<(), ReportFileError> {
        self.write_document(|| self.common("failed", failure::FAILED, Some(rules::chain(error))))
    }

    fn write_document(&self, document: impl FnOnce() -> Value) -> Result<(), ReportFileError> {
        let Some(path) = &self.path else { return Ok(()) };
        file::write(path, format!("{:#}\n", document()))
    }

    /// What every run has.
    fn common(&self, outcome: &str, exit_code: u8, reason: Option<String>) -> Value {
        let world = self.world.borrow();
        let node_rank = world.as_ref().map(|world| world.node_rank.0);
        let world = world.as_ref().map(|world| {
            json!({
                "round": world.round.0,
                "nodes": world.nodes,
                "world_size": world.world_size,
                "local_world_size": world.local_world_size,
                "first_rank": world.first_rank,
                "master_addr": world.master_addr,
                "master_port": world.master_port,
            })
        });
        json!({
            "schema": SCHEMA,
            "version": env!("CARGO_PKG_VERSION"),
            "run_id": self.run_id,
            "host": self.host,
            "outcome": outcome,
            "exit_code": exit_code,
            "reason": reason,
            "started": time(self.began_at),
            "ended": time(Utc::now()),
            "seconds": self.began.elapsed().as_millis() as f64 / 1000.0,
            "restarts": 0,
            "max_restarts": self.max_restarts,
            "node_rank": node_rank,
            "world": world,
            "root_cause": null,
            "first_failure": null,
            "other_failures": [],
            "log_folder": null,
        })
    }

    fn document(&self, report: &Report, exit_code: u8) -> Value {
        let (outcome, reason) = match &report.outcome {
            Outcome::Succeeded => ("succeeded", None),
            Outcome::Failed(failure) => ("failed", Some(failure.to_string())),
            Outcome::Interrupted(signal) => ("stopped", Some(format!("stopped by {}", signal_text(*signal)))),
        };
        let mut document = self.common(outcome, exit_code, reason);
        document["restarts"] = report.attempt.0.into();
        document["log_folder"] = report.run_dir.as_ref().map(|path| path.to_string_lossy()).into();
        if let Outcome::Failed(Failure::Workers(group)) = &report.outcome {
            let failures = failure::dated(group, &report.workers);
            let root = failure::root_of(&failures, &report.workers);
            let counter = OomCounter::of(group);
            let is_first = |index: usize| index == root && report.root_cause.is_none();
            let mut all: Vec<Value> = failures
                .iter()
                .enumerate()
                .map(|(index, failure)| {
                    let reason = match is_first(index) {
                        true => failure::explained(failure, counter),
                        false => failure::explained_later(failure, counter),
                    };
                    self.failure(failure, reason, report.workers.get(&failure.local_rank))
                })
                .collect();
            if is_first(root) && root < all.len() {
                document["first_failure"] = all.remove(root);
            }
            document["other_failures"] = all.into();
        }
        document["root_cause"] = failure::root_cause_of(report).into();
        if let (Outcome::Failed(_), Some(root_cause)) = (&report.outcome, &report.root_cause) {
            document["first_failure"] = of_another_node(root_cause);
        }
        document
    }

    /// A worker of this node that failed.
    fn failure(&self, failure: &WorkerFailure, reason: String, evidence: Option<&WorkerEvidence>) -> Value {
        let (exit_code, signal) = ended(failure);
        let lines = evidence.map(|worker| failure::last_lines(worker, failure));
        let printed = evidence.map(|worker| worker.detail(failure.clone()).message().to_owned());
        let printed = printed.filter(|message| !message.is_empty());
        let error_file = evidence.and_then(|worker| worker.error_file.as_ref()?.as_ref().ok());
        let path = |path: Option<&PathBuf>| path.map(|path| path.to_string_lossy().into_owned());
        json!({
            "rank": failure.rank.0,
            "local_rank": failure.local_rank.0,
            "node_rank": self.world.borrow().as_ref().map(|world| world.node_rank.0),
            "host": self.host,
            "pid": failure.pid,
            "exit_code": exit_code,
            "signal": signal,
            "out_of_memory": failure.out_of_memory,
            "time": DateTime::from_timestamp(failure.unix_secs, 0).map(whole_seconds),
            "reason": reason,
            "last_lines": lines.unwrap_or_default(),
            "message": error_file.and_then(|file| message(&file.document)).map(str::to_owned).or(printed),
            "error_file": path(error_file.map(|file| &file.path)),
            "stdout_log": path(evidence.and_then(|worker| worker.stdout_log.as_ref())),
            "stderr_log": path(evidence.and_then(|worker| worker.stderr_log.as_ref())),
        })
    }
}

/// A worker of another node, as the job master told of it.
fn of_another_node(root_cause: &RootCause) -> Value {
    let RootCause { node, detail, .. } = root_cause;
    let failure = &detail.failure;
    let (exit_code, signal) = ended(failure);
    json!({
        "rank": failure.rank.0,
        "local_rank": failure.local_rank.0,
        "node_rank": node.rank.map(|rank| rank.0),
        "host": node.host,
        "pid": failure.pid,
        "exit_code": exit_code,
        "signal": signal,
        "out_of_memory": failure.out_of_memory,
        "time": DateTime::from_timestamp(failure.unix_secs, 0).map(whole_seconds),
        "reason": failure::explained(failure, OomCounter::OfAnotherNode),
        "last_lines": detail.lines(),
        "message": Some(detail.message()).filter(|message| !message.is_empty()),
        "error_file": null,
        "stdout_log": null,
        "stderr_log": null,
    })
}

/// The exit code, or the signal.
fn ended(failure: &WorkerFailure) -> (Option<i32>, Option<String>) {
    match failure.cause {
        ExitCause::Code(code) => (Some(code), None),
        ExitCause::Signal(signal) => (None, Some(signal_text(signal))),
    }
}

/// The message of an error file: a text, or the one inside the object of `@record`.
fn message(document: &Value) -> Option<&str> {
    let message = document.get("message")?;
    message.as_str().or_else(|| message.get("message")?.as_str())
}

/// Of the end of a worker more is not known.
fn whole_seconds(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}
