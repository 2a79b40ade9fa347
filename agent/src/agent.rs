//! The event loop of one node: takes an event, asks [`WorkerGroup`] for the effects, and starts them. The loop never
//! waits for an effect; its end comes back as an event.

mod ending;

use std::{
    collections::BTreeMap,
    future, io,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use diagnosis::network_check::LocalCheck;
use master_proto::question::Key;
use rules::{
    LocalRank, Moment, Rank, Round,
    check_order::{CheckReport, Checked},
    failure::{ExitCause, Outcome, WorkerFailure},
    fence::{Juror, guard_after},
    node::{JoinRequest, NodeAttributes},
    worker_env::EnvSettings,
    worker_group::{Effect, Event, Limits, WorkerExit, WorkerGroup},
    world::Assignment,
};
use tokio::{
    signal::unix::{Signal as SignalStream, SignalKind, signal},
    sync::{Mutex as AsyncMutex, mpsc},
    task::JoinSet,
    time::sleep_until,
};
use tracing::{Level, debug, warn};

use crate::{
    arrivals::{self, Connected},
    attributes,
    config::AgentConfig,
    evidence::{self, Peers},
    guard::{
        Guard,
        frame::{FromGuard, ToGuard},
        link::GuardLink,
    },
    logs::{Console, GenerationLogs, Logs},
    master_link::{self, LinkParts, MasterAt, MasterLink, ToMaster},
    oom::OomCounter,
    prober::{Command, Prober},
    questions::{self, AnswerServer, QuestionState},
    report::Report,
    signals,
    store_host::{OpenedStore, StoreHost},
    store_watch::{Lookup, StoreWatch},
    training::TrainingSampler,
    workers,
    workers::Prepared,
};
use processes::{cgroup::Cgroup, launcher_id::LauncherId, reap::reap_exited, run_blocking};
use rules::chain;

/// Events that may wait for the loop.
const QUEUE: usize = 1024;

/// Input of the event loop.
enum Input {
    Event(Event),
    Prepared { round: Round, prepared: Box<Prepared> },
    Hosting { round: Round, opened: OpenedStore },
    Connected { round: Round, up_to: usize, connected: Connected },
}

impl From<Event> for Input {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A signal handler could not be installed.
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
    /// The guard's socket cannot be used.
    #[error("cannot use the socket of the guard process")]
    Guard(#[source] io::Error),
}

/// Sees each event of the loop with the effects that followed. Must not block.
pub type Observer = Box<dyn FnMut(&Event, &[Effect])>;

/// What an agent needs. Made by the launcher.
pub struct Parts {
    pub config: AgentConfig,
    /// This launcher's id.
    pub launcher_id: LauncherId,
    /// The guard, which was started before any thread.
    pub guard: Guard,
    /// Where the master is.
    pub master: MasterAt,
    /// The store of the workers, used if this node is group rank 0.
    pub store: StoreHost,
    pub console: Console,
    pub logs: Logs,
    /// Sees every event and its effects.
    pub observer: Observer,
}

/// One node's agent.
pub struct Agent {
    config: Arc<AgentConfig>,
    settings: Arc<EnvSettings>,
    launcher_id: LauncherId,
    cgroup: Option<Cgroup>,
    has_foreign_children: bool,
    observer: Observer,
    group: WorkerGroup,
    guard: GuardLink,
    guard_ended: Option<ExitCause>,
    /// The guard could not kill its tree.
    is_abandoned: bool,
    children: SignalStream,
    windows: SignalStream,
    attributes: NodeAttributes,
    master: MasterLink,
    master_at: MasterAt,
    question_state: Arc<QuestionState>,
    answer_server: AnswerServer,
    question_key: Key,
    /// The deadline that the guard was sent last.
    kill_at: Option<Moment>,
    store: Arc<AsyncMutex<StoreHost>>,
    console: Console,
    logs: Arc<Mutex<Logs>>,
    prober: Option<Prober>,
    prepared: Option<Box<Prepared>>,
    store_watch: StoreWatch,
    generation: Option<GenerationLogs>,
    training: TrainingSampler,
    /// Failures after the first one, for what is reported of that one.
    failures: Option<mpsc::UnboundedSender<WorkerFailure>>,
    /// When the workers of the generation ended, since 1970, by process id.
    exits: BTreeMap<i32, Duration>,
    /// Output of older generations that is still being read.
    retired: JoinSet<()>,
    oom: Arc<OnceLock<OomCounter>>,
    inputs: mpsc::Receiver<Input>,
    input_sender: mpsc::Sender<Input>,
    started: Instant,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Agent {
    /// Runs one node to its end.
    ///
    /// # Errors
    /// When it cannot start.
    pub async fn run(parts: Parts) -> Result<Report, AgentError> {
        let Parts { config, launcher_id, guard, master, store, console, logs, observer } = parts;
        let (cgroup, has_foreign_children) = (guard.cgroup.clone(), guard.has_foreign_children);
        // In parallel to connecting to the master. Without room for a thread it is done when it is needed.
        let oom = Arc::new(OnceLock::new());
        let found = Arc::clone(&oom);
        tokio::spawn(run_blocking(move || found.get_or_init(OomCounter::find).kills()));
        let (input_sender, inputs) = mpsc::channel(QUEUE);
        let unknown = signals::listen(&config.signals, &input_sender).map_err(AgentError::Signals)?;
        for name in unknown {
            console.log(
                Level::WARN,
                format_args!("--signals-to-handle: cannot handle a signal `{name}`; ignored"),
            );
        }
        let children = signal(SignalKind::child()).map_err(AgentError::Signals)?;
        let windows = signal(SignalKind::window_change()).map_err(AgentError::Signals)?;
        let limits = Limits {
            node_id: config.node_id.clone(),
            max_restarts: config.max_restarts,
            shutdown_timeout: config.shutdown_timeout,
            join_timeout: config.terms.join_timeout,
            check: config.terms.check.as_ref().map(|check| check.reuse_for),
            has_accelerators: config.attributes.accelerators.is_some() || config.gpu_share.is_some(),
            gpu_share: config.gpu_share,
            hang: config.terms.hang.clone(),
        };
        let group = WorkerGroup::new(limits);
        let (started, question_state) = (Instant::now(), Arc::new(QuestionState::default()));
        let question_key = Key::new(master.trust.token.as_ref());
        let answer_server =
            AnswerServer::start(config.node_id.clone(), question_key.clone(), Arc::clone(&question_state));
        let answer_server = answer_server.unwrap_or_else(|error| {
            // The other nodes then decide without this one whether to continue when the master is lost.
            warn!(%error, "cannot open a port for queries of other launchers");
            AnswerServer::disabled()
        });
        let link = LinkParts {
            master: master.clone(),
            secret: config.secret.clone(),
            allowed: store.allowed(),
            question_state: Arc::clone(&question_state),
            started,
        };
        let mut agent = Self {
            settings: Arc::new(workers::env_settings(&config, launcher_id.to_string())),
            group,
            guard: GuardLink::new(guard).map_err(AgentError::Guard)?,
            guard_ended: None,
            is_abandoned: false,
            children,
            windows,
            attributes: attributes::gather(config.attributes.clone()),
            master: master_link::start(link, input_sender.clone()),
            master_at: master,
            question_state,
            answer_server,
            question_key,
            kill_at: None,
            console,
            logs: Arc::new(Mutex::new(logs)),
            prober: None,
            prepared: None,
            store_watch: StoreWatch::new(&store),
            generation: None,
            failures: None,
            training: TrainingSampler::new(config.terms.hang.clone(), config.counts_steps),
            exits: BTreeMap::new(),
            retired: JoinSet::new(),
            store: Arc::new(AsyncMutex::new(store)),
            oom,
            inputs,
            input_sender,
            started,
            launcher_id,
            cgroup,
            has_foreign_children,
            observer,
            config: Arc::new(config),
        };
        // A guard that died before SIGCHLD was handled is noticed here only.
        agent.reap();
        let outcome = agent.run_group().await;
        Ok(agent.report(outcome).await)
    }

    async fn run_group(&mut self) -> Outcome {
        loop {
            let event = self.next_event().await;
            let now = Moment::new(self.started.elapsed());
            debug!(?event, "event");
            let effects = self.group.handle(now, event.clone());
            (self.observer)(&event, &effects);
            self.question_state.set_juror_state(self.group.juror_state());
            self.fence(now);
            for effect in effects {
                debug!(?effect, "effect");
                if let Effect::Finish { outcome } = effect {
                    return outcome;
                }
                self.perform(effect);
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        loop {
            self.look_up_peers();
            let due = self.group.deadline().map(|at| self.started + at.since_start());
            let deadline = async move {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => future::pending().await,
                }
            };
            let watches_store = self.group.watches_store();
            let next_sample = self.training.next();
            tokio::select! {
                message = self.guard.next() => {
                    if let Some(event) = self.guard_event(message) {
                        return event;
                    }
                }
                Some(input) = self.inputs.recv() => match input {
                    Input::Event(event) => return event,
                    Input::Prepared { round, prepared } => {
                        self.prepared = Some(prepared);
                        let oom_kills = self.oom_kills_so_far();
                        return Event::Prepared { round, oom_kills };
                    }
                    Input::Hosting { round, opened } => {
                        let OpenedStore { master_addr, master_port, new_server } = opened;
                        if let Some(server) = new_server {
                            self.store_watch.moved(&server, master_port);
                        }
                        return Event::Hosting { round, master_addr, master_port };
                    }
                    Input::Connected { round, up_to, connected } => {
                        self.store_watch.on_looked_up(round, up_to);
                        let workers = connected.workers.into_iter().collect();
                        return Event::StoreReached { round, workers, is_unsure: connected.has_unknown };
                    }
                },
                Some(()) = self.children.recv() => self.reap(),
                Some(()) = self.windows.recv() => {
                    if let Some(generation) = &self.generation {
                        generation.resize();
                    }
                }
                () = self.store_watch.next_arrival(watches_store) => {}
                () = TrainingSampler::due(next_sample) => {
                    if let Some(event) = self.training.sample() {
                        return event;
                    }
                }
                () = deadline => return Event::Deadline,
            }
        }
    }

    fn guard_event(&mut self, message: FromGuard) -> Option<Event> {
        match message {
            FromGuard::Started { round, local_rank, pid } => {
                self.store_watch.started(local_rank, pid);
                self.training.started(local_rank, pid);
                Some(Event::WorkerStarted { round, local_rank, pid })
            }
            FromGuard::CannotStart { round, local_rank, errno } => {
                let reason = workers::start_error(&self.config, local_rank, errno);
                Some(Event::CannotStart { round, local_rank, reason })
            }
            FromGuard::Exited { round, exit, noticed } => {
                self.exits.insert(exit.pid, noticed);
                self.training.ended(exit.local_rank);
                self.failed_too(&exit);
                let oom_kills = if exit.cause.is_success() { None } else { self.oom_kills_so_far() };
                Some(Event::WorkerExited { round, exit, oom_kills })
            }
            FromGuard::TreeGone { round } => {
                self.training.end();
                Some(Event::TreeGone { round })
            }
        }
    }

    fn oom_kills_so_far(&self) -> Option<u64> {
        self.oom.get_or_init(OomCounter::find).kills()
    }

    /// Reaps all children: the guard, and orphans that PID 1 of a container inherits.
    fn reap(&mut self) {
        let (guard, was_ended) = (self.guard.pid().as_raw(), self.guard_ended);
        reap_exited(|pid, cause| {
            if pid == guard {
                self.guard_ended = Some(cause);
            }
        });
        if let (Some(cause), None) = (self.guard_ended, was_ended) {
            let killing = self.kill_leftovers();
            let input_sender = self.input_sender.clone();
            tokio::spawn(async move {
                let left = killing.await;
                debug!(?left, "killed what a dead guard left");
                // The loop has ended when it no longer receives.
                let _gone = input_sender.send(Event::GuardDied { cause }.into()).await;
            });
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Join { after, checked, .. } => self.join(after, checked),
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
            Effect::ReportProgress { at, probed } => {
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
            Effect::ReportTraining { report } => self.send_to_master(ToMaster::Training(report)),
            Effect::DumpStacks { assignment, episode } => {
                let node = self.config.node_id.clone();
                let of = (node, self.attributes.host_name.as_str(), self.launcher_id.to_string());
                let to = (self.master.messages.clone(), self.input_sender.clone());
                self.training.dump(&assignment, episode, of, to);
            }
            Effect::AcknowledgeEnd => self.send_to_master(ToMaster::AcknowledgeEnd),
            Effect::Prepare { assignment, attempt } => self.prepare(assignment, attempt),
            Effect::Spawn { round } => self.spawn(round),
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
    fn fence(&mut self, now: Moment) {
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
    fn send_to_master(&self, message: ToMaster) {
        let _ended = self.master.messages.send(message);
    }

    fn send_to_guard(&mut self, message: &ToGuard) {
        if let Err(error) = self.guard.send(message, Vec::new()) {
            warn!(%error, "cannot send to the guard");
        }
    }

    /// Reports what is known of a failed worker, when its output is read. The run may end meanwhile; the message is sent
    /// all the same.
    fn report_detail(&mut self, round: Round, worker: WorkerFailure) {
        let messages = self.master.messages.clone();
        let left_by = |rank| self.generation.as_ref().and_then(|generation| generation.output_of(rank));
        let left = left_by(worker.local_rank);
        let workers = (0..self.config.local_world_size).map(LocalRank);
        let peers = workers.filter(|rank| *rank != worker.local_rank);
        let peers = peers.filter_map(|rank| Some((rank, left_by(rank)?))).collect();
        let (sender, failures) = mpsc::unbounded_channel();
        self.failures = Some(sender);
        tokio::spawn(async move {
            let detail = Box::new(evidence::detail_of(worker, left, Peers { left: peers, failures }).await);
            let _ended = messages.send(ToMaster::Detail { round, detail });
        });
    }

    /// A worker that failed after the first one may be why that one did.
    fn failed_too(&mut self, exit: &WorkerExit) {
        let Some(failures) = self.failures.as_ref().filter(|_| !exit.cause.is_success()) else { return };
        let place = self.group.assignment().and_then(|it| it.place(exit.local_rank));
        let failure = WorkerFailure {
            rank: place.map_or(Rank(exit.local_rank.0), |place| place.rank),
            local_rank: exit.local_rank,
            pid: exit.pid,
            cause: exit.cause,
            unix_secs: exit.unix_secs,
            out_of_memory: false,
        };
        if failures.send(failure).is_err() {
            self.failures = None;
        }
    }

    fn join(&mut self, after: Option<Round>, checked: Option<LocalCheck>) {
        self.retire_generation();
        let port = self.prober.as_ref().map_or(0, Prober::port);
        let checked = checked.map(|local| Checked { local, port });
        self.send_to_master(ToMaster::Join(JoinRequest { checked, ..self.request(after) }));
    }

    /// Made on first use: most runs check nothing.
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
        let progress = self.training.prepare(self.config.local_world_size, python_path);
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
                    let reason = format!("cannot prepare its files: {error}");
                    Event::CannotPrepare { round, reason }.into()
                }
            };
            let _gone = input_sender.send(input).await;
        });
    }

    fn spawn(&mut self, round: Round) {
        let Some(prepared) = self.prepared.take() else { return };
        self.store_watch.begin(round, self.config.local_world_size);
        self.training.begin(round);
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

    /// Finds the workers behind new connections, one lookup at a time; on a thread, because it reads /proc.
    fn look_up_peers(&mut self) {
        let watches_store = self.group.watches_store();
        let Some(lookup) = self.store_watch.next_lookup(watches_store) else { return };
        let Lookup { round, up_to, peers, port, pids } = lookup;
        let input_sender = self.input_sender.clone();
        tokio::spawn(async move {
            let found = run_blocking(move || arrivals::find(&peers, port, &pids)).await;
            // A failed lookup leaves the owner unknown, and then no worker is reported as missing.
            let connected = found.unwrap_or(Connected { has_unknown: true, ..Connected::default() });
            let _gone = input_sender.send(Input::Connected { round, up_to, connected }).await;
        });
    }
}
