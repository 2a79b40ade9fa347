//! Runs a plan: the guard, the master in this process, the agent, the report.

use std::{
    cell::{Cell, RefCell},
    io,
    process::ExitCode,
    rc::Rc,
    sync::mpsc as threads,
    thread,
    time::{Duration, Instant},
};

use agent::{
    Agent, AgentConfig, AgentError, Console, Guard, LogError, LogFormat, Logs, Observer, Parts, Report,
    start_guard,
};
use processes::{cgroup::Cgroup, launcher_id::LauncherId, sweep};
use rules::{
    chain,
    failure::Outcome,
    notice::Notice,
    push::Push,
    worker_group::{Effect, Event},
};
use serde_json::Map;
use tokio::time::timeout;
use tracing::{Level, info};

use crate::{
    activity,
    events::EventLog,
    failure::{self, RunSettings, exit_code},
    open_files,
    rendezvous::{OwnMaster, RendezvousError, RendezvousSetup, set_up},
    resolve::{self, LaunchPlan},
    run_report::RunReport,
    status_socket::{self, StatusSocket},
    telemetry, wrap,
};

/// The timeout of the sweep. A shorter run ends at most that much later.
const SWEEP: Duration = Duration::from_secs(2);

/// How long the master of a job of one node may take to write the report of its check.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// How long a stuck console may delay the exit.
const LAST_FLUSH: Duration = Duration::from_secs(5);

