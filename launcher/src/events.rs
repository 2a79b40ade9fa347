//! `--event-log-handler=console`: torchrun's structured events, one JSON document a line on standard error,
//! with the same names and fields, so that what reads torchrun's reads ours.

use std::{collections::BTreeMap, io, time::Instant};

use agent::{Console, Report};
use rules::{
    Attempt, LocalRank,
    failure::{Failure, GroupFailure, Outcome, WorkerFailure},
    push::Push,
    worker_group::{Effect, Event},
    world::{Assignment, Place},
};
use serde::Serialize as _;
use serde_json::{Serializer, Value, json, ser::Formatter};

use crate::host_names::fqdn;

/// What all events of a run have in common.
#[derive(Debug)]
pub struct EventLog {
    console: Console,
    run_id: String,
    role: String,
    backend: &'static str,
    /// The program that workers run, without its directory.
    entry_point: String,
    host: String,
    started: Instant,
    joined: Instant,
    attempt: Attempt,
    round: Option<Assignment>,
    pids: BTreeMap<LocalRank, i32>,
}

/// The fields of one event.
#[derive(Default)]
struct LogRecord<'a> {
    state: &'a str,
    worker: Option<(LocalRank, Place)>,
    failure: Option<&'a WorkerFailure>,
    raw_error: Option<String>,
    duration_ms: Option<f64>,
    total_run_secs: u64,
}

impl EventLog {
    /// An event log on the console.
    #[must_use]
    pub fn new(console: Console, run_id: &str, role: &str, backend: &'static str, program: &str) -> Self {
        let now = Instant::now();
        Self {
            console,
            run_id: run_id.to_owned(),
            role: role.to_owned(),
            backend,
            entry_point: program.rsplit('/').next().unwrap_or(program).to_owned(),
            host: fqdn(),
            started: now,
            joined: now,
            attempt: Attempt(0),
            round: None,
            pids: BTreeMap::new(),
        }
    }

    /// Records an event of the agent and the effects that were decided.
    pub fn observe(&mut self, event: &Event, effects: &[Effect]) {
        match event {
            Event::Pushed(Push::Assigned(assignment)) => self.on_assigned(assignment, effects),
            Event::WorkerStarted { local_rank, pid, .. } => {
                self.pids.insert(*local_rank, *pid);
                self.print(&LogRecord {
                    state: "START",
                    worker: self.placed(*local_rank),
                    ..LogRecord::default()
                });
            }
            _ => {}
        }
        let join = effects.iter().find(|effect| matches!(effect, Effect::Join { .. }));
        if let Some(Effect::Join { attempt, .. }) = join {
            self.joined = Instant::now();
            self.attempt = *attempt;
        }
    }

    fn on_assigned(&mut self, assignment: &Assignment, effects: &[Effect]) {
        let prepare = effects.iter().find(|effect| matches!(effect, Effect::Prepare { .. }));
        let Some(Effect::Prepare { attempt, .. }) = prepare else { return };
        // A secondary failure that was found after the node had joined has given its restart back.
        self.attempt = *attempt;
        let duration_ms = Some(self.joined.elapsed().as_secs_f64() * 1000.0);
        self.print(&LogRecord { state: "RENDEZVOUS", duration_ms, ..LogRecord::default() });
        // Ranks come with the round here, so assigning them takes no time of its own.
        self.print(&LogRecord {
            state: "ASSIGN_WORKER_RANKS",
            duration_ms: Some(0.0),
            ..LogRecord::default()
        });
        self.round = Some(assignment.clone());
        self.pids.clear();
    }

    /// Logs the end of the run.
    pub fn ended(&self, report: &Report) {
        let total_run_secs = self.started.elapsed().as_secs();
        let none = GroupFailure {
            attempt: report.attempt,
            failures: Vec::new(),
            ended_before: Vec::new(),
            has_oom_counter: true,
        };
        let (state, failed) = match &report.outcome {
            Outcome::Succeeded => ("SUCCEEDED", &none),
            Outcome::Failed(Failure::Workers(group)) => ("FAILED", group),
            // torchrun reports no workers when the agent itself fails or is interrupted.
            Outcome::Failed(failure) => return self.agent_failed(&failure.to_string(), total_run_secs),
            Outcome::Interrupted(signal) => {
                return self.agent_failed(&format!("got signal: {signal}"), total_run_secs);
            }
        };
        for local_rank in self.pids.keys() {
            let failure = failed.failures.iter().find(|failure| failure.local_rank == *local_rank);
            let state = if failure.is_none() && state == "FAILED" { "TERMINATED" } else { state };
            let evidence = report.workers.get(local_rank).and_then(|worker| worker.error_file.as_ref());
            let document = evidence.and_then(|file| file.as_ref().ok()).map(|file| &file.document);
            let raw_error = failure.map(|_| match document {
                Some(document) => as_python(document),
                None => as_python(&json!({"message": "<NONE>"})),
            });
            let worker = self.placed(*local_rank);
            self.print(&LogRecord {
                state,
                worker,
                failure,
                raw_error,
                total_run_secs,
                ..LogRecord::default()
            });
        }
        // torchrun: the agent succeeded in running the workers, however they ended.
        self.print(&LogRecord { state: "SUCCEEDED", total_run_secs, ..LogRecord::default() });
    }

