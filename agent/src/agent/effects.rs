//! The effects of the loop, started: messages to the master and to the guard, and tasks whose end is an event.

use std::{sync::Arc, time::Duration};

use checkpoint::message::ShardState;
use diagnosis::network_check::LocalCheck;
use processes::{launcher_id::LauncherId, run_blocking};
use rules::{
    Moment, Round, chain,
    check_order::{CheckReport, Checked},
    fence::{Juror, guard_after},
    node::JoinRequest,
    worker_group::{Effect, Event},
    world::Assignment,
};
use tracing::warn;

use super::{Agent, Input, ending};
use crate::{
    config::AgentConfig,
    guard::frame::ToGuard,
    master_link::{MasterAt, ToMaster},
    prober::{Command, Prober},
    progress::COUNTER,
    questions, workers,
};

impl Agent {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Join { after, checked, shards, .. } => self.join(after, checked, shards),
            Effect::TakeInventory => {
                let prober = Self::prober(&mut self.prober, &self.config, &self.launcher_id);
                prober.take_inventory(self.input_sender.clone());
            }
            Effect::WatchGpus { and_memory } => {
                let prober = Self::prober(&mut self.prober, &self.config, &self.launcher_id);
                prober.watch_gpus(and_memory, self.input_sender.clone());
            }
            Effect::ReportInventory { inventory } => self.send_to_master(ToMaster::Inventory(inventory)),
            Effect::CheckLocally => {
                let prober = Self::prober(&mut self.prober, &self.config, &self.launcher_id);
                prober.check_locally(self.input_sender.clone());
            }
            Effect::Probe { order } => {
                let prober = Self::prober(&mut self.prober, &self.config, &self.launcher_id);
                prober.probe(order, self.input_sender.clone());
            }
            Effect::CancelProbe { at } => {
                if let Some(prober) = &mut self.prober {
                    prober.cancel(at);
                }
            }
            Effect::ReportCheck { report } => {
                self.send_to_master(ToMaster::Checked { report, is_progress: false })
            }
            Effect::ReportTestProgress { at, probed } => {
                let report = CheckReport { at, probed, compute: Some(Vec::new()) };
                self.send_to_master(ToMaster::Checked { report, is_progress: true });
            }
            Effect::Resume { claim } => self.send_to_master(ToMaster::Resume(self.request(None), claim)),
            Effect::HostStore { round, fresh_port } => self.host_store(round, fresh_port),
            Effect::ReportHosting { round, master_addr, master_port } => {
                self.send_to_master(ToMaster::Hosting { round, master_addr, master_port });
            }
            Effect::ReportFailure { round, reason, gives_up, worker } => {
                let has_detail = worker.is_some();
                let noticed = worker.as_ref().and_then(|worker| self.exits.get(&worker.pid)).copied();
                self.send_to_master(ToMaster::Failure { round, reason, gives_up, has_detail, noticed });
                if let Some(worker) = worker {
                    self.report_detail(round, *worker);
                }
            }
            Effect::ReportProgress { report } => self.send_to_master(ToMaster::Progress(report)),
            Effect::DumpStacks { assignment, episode } => {
                let node = self.config.node_id.clone();
                let of = (node, self.attributes.host_name.as_str(), self.launcher_id.to_string());
                let to = (self.master.messages.clone(), self.input_sender.clone());
                let folders = self.config.stack_folders.clone();
                self.progress.dump(&assignment, episode, folders, of, to);
            }
            Effect::AcknowledgeEnd => self.send_to_master(ToMaster::AcknowledgeEnd),
            Effect::Prepare { assignment, attempt } => self.prepare(assignment, attempt),
            Effect::Spawn { round } => self.spawn(round),
            Effect::StartSaver => self.start_saver(),
            Effect::TellSaver { message } => self.checkpoints.tell(*message),
            Effect::ReportCheckpoint { report } => self.send_to_master(ToMaster::Checkpoint(report)),
            Effect::ReportCheckpointProgress { progress } => {
                self.send_to_master(ToMaster::CheckpointProgress(progress));
            }
            Effect::StartTemplate { is_idle } => self.start_template(is_idle),
            Effect::EndTemplate => self.send_to_guard(&ToGuard::EndTemplate),
            Effect::SignalTree { signal } => self.send_to_guard(&ToGuard::SignalTree { signal }),
            Effect::SignalWorkers { signal } => self.send_to_guard(&ToGuard::SignalWorkers { signal }),
            Effect::KillWorker { local_rank } => self.send_to_guard(&ToGuard::KillWorker { local_rank }),
            Effect::KillTree => self.send_to_guard(&ToGuard::KillTree),
            Effect::Ask { round, jury, timeout, of_master } => self.ask(round, jury, timeout, of_master),
            Effect::AbandonTree => self.is_abandoned = true,
            Effect::Notify(notice) => self.console.notify(&notice),
            Effect::ReportEnd { end } => self.send_to_master(ToMaster::End(end)),
            Effect::Finish { .. } => {}
        }
    }

    /// If this process hangs, the guard kills the workers in time.
    pub(super) fn fence(&mut self, now: Moment) {
        let kill_at = self.group.kill_at();
        if std::mem::replace(&mut self.kill_at, kill_at) != kill_at {
            let lease = self.group.lease().unwrap_or_default();
            let within = kill_at.map(|kill_at| (kill_at - now) + guard_after(lease));
            self.send_to_guard(&ToGuard::Fence { within });
        }
    }

    fn ask(&self, round: Round, jury: Vec<Juror>, timeout: Duration, of_master: bool) {
        let (key, input_sender) = (self.question_key.clone(), self.input_sender.clone());
        let MasterAt { host, port, .. } = self.master_at.clone();
        tokio::spawn(async move {
            let is_refused = async { of_master && questions::is_refused(&host, port, timeout).await };
            let (answers, is_master_gone) =
                tokio::join!(questions::ask(&key, round, jury, timeout), is_refused);
            let event = Event::Answered { round, answers, is_master_gone };
            let _gone = input_sender.send(event.into()).await;
        });
    }

    /// A connection that has ended has sent an event about it.
    pub(super) fn send_to_master(&self, message: ToMaster) {
        let _ended = self.master.messages.send(message);
    }

    fn send_to_guard(&mut self, message: &ToGuard) {
        if let Err(error) = self.guard.send(message, Vec::new()) {
            warn!(%error, "cannot send to the guard");
        }
    }

    fn join(&mut self, after: Option<Round>, checked: Option<LocalCheck>, shards: Vec<ShardState>) {
        self.retire_generation();
        let port = self.prober.as_ref().map_or(0, Prober::port);
        let checked = checked.map(|local| Checked { local, port });
        self.send_to_master(ToMaster::Join(JoinRequest { checked, shards, ..self.request(after) }));
    }

    /// Made on first use: a run that checks nothing, on a host without accelerators, needs none.
    fn prober<'a>(
        prober: &'a mut Option<Prober>,
        config: &AgentConfig,
        launcher_id: &LauncherId,
    ) -> &'a mut Prober {
        prober.get_or_insert_with(|| {
            let grace =
                config.terms.check.as_ref().map_or(Duration::ZERO, |check| check.deadlines.kill_grace);
            let limit = config.terms.check.as_ref().map(|check| check.deadlines.hard);
            let solo_limit = limit.filter(|_| config.terms.max_nodes == 1);
            let command = config.check_command.clone().map(|line| Command { line, grace, solo_limit });
            let has_accelerators = config.attributes.accelerators.is_some();
            let switchbox = config.switchbox.clone();
            let (terms, tools) = (config.gpus.clone(), config.tool_path.clone());
            let devices = config.env.visible_devices();
            let launcher_id = launcher_id.to_string();
            Prober::new(launcher_id, has_accelerators, devices, command, terms, tools, switchbox)
        })
    }

    fn request(&self, after: Option<Round>) -> JoinRequest {
        let AgentConfig { node_id, node_rank, local_world_size, role, address, node_ip, terms, .. } =
            &*self.config;
        JoinRequest {
            node_id: node_id.clone(),
            wish: *node_rank,
            local_world_size: *local_world_size,
            role: role.clone(),
            // Empty: the one that the master sees.
            address: address.clone().unwrap_or_default(),
            node_ip: node_ip.clone(),
            terms: terms.clone(),
            attributes: self.attributes.clone(),
            after,
            checked: None,
            question_port: self.answer_server.port,
            shards: Vec::new(),
        }
    }

    /// The output of ended workers is read to its end while the next generation runs.
    fn retire_generation(&mut self) {
        while self.retired.try_join_next().is_some() {}
        if let Some(mut generation) = self.generation.take() {
            self.retired.spawn(async move {
                let _drained = generation.drain(ending::DRAIN).await;
            });
        }
    }

    fn host_store(&self, round: Round, fresh_port: bool) {
        let (store, input_sender) = (Arc::clone(&self.store), self.input_sender.clone());
        tokio::spawn(async move {
            let input = match store.lock().await.open(fresh_port).await {
                Ok(opened) => Input::Hosting { round, opened },
                Err(error) => Event::CannotHost { reason: chain(&error) }.into(),
            };
            let _gone = input_sender.send(input).await;
        });
    }

    fn prepare(&mut self, assignment: Assignment, attempt: rules::Attempt) {
        let python_path = self.config.env.inherited.iter().find(|(name, _)| name == "PYTHONPATH");
        let python_path = python_path.map(|(_, value)| value.as_os_str());
        let mut progress = self.progress.prepare(self.config.local_world_size, python_path);
        // Only the prelude that counts steps reads it, and takes it out of the environment.
        let counts = |variables: &&mut Vec<_>| variables.iter().any(|(name, _)| *name == COUNTER);
        if let Some(first) = progress.first_mut().filter(counts) {
            first.extend(self.warm.variable());
        }
        let (config, settings) = (Arc::clone(&self.config), Arc::clone(&self.settings));
        let (logs, input_sender) = (Arc::clone(&self.logs), self.input_sender.clone());
        tokio::spawn(async move {
            let round = assignment.round;
            let prepared = run_blocking(move || {
                workers::prepare(&config, &settings, &logs, &assignment, attempt, &progress)
            })
            .await;
            let input = match prepared {
                Ok(Ok(prepared)) => Input::Prepared { round, prepared: Box::new(prepared) },
                Ok(Err(error)) => Event::CannotPrepare { round, reason: chain(&error) }.into(),
                Err(error) => {
                    let reason = format!("cannot prepare their files: {error}");
                    Event::CannotPrepare { round, reason }.into()
                }
            };
            let _gone = input_sender.send(input).await;
        });
    }

    fn start_template(&mut self, is_idle: bool) {
        match self.warm.template(self.progress.prelude_entry(), is_idle) {
            Some(template) => self.send_to_guard(&ToGuard::StartTemplate(template)),
            None => {
                let reason = "cannot create the memory files of the template".to_owned();
                let input_sender = self.input_sender.clone();
                tokio::spawn(async move {
                    let _gone = input_sender.send(Event::TemplateUnfit { reason }.into()).await;
                });
            }
        }
    }

    fn start_saver(&mut self) {
        if let Err(error) = self.checkpoints.start(&self.launcher_id) {
            let reason = chain(&error).to_string();
            let input_sender = self.input_sender.clone();
            tokio::spawn(async move {
                let _gone = input_sender.send(Event::SaverEnded { reason }.into()).await;
            });
        }
    }

    fn spawn(&mut self, round: Round) {
        let Some(prepared) = self.prepared.take() else { return };
        self.store_watch.begin(round, self.config.local_world_size);
        self.progress.begin(round);
        self.failures = None;
        self.exits.clear();
        self.send_to_guard(&ToGuard::Begin { round });
        for (spec, fds) in prepared.workers {
            if let Err(error) = self.guard.send(&ToGuard::Worker(spec), fds) {
                warn!(%error, "cannot send to the guard");
            }
        }
        self.send_to_guard(&ToGuard::End);
        self.generation = Some(prepared.generation);
    }
}
