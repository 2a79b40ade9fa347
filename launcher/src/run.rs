//! From a plan to an exit code: the guard, the master in this process, the agent, the report.

use std::{
    cell::RefCell,
    io,
    net::TcpListener,
    process::ExitCode,
    rc::Rc,
    sync::{Arc, mpsc as threads},
    thread,
    time::Duration,
};

use agent::{
    agent::{Agent, AgentError, Observer, Parts},
    cgroup::Cgroup,
    chain,
    config::{AgentConfig, MasterPort},
    guard,
    launcher_id::LauncherId,
    logs::{Console, LogError, Logs},
    report::Report,
    store_host::{Reach, SharedStore, StoreHost, StoreHostError, StoreLimits, bind},
    sweep,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rules::{job::JobLimits, worker_group::Event};
use tokio::{net::TcpListener as AsyncListener, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};

use crate::{
    events::EventLog,
    failure::{self, Asked, exit_code},
    front_port,
    host_names::master_addr_of_one_node,
    resolve::{self, LaunchPlan, Meeting},
    telemetry,
};

/// torchrun's `join_timeout`.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the host of a round may take to open its store.
const HOST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long leftovers of a dead launcher may take to die. A run that is shorter ends that much later at most.
const SWEEP: Duration = Duration::from_secs(2);

/// How long a stuck console may hold the last words.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What keeps a run from starting.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The guard process.
    #[error("cannot start the guard process")]
    Guard(#[source] io::Error),
    /// The runtime.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// The launcher's own output.
    #[error("cannot use standard output and standard error")]
    Console(#[source] io::Error),
    /// The job master's port.
    #[error("cannot open a port for the job master on 127.0.0.1")]
    Master(#[source] io::Error),
    /// A static line's port.
    #[error(
        "cannot open port {port} for the workers' store and the job master; free it, or choose another with \
         --master-port"
    )]
    StaticPort {
        /// Which one.
        port: u16,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreHostError),
    /// The log folder.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// Runs the plan to its end.
pub fn run(plan: LaunchPlan) -> ExitCode {
    // First, while there is no thread: see `guard::start`.
    let id = LauncherId::of_this_process();
    let guard = match guard::start(Cgroup::make(&id)) {
        Ok(guard) => guard,
        Err(source) => return failure::cannot_run(&RunError::Guard(source)),
    };
    raise_open_files();
    let console = match Console::of_process() {
        Ok(console) => console,
        Err(source) => return failure::cannot_run(&RunError::Console(source)),
    };
    let swept = Swept::default();
    let own_error_file = failure::own_error_file(&plan.agent.env.inherited);
    let code = match start(plan, id, guard, &console, &swept) {
        Ok(code) => code,
        Err(error) => {
            let words = format!("dlrover-run: error: {}", chain(&error));
            if let Err(error) = failure::record_own(&words, own_error_file.as_deref()) {
                console.say(format!("dlrover-run: {}", chain(&error)));
            }
            console.say(words);
            failure::FAILED
        }
    };
    // A sweep that ended with us halfway would leave its leftovers stopped. Its end closes the channel.
    if let Some(swept) = swept.take() {
        let _closed = swept.recv_timeout(SWEEP);
    }
    // What a stuck console has not taken by then is lost with us.
    let _written = console.flush(LAST_WORDS);
    ExitCode::from(code)
}

/// The store takes a connection or more from each worker of the job, and the usual soft limit is 1024. Workers
/// keep the limit they would have had: they are started by the guard.
fn raise_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With the old limit a job of some hundred ranks still runs.
        let _as_before = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

fn start(
    plan: LaunchPlan,
    id: LauncherId,
    guard: guard::Guard,
    console: &Console,
    swept: &Swept,
) -> Result<u8, RunError> {
    for notice in &plan.notices {
        console.say(format!("dlrover-run: {notice}"));
    }
    telemetry::start(console, &plan.agent.env.inherited);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(512 << 10)
        .build()
        .map_err(RunError::Runtime)?;
    let propagate = plan.propagate_exit_code;
    let AgentConfig { command, max_restarts, .. } = &plan.agent;
    let asked = Asked {
        title: command.title.clone(),
        program: command.argv.first().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default(),
        max_restarts: *max_restarts,
    };
    let own_error_file = failure::own_error_file(&plan.agent.env.inherited);
    let events = event_log(&plan, console);
    let report = runtime.block_on(meet_and_run(
        plan,
        id,
        guard,
        console.clone(),
        observer(events.clone(), console.clone(), Rc::clone(swept)),
    ))?;
    if let Some(events) = events {
        events.borrow().ended(&report);
    }
    // What still runs is a log folder that hangs; it must not hold the end.
    runtime.shutdown_background();
    if let Some(words) = failure::words(&report, &asked) {
        let copied = failure::copy_root_cause(&report, &words, own_error_file.as_deref());
        console.say(words);
        if let Err(error) = copied {
            console.say(format!("dlrover-run: {}", chain(&error)));
        }
    }
    Ok(exit_code(&report, propagate))
}

fn event_log(plan: &LaunchPlan, console: &Console) -> Option<Rc<RefCell<EventLog>>> {
    let backend = match plan.meeting {
        Meeting::Loopback => "c10d",
        Meeting::Static { .. } => "static",
    };
    let AgentConfig { run_id, role, command, .. } = &plan.agent;
    let program = command.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    match plan.event_log {
        resolve::EventLog::Null => None,
        resolve::EventLog::Console => {
            let log = EventLog::new(console.clone(), &run_id.0, role, backend, &program);
            Some(Rc::new(RefCell::new(log)))
        }
    }
}

/// Tells the event log everything, and begins the sweep once the first worker runs: it takes some milliseconds on
/// a large host, which the start of the workers need not share.
fn observer(events: Option<Rc<RefCell<EventLog>>>, console: Console, swept: Swept) -> Observer {
    Box::new(move |event, effects| {
        if matches!(event, Event::WorkerStarted { .. }) && swept.borrow().is_none() {
            *swept.borrow_mut() = Some(sweep_beside(console.clone()));
        }
        if let Some(events) = &events {
            events.borrow_mut().observe(event, effects);
        }
    })
}

/// The sweep of this run, once it has begun. Its channel is closed when it is done.
type Swept = Rc<RefCell<Option<threads::Receiver<()>>>>;

/// Clears away what a dead launcher left behind.
fn sweep_beside(console: Console) -> threads::Receiver<()> {
    let (done, swept) = threads::channel::<()>();
    let sweeper = thread::Builder::new().name("sweep".into()).stack_size(256 << 10).spawn(move || {
        let _open_till_the_end = done;
        let swept = sweep::sweep(SWEEP);
        if let Some(first) = swept.first() {
            let others = match swept.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            console.say(format!(
                "dlrover-run: killed pid {} ({}){others}, which a launcher that is dead had left behind",
                first.pid, first.name
            ));
        }
    });
    // Without a thread there is no sweep, and the next start makes up for it.
    drop(sweeper);
    swept
}

async fn meet_and_run(
    plan: LaunchPlan,
    launcher_id: LauncherId,
    guard: guard::Guard,
    console: Console,
    observer: Observer,
) -> Result<Report, RunError> {
    let config = plan.agent;
    let limits = JobLimits { nodes: config.nodes.1, join_timeout: JOIN_TIMEOUT, host_timeout: HOST_TIMEOUT };
    let logs = Logs::new(config.logs.clone(), &config.run_id.0, &config.role, console.clone())?;
    let (address, store) = match &plan.meeting {
        Meeting::Loopback => {
            let listener = AsyncListener::bind("127.0.0.1:0").await.map_err(RunError::Master)?;
            let address = listener.local_addr().map_err(RunError::Master)?;
            tokio::spawn(serve_master(TcpListenerStream::new(listener), limits));
            (address, own_store(&config)?)
        }
        Meeting::Static { addr, port } => {
            let listeners = static_listeners(addr, *port)?;
            let mut address = listeners[0].local_addr().map_err(RunError::Master)?;
            if address.ip().is_unspecified() {
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            let server = SharedStore::start(Vec::new(), StoreLimits::default());
            let server = Arc::new(server.map_err(StoreHostError::Start)?);
            let connections: mpsc::Receiver<_> =
                front_port::serve(listeners, &server).map_err(RunError::Master)?;
            tokio::spawn(serve_master(ReceiverStream::new(connections), limits));
            (address, StoreHost::shared(addr.clone(), *port, server))
        }
    };
    let parts = Parts { config, launcher_id, guard, master: address, store, console, logs, observer };
    Ok(Agent::run(parts).await?)
}

async fn serve_master(
    connections: impl tokio_stream::Stream<Item = io::Result<tokio::net::TcpStream>>,
    limits: JobLimits,
) {
    match master::serve(connections, limits).await {
        Ok(verdict) => tracing::debug!(?verdict, "the job master is done"),
        // The agent sees its connection break off and says so.
        Err(error) => tracing::warn!(error = %chain(&error), "the job master stopped"),
    }
}

fn own_store(config: &AgentConfig) -> Result<StoreHost, RunError> {
    let (master_addr, reach) = match &config.local_addr {
        Some(address) if !is_loopback(address) => (address.clone(), Reach::Anyone),
        Some(address) => (address.clone(), Reach::Loopback),
        None => (master_addr_of_one_node(), Reach::Loopback),
    };
    Ok(match config.master_port {
        MasterPort::Served => StoreHost::serve(master_addr, reach, &config.port_choices)?,
        MasterPort::LeftToRankZero => StoreHost::left_to_rank_zero(master_addr, config.port_choices.clone()),
    })
}

fn static_listeners(address: &str, port: u16) -> Result<Vec<TcpListener>, RunError> {
    let reach = if is_loopback(address) { Reach::Loopback } else { Reach::Anyone };
    let listeners = bind(reach, port).map_err(|source| RunError::StaticPort { port, source })?;
    if listeners.is_empty() {
        let source = io::ErrorKind::AddrNotAvailable.into();
        return Err(RunError::StaticPort { port, source });
    }
    Ok(listeners)
}

fn is_loopback(address: &str) -> bool {
    address == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