    fn agent_failed(&self, reason: &str, total_run_secs: u64) {
        let raw_error = Some(reason.to_owned());
        self.print(&LogRecord { state: "FAILED", raw_error, total_run_secs, ..LogRecord::default() });
    }

    fn placed(&self, local_rank: LocalRank) -> Option<(LocalRank, Place)> {
        Some((local_rank, self.round.as_ref()?.place(local_rank)?))
    }

    fn print(&self, record: &LogRecord<'_>) {
        // The field's documented meaning; torchrun itself writes 0 into it.
        self.console.print(as_python(&self.line(record, chrono::Utc::now().timestamp_millis())));
    }

    fn line(&self, record: &LogRecord<'_>, unix_millis: i64) -> Value {
        let nodes = self.round.as_ref().map(|round| round.nodes);
        let mut inner = json!({"group_world_size": nodes, "entry_point": self.entry_point});
        if let (Some((local_rank, place)), Some(inner)) = (record.worker, inner.as_object_mut()) {
            // Lists of one, as torchrun's.
            inner.insert("local_rank".into(), json!([local_rank.0]));
            inner.insert("role_rank".into(), json!([place.role_rank]));
            inner.insert("role_world_size".into(), json!([place.role_world_size]));
            let exit_code = record.failure.map(|failure| failure.cause.python_code());
            inner.insert("exit_code".into(), json!([exit_code]));
            // torchrun knows only the pid of a worker that failed.
            let pid =
                record.failure.map(|failure| failure.pid).or_else(|| self.pids.get(&local_rank).copied());
            inner.insert("worker_pid".into(), json!([pid]));
        }
        let worker_id = record.worker.and_then(|(local_rank, _)| self.pids.get(&local_rank));
        json!({
            "name": format!("torchelastic.worker.status.{}", record.state),
            "source": if record.worker.is_some() { "WORKER" } else { "AGENT" },
            "timestamp": unix_millis,
            "metadata": {
                "run_id": self.run_id,
                "global_rank": record.worker.map(|(_, place)| place.rank.0),
                "group_rank": self.round.as_ref().map(|round| round.node_rank.0),
                "worker_id": worker_id.map(ToString::to_string),
                "role": self.role,
                "hostname": self.host,
                "state": record.state,
                "total_run_time": record.total_run_secs,
                "rdzv_backend": self.backend,
                "raw_error": record.raw_error,
                "metadata": as_python(&inner),
                "agent_restarts": self.attempt.0,
                "duration_ms": record.duration_ms,
            }
        })
    }
}

/// JSON with blanks behind commas and colons, as Python writes it: people grep for it.
fn as_python(value: &Value) -> String {
    struct Blanks;
    impl Formatter for Blanks {
        fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }

        fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }

        fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
            out.write_all(b": ")
        }
    }
    let mut out = Vec::new();
    match value.serialize(&mut Serializer::with_formatter(&mut out, Blanks)) {
        Ok(()) => String::from_utf8_lossy(&out).into_owned(),
        // Writing a Value to memory does not fail; if it ever does, the plain form is JSON all the same.
        Err(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rules::{NodeRank, Round};

    use super::*;

    #[test]
    fn a_started_worker_has_torchruns_fields() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        let console = Console::new(writer.try_clone().unwrap(), writer);
        let mut log = EventLog::new(console, "j1", "default", "c10d", "/usr/bin/python3");
        let assignment = Assignment {
            fence: None,
            restore: Vec::new(),
            round: Round(0),
            node_rank: NodeRank(0),
            nodes: 1,
            local_world_size: 2,
            role: "default".into(),
            first_rank: 0,
            world_size: 2,
            first_role_rank: 0,
            role_world_size: 2,
            master_addr: "localhost".into(),
            master_port: 1,
            restore_from_disk: false,
        };
        let prepare = Effect::Prepare { assignment: assignment.clone(), attempt: Attempt(0) };
        log.attempt = Attempt(1);
        log.observe(&Event::Pushed(Push::Assigned(assignment)), &[prepare]);
        assert_eq!(log.attempt, Attempt(0), "restarts that were given back while joining");
        log.pids.insert(LocalRank(1), 77);
        let record = LogRecord { state: "START", worker: log.placed(LocalRank(1)), ..LogRecord::default() };
        let line = log.line(&record, 1_763_683_200_123);
        assert_eq!(line["name"], "torchelastic.worker.status.START");
        assert_eq!(line["source"], "WORKER");
        let metadata = &line["metadata"];
        assert_eq!((&metadata["global_rank"], &metadata["worker_id"]), (&json!(1), &json!("77")));
        let inner: Value = serde_json::from_str(metadata["metadata"].as_str().unwrap()).unwrap();
        assert_eq!((&inner["local_rank"], &inner["worker_pid"]), (&json!([1]), &json!([77])));
        assert_eq!(line["timestamp"], 1_763_683_200_123_i64);
        assert_eq!(inner["entry_point"], "python3");
        assert!(
            as_python(&line)
                .starts_with(r#"{"name": "torchelastic.worker.status.START", "source": "WORKER""#)
        );
    }
}