/// What keeps a run from starting.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The guard process could not be started.
    #[error("cannot start the guard process")]
    Guard(#[source] io::Error),
    /// The runtime of the launcher could not be started.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// Standard output or standard error of the launcher cannot be used.
    #[error("cannot use standard output or standard error")]
    Console(#[source] io::Error),
    /// The rendezvous.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The log directory.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// Runs the plan to its end.
pub fn run(mut plan: LaunchPlan) -> ExitCode {
    let _held_till_the_end = std::mem::take(&mut plan.gpu_locks);
    // First, while there is no thread: see `start_guard`.
    let id = LauncherId::of_this_process();
    let run_report = RunReport::new(&plan);
    let cannot_run = |error: RunError| {
        if let Err(error) = run_report.write_start_error(&error) {
            failure::print_line(format_args!("dlrover-run: {}", chain(&error)));
        }
        failure::cannot_run(&error)
    };
    let guard = match start_guard(Cgroup::make(&id)) {
        Ok(guard) => guard,
        Err(source) => return cannot_run(RunError::Guard(source)),
    };
    open_files::raise();
    let console = match Console::of_process() {
        Ok(console) => console,
        Err(source) => return cannot_run(RunError::Console(source)),
    };
    let swept = Swept::default();
    let own_error_file = failure::own_error_file(&plan.agent.env.inherited);
    console.set_log_style(plan.log.style);
    let code = match start(plan, id, guard, &console, &swept, &run_report) {
        Ok(code) => code,
        Err(error) => {
            let message = format!("dlrover-run: error: {}", chain(&error));
            console.report(&message, Map::new());
            if let Err(error) = failure::record_own(&message, own_error_file.as_deref()) {
                console.log(Level::ERROR, chain(&error));
            }
            if let Err(error) = run_report.write_start_error(&error) {
                console.log(Level::ERROR, chain(&error));
            }
            failure::FAILED
        }
    };
    // A sweep that is cut short would leave processes stopped. Its end closes the channel.
    if let Some(swept) = swept.take() {
        let _closed = swept.recv_timeout(SWEEP);
    }
    // What a stuck console has not taken by then is lost with us.
    let _written = console.flush(LAST_FLUSH);
    ExitCode::from(code)
}

fn start(
    plan: LaunchPlan,
    id: LauncherId,
    guard: Guard,
    console: &Console,
    swept: &Swept,
    run_report: &RunReport,
) -> Result<u8, RunError> {
    for notice in &plan.notices {
        console.log(Level::WARN, notice);
    }
    let printer = console.clone();
    telemetry::start(move |line| printer.print(line), &plan.log, &plan.agent.env.inherited);
    activity::log_plan(&plan);
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(512 << 10)
        .build()
        .map_err(RunError::Runtime)?;
    let (propagate, rendezvous) = (plan.propagate_exit_code, plan.rendezvous.clone());
    let AgentConfig { command, max_restarts, .. } = &plan.agent;
    let settings = RunSettings {
        title: command.title.clone(),
        program: command.argv.first().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default(),
        max_restarts: *max_restarts,
    };
    let own_error_file = failure::own_error_file(&plan.agent.env.inherited);
    let events = event_log(&plan, console);
    let is_met = Rc::new(Cell::new(false));
    let hang = LastHang::default();
    let observer = observer(
        events.clone(),
        console.clone(),
        (Rc::clone(swept), Rc::clone(&is_met), Rc::clone(&hang)),
        run_report.clone(),
    );
    let report = runtime.block_on(meet_and_run(plan, id, guard, console.clone(), observer, is_met))?;
    if let Some(events) = events {
        events.borrow().ended(&report);
    }
    // What still runs is a log directory that hangs; it must not hold the end.
    runtime.shutdown_background();
    if let Some(mut message) = failure::message(&report, &settings, &rendezvous) {
        for loss in console.losses() {
            message.push_str(&format!("  lost output: {loss}\n"));
        }
        let style = console.log_style();
        // A line in JSON stands for itself.
        let is_shown = style.format == LogFormat::Text && !style.is_quiet;
        let mut shown = message.clone();
        if let Some(hang) = hang.take().filter(|_| is_shown) {
            shown = failure::refer_to_hang(&shown, &hang);
        }
        let fields = failure::root_cause_of(&report).map(|words| ("root_cause".to_owned(), words.into()));
        console.report(wrap::for_stderr(style.format, shown), fields.into_iter().collect());
        if let Err(error) = failure::copy_root_cause(&report, &message, own_error_file.as_deref()) {
            console.log(Level::ERROR, chain(&error));
        }
    }
    let code = exit_code(&report, propagate, &rendezvous);
    if let Err(error) = run_report.write(&report, code) {
        console.log(Level::ERROR, chain(&error));
    }
    info!("the run ended after {:.1} s with exit code {code}", began.elapsed().as_secs_f64());
    Ok(code)
}

fn event_log(plan: &LaunchPlan, console: &Console) -> Option<Rc<RefCell<EventLog>>> {
    let AgentConfig { run_id, role, command, .. } = &plan.agent;
    let program = command.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    match plan.event_log {
        resolve::EventLog::Null => None,
        resolve::EventLog::Console => {
            let log = EventLog::new(console.clone(), &run_id.0, role, plan.rendezvous.backend(), &program);
            Some(Rc::new(RefCell::new(log)))
        }
    }
}

/// Passes everything to the event log, and starts the sweep once the first worker runs: on a large host it takes some
/// milliseconds, which must not delay the workers.
fn observer(
    events: Option<Rc<RefCell<EventLog>>>,
    console: Console,
    (swept, is_met, hang): (Swept, Rc<Cell<bool>>, LastHang),
    run_report: RunReport,
) -> Observer {
    let mut is_over = false;
    Box::new(move |event, effects| {
        for effect in effects {
            if let Effect::Notify(Notice::Hang(notice)) = effect {
                *hang.borrow_mut() = Some(notice.to_string());
            }
        }
        if matches!(event, Event::MasterBack) {
            is_met.set(true);
        }
        if matches!(event, Event::WorkerStarted { .. }) && swept.borrow().is_none() {
            *swept.borrow_mut() = Some(start_sweep(console.clone()));
        }
        is_over |= matches!(event, Event::Pushed(Push::JobEnd(_)));
        activity::log_event(event, effects, is_over);
        run_report.observe(event, effects);
        if let Some(events) = &events {
            events.borrow_mut().observe(event, effects);
        }
    })
}

/// At the first signal, says that the job of all nodes ends with this launcher, which serves its master without state.
/// `nodes`: as many as there may be, until a round has its members.
fn with_stop_notice(mut observer: Observer, console: Console, mut nodes: u32) -> Observer {
    let mut is_logged = false;
    Box::new(move |event, effects| {
        match event {
            Event::Pushed(Push::Assigned(assignment)) => nodes = assignment.nodes,
            Event::Signalled { .. } if nodes > 1 && !std::mem::replace(&mut is_logged, true) => {
                console.log(Level::WARN, "this launcher serves the job master: the job ends on all nodes");
            }
            _ => {}
        }
        observer(event, effects);
    })
}

/// The last notice of a hang.
type LastHang = Rc<RefCell<Option<String>>>;

/// The sweep of this run, once it has begun. Its channel is closed when it is done.
type Swept = Rc<RefCell<Option<threads::Receiver<()>>>>;

/// Kills what a dead launcher left behind, on a thread of its own.
fn start_sweep(console: Console) -> threads::Receiver<()> {
    let (done, swept) = threads::channel::<()>();
    let sweeper = thread::Builder::new().name("sweep".into()).stack_size(256 << 10).spawn(move || {
        let _open_till_the_end = done;
        let swept = sweep::sweep(SWEEP);
        if let Some(first) = swept.first() {
            let others = match swept.len() - 1 {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            let text = format!(
                "killed pid {} ({}){others}, left behind by a killed launcher",
                first.pid, first.name
            );
            console.log(Level::WARN, text);
        }
    });
    // Without a thread there is no sweep, and the next start makes up for it.
    drop(sweeper);
    swept
}

async fn meet_and_run(
    mut plan: LaunchPlan,
    launcher_id: LauncherId,
    guard: Guard,
    console: Console,
    observer: Observer,
    is_met: Rc<Cell<bool>>,
) -> Result<Report, RunError> {
    let logs = Logs::new(plan.agent.logs.clone(), &plan.agent.run_id.0, &plan.agent.role, console.clone())?;
    match logs.run_dir() {
        Some(folder) => info!("log directory: {}", folder.display()),
        None => info!("log directory: none; no output is kept in files"),
    }
    let RendezvousSetup { master, store, embedded, own } = set_up(&mut plan, &console).await?;
    let status_socket = match status_socket::serve(master.clone()) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!(
                %error,
                "cannot serve dlrover-diag status on this node; give dlrover-diag the address of the job master \
                 (HOST:PORT)"
            );
            None
        }
    };
    let can_come_back = plan.master.policy.host.is_none();
    let observer = if embedded.is_some() && !can_come_back {
        with_stop_notice(observer, console.clone(), plan.agent.terms.max_nodes)
    } else {
        observer
    };
    let config = plan.agent;
    let parts = Parts { config, launcher_id, guard, master, store, console: console.clone(), logs, observer };
    let agent = Agent::run(parts);
    let Some(mut embedded) = embedded else {
        let report = agent.await?;
        let is_asked = status_socket.as_ref().is_some_and(StatusSocket::is_asked);
        if let Some(OwnMaster { served, has_last_work }) = own
            && (has_last_work || is_asked)
        {
            let _done = timeout(LAST_WRITE, served).await;
        }
        if let Some(socket) = status_socket {
            socket.close().await;
        }
        return Ok(report);
    };
    tokio::pin!(agent);
    let report = loop {
        tokio::select! {
            report = &mut agent => break report?,
            error = embedded.failed() => {
                if !is_met.get() {
                    return Err(RendezvousError::from(error).into());
                }
                // The workers continue, and the agent reconnects.
                console.log(Level::ERROR, chain(&error));
            }
        }
    };
    let continues = can_come_back && matches!(report.outcome, Outcome::Interrupted(_));
    embedded.leave_last(continues, &console).await;
    if let Some(socket) = status_socket {
        socket.close().await;
    }
    Ok(report)
}
