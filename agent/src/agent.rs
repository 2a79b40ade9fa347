//! The event loop of one node: takes an event, asks [`WorkerGroup`] for the effects, and starts them. The loop never
//! waits for an effect; its end comes back as an event.

mod effects;
mod ending;
mod failures;

use std::{
    collections::BTreeMap,
    future, io,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use master_proto::question::Key;
use rules::{
    Moment, Round,
    failure::{ExitCause, Outcome, WorkerFailure},
    node::NodeAttributes,
    warm::WarmTerms,
    worker_env::EnvSettings,
    worker_group::{Effect, Event, Limits, WorkerGroup},
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
    checkpoints::Checkpoints,
    config::AgentConfig,
    guard::{
        Guard,
        frame::{FromGuard, TemplateReport},
        link::GuardLink,
    },
    logs::{Console, GenerationLogs, Logs},
    master_link::{self, LinkParts, MasterAt, MasterLink},
    oom::OomCounter,
    prober::Prober,
    progress_sampler::ProgressSampler,
    questions::{AnswerServer, QuestionState},
    report::Report,
    signals,
    store_host::{OpenedStore, StoreHost},
    store_watch::{Lookup, StoreWatch},
    warm::WarmSource,
    workers,
    workers::Prepared,
};
use processes::{cgroup::Cgroup, launcher_id::LauncherId, reap::reap_exited, run_blocking};

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
    progress: ProgressSampler,
    warm: WarmSource,
    checkpoints: Checkpoints,
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
                format_args!("--signals-to-handle: cannot handle the signal `{name}`; ignored"),
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
            visible_accelerators: config.gpus.visible.as_ref().map(|visible| visible.list.clone()),
            gpu_share: config.gpu_share,
            hang: config.terms.hang.clone(),
            reports_missing_progress: config.reports_missing_progress,
            warm: config
                .warm
                .as_ref()
                .map(|warm| WarmTerms { when: warm.when, has_modules: warm.modules.is_some() }),
            save_at_breakpoint: config.terms.save_at_breakpoint,
        };
        let group = WorkerGroup::new(limits);
        let (started, question_state) = (Instant::now(), Arc::new(QuestionState::default()));
        let question_key = Key::new(master.trust.token.as_ref());
        let answer_server =
            AnswerServer::start(config.node_id.clone(), question_key.clone(), Arc::clone(&question_state));
        let answer_server = answer_server.unwrap_or_else(|error| {
            warn!(
                %error,
                "cannot open the port at which other nodes ask whether this node has lost the job master; they decide \
                 without this node's answer whether the job master is lost"
            );
            AnswerServer::disabled()
        });
        let link = LinkParts {
            master: master.clone(),
            secret: config.secret.clone(),
            allowed: store.allowed(),
            question_state: Arc::clone(&question_state),
            started,
        };
        let checkpoints = Checkpoints::open(config.run_id.0.clone(), config.checkpoint_memory);
        let settings = workers::env_settings(&config, launcher_id.to_string(), checkpoints.address());
        let mut agent = Self {
            settings: Arc::new(settings),
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
            progress: ProgressSampler::new(config.terms.hang.clone(), config.counts_steps),
            warm: WarmSource::new(config.warm.clone()),
            checkpoints,
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
            let wants_saver = self.group.wants_saver();
            tokio::select! {
                message = self.guard.next() => {
                    if let Some(event) = self.guard_event(message) {
                        return event;
                    }
                }
                Some(input) = self.inputs.recv() => match input {
                    Input::Event(event) => return event,
                    Input::Prepared { round, prepared } => {
                        self.warm.prepared(prepared.workers.iter().map(|(worker, _)| worker));
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
                () = self.progress.due() => {
                    if let Some(event) = self.progress.sample() {
                        return event;
                    }
                }
                event = self.checkpoints.next(wants_saver) => return event,
                () = deadline => return Event::Deadline,
            }
        }
    }

    fn guard_event(&mut self, message: FromGuard) -> Option<Event> {
        match message {
            FromGuard::Started { round, local_rank, pid } => {
                self.store_watch.started(local_rank, pid);
                self.progress.started(local_rank, pid);
                Some(Event::WorkerStarted { round, local_rank, pid })
            }
            FromGuard::CannotStart { round, local_rank, errno } => {
                let reason = workers::start_error(&self.config, local_rank, errno);
                Some(Event::CannotStart { round, local_rank, reason })
            }
            FromGuard::Exited { round, exit, noticed } => {
                self.exits.insert(exit.pid, noticed);
                self.progress.ended(exit.local_rank);
                self.failed_too(&exit);
                let oom_kills = if exit.cause.is_success() { None } else { self.oom_kills_so_far() };
                Some(Event::WorkerExited { round, exit, oom_kills })
            }
            FromGuard::Template(report) => Some(match report {
                TemplateReport::Ready { kib, left_out } => Event::TemplateReady { kib, left_out },
                TemplateReport::Unfit { reason } => Event::TemplateUnfit { reason },
                TemplateReport::Refused { reason } => Event::TemplateRefused { reason },
            }),
            FromGuard::TreeGone { round } => {
                self.progress.end();
                Some(Event::TreeGone { round })
            }
        }
    }

    fn oom_kills_so_far(&self) -> Option<u64> {
        self.oom.get_or_init(OomCounter::find).kills()
    }

    /// Reaps all children: the guard, the saver, and orphans that PID 1 of a container inherits.
    fn reap(&mut self) {
        let (guard, was_ended) = (self.guard.pid().as_raw(), self.guard_ended);
        reap_exited(|pid, cause| {
            if pid == guard {
                self.guard_ended = Some(cause);
            }
            self.checkpoints.reaped(pid, cause);
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
