//! One case: a number of agents and one master, with or without a journal.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::{
    agents::{Agents, Reconnects, last},
    master::{Master, Plan},
};
use crate::{
    Outcome,
    figures::{Figures, progress},
    launcher::is_interrupted,
    processes::{Memory, Used, peak_rss},
};

/// Number of requests of the whole table.
const TABLE_REQUESTS: usize = 20;

/// Pause until the work of what was measured before is done.
const SETTLE: Duration = Duration::from_secs(2);

/// Times of all agents, and of the last agent in each round.
#[derive(Debug, Default, Clone)]
pub(super) struct Times {
    pub(super) agents: Figures,
    pub(super) last: Figures,
}

impl Times {
    fn add(&mut self, round: &[f64]) {
        self.agents.extend(round);
        self.last.add(last(round));
    }
}

/// The results of a case. Times are in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) agents: usize,
    pub(super) subscribe: f64,
    pub(super) first_assignments: f64,
    pub(super) join: Times,
    pub(super) stopped: Times,
    pub(super) turn: Times,
    /// CPU of a turn: the master's and the bench's own.
    pub(super) master_cpu: Figures,
    pub(super) bench_cpu: Figures,
    pub(super) assignment_bytes: usize,
    pub(super) table_bytes: usize,
    pub(super) table: Figures,
    /// CPU of the master in percent of one core, and how often it was woken in a second.
    pub(super) idle_cpu: f64,
    pub(super) idle_switches: f64,
    /// MB.
    pub(super) memory: f64,
    pub(super) peak: f64,
    /// The restart of the master.
    pub(super) reconnects: Option<Result<Reconnects, String>>,
    pub(super) memory_after: f64,
    /// From the first worker's end until the last agent knows.
    pub(super) end: Option<Result<f64, String>>,
}

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amount {
    pub(super) rounds: usize,
    pub(super) idle: Duration,
}

/// Measures a case.
pub(super) async fn measure(plan: &Plan, state_dir: Option<&Path>, amount: Amount) -> Outcome<Measured> {
    let count = plan.agents;
    let with = if state_dir.is_some() { "with" } else { "without" };
    let doing = |event: &str| progress(format_args!("{count} agents {with} --state-dir: {event}"));
    doing("connect")?;
    let mut master = start(plan, 0, state_dir).await?;
    let (mut agents, subscribe, first_assignments) =
        Agents::join_all(master.port, count).await.map_err(|error| with_lines(error, &master))?;
    let mut measured = Measured { agents: count, subscribe, first_assignments, ..Measured::default() };
    for round in 0..amount.rounds {
        doing(&format!("round {} of {}", round + 1, amount.rounds))?;
        measured.round(&master, &mut agents, round).await.map_err(|error| with_lines(error, &master))?;
    }
    for _ in 0..TABLE_REQUESTS {
        let (took, bytes) = agents.show().await?;
        measured.table.add(took);
        measured.table_bytes = bytes;
    }
    measured.assignment_bytes = agents.assignment_bytes;
    doing("idle")?;
    agents.idle(SETTLE).await?;
    measured.memory = mb(Memory::of(master.pid()?)?.pss);
    let (used, began) = (Used::of(master.pid()?)?, Instant::now());
    agents.idle(amount.idle).await?;
    let (spent, seconds) = (Used::of(master.pid()?)?.since(used), began.elapsed().as_secs_f64());
    measured.idle_cpu = spent.cpu_ns as f64 / 1e7 / seconds;
    measured.idle_switches = spent.voluntary_switches as f64 / seconds;
    measured.peak = peak_rss(master.pid()?).map_or(f64::NAN, mb);
    doing("restart of the master")?;
    let reconnects = reconnects(&mut master, &mut agents, plan, state_dir).await;
    let has_reconnected = reconnects.is_ok();
    measured.reconnects = Some(reconnects.map_err(|error| with_lines(error, &master).to_string()));
    if has_reconnected {
        measured.memory_after = mb(Memory::of(master.pid()?)?.pss);
        doing("the end")?;
        let end = end(&mut master, &mut agents).await;
        measured.end = Some(end.map_err(|error| with_lines(error, &master).to_string()));
    }
    progress(format_args!(""))?;
    Ok(measured)
}

impl Measured {
    async fn round(&mut self, master: &Master, agents: &mut Agents, round: usize) -> Outcome<()> {
        self.join.add(&agents.last_join(round).await?);
        let own = i32::try_from(std::process::id())?;
        let before = (Used::of(master.pid()?)?, Used::of(own)?);
        let turn = agents.fail(round).await?;
        self.master_cpu.add(Used::of(master.pid()?)?.since(before.0).cpu_ns as f64 / 1e6);
        self.bench_cpu.add(Used::of(own)?.since(before.1).cpu_ns as f64 / 1e6);
        self.stopped.add(&turn.stopped);
        self.turn.add(&turn.assigned);
        Ok(())
    }
}

/// Starts the master on a thread, so that the agents continue meanwhile.
pub(super) async fn start(plan: &Plan, port: u16, state_dir: Option<&Path>) -> Outcome<Master> {
    let (plan, state_dir) = (plan.clone(), state_dir.map(Path::to_owned));
    let master =
        tokio::task::spawn_blocking(move || Master::start(&plan, port, state_dir.as_deref())).await?;
    master.map_err(|error| error as Box<dyn std::error::Error>)
}

async fn reconnects(
    master: &mut Master,
    agents: &mut Agents,
    plan: &Plan,
    state_dir: Option<&Path>,
) -> Outcome<Reconnects> {
    let began = Instant::now();
    master.kill()?;
    *master = start(plan, master.port, state_dir).await?;
    agents.reconnects(began).await
}

async fn end(master: &mut Master, agents: &mut Agents) -> Outcome<f64> {
    let took = agents.succeed().await?;
    // The last acknowledgements are not sent yet.
    let began = Instant::now();
    loop {
        if let Some(status) = master.ended()? {
            return if status.success() { Ok(took) } else { Err(format!("the master: {status}").into()) };
        }
        if began.elapsed() > super::master::END {
            return Err("the master does not exit".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn with_lines(error: Box<dyn std::error::Error>, master: &Master) -> Box<dyn std::error::Error> {
    if is_interrupted() {
        return error;
    }
    format!("{error}\nlog of the master:\n{}", master.last_lines()).into()
}

fn mb(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}
