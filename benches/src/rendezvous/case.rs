//! One case: so many agents and one master, with or without a memory.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::{
    crowd::{Crowd, Storm, last},
    master::{Master, Plan},
};
use crate::{
    Outcome,
    figures::{Figures, progress},
    launcher::is_interrupted,
    processes::{Memory, Used, peak_rss},
};

/// How often the whole table is asked for.
const SHOWN: usize = 20;

/// After what was measured before, until nothing of it is left to do.
const SETTLE: Duration = Duration::from_secs(2);

/// What can be measured over and over: figures of single agents, and of the last of them in each round.
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

/// What a case gave. Times are in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) agents: usize,
    pub(super) subscribe: f64,
    pub(super) first_seats: f64,
    pub(super) join: Times,
    pub(super) told: Times,
    pub(super) turn: Times,
    /// CPU of a turn: the master's and the bench's own.
    pub(super) master_cpu: Figures,
    pub(super) bench_cpu: Figures,
    pub(super) seat_bytes: usize,
    pub(super) table_bytes: usize,
    pub(super) table: Figures,
    /// CPU of the master in percent of one core, and how often it was woken in a second.
    pub(super) idle_cpu: f64,
    pub(super) idle_switches: f64,
    /// MB.
    pub(super) memory: f64,
    pub(super) peak: f64,
    /// How the master's death went.
    pub(super) storm: Option<Result<Storm, String>>,
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
    let doing = |what: &str| progress(format_args!("{count} agents {with} --state-dir: {what}"));
    doing("connect")?;
    let mut master = start(plan, 0, state_dir).await?;
    let (mut crowd, subscribe, first_seats) =
        Crowd::gather(master.port, count).await.map_err(|error| with_lines(error, &master))?;
    let mut measured = Measured { agents: count, subscribe, first_seats, ..Measured::default() };
    for round in 0..amount.rounds {
        doing(&format!("round {} of {}", round + 1, amount.rounds))?;
        measured.round(&master, &mut crowd, round).await.map_err(|error| with_lines(error, &master))?;
    }
    for _ in 0..SHOWN {
        let (took, bytes) = crowd.show().await?;
        measured.table.add(took);
        measured.table_bytes = bytes;
    }
    measured.seat_bytes = crowd.seat_bytes;
    doing("idle")?;
    crowd.idle(SETTLE).await?;
    measured.memory = mb(Memory::of(master.pid()?)?.pss);
    let (used, began) = (Used::of(master.pid()?)?, Instant::now());
    crowd.idle(amount.idle).await?;
    let (spent, seconds) = (Used::of(master.pid()?)?.since(used), began.elapsed().as_secs_f64());
    measured.idle_cpu = spent.cpu_ns as f64 / 1e7 / seconds;
    measured.idle_switches = spent.voluntary_switches as f64 / seconds;
    measured.peak = peak_rss(master.pid()?).map_or(f64::NAN, mb);
    doing("the master dies")?;
    let storm = storm(&mut master, &mut crowd, plan, state_dir).await;
    let may_go_on = storm.is_ok();
    measured.storm = Some(storm.map_err(|error| with_lines(error, &master).to_string()));
    if may_go_on {
        measured.memory_after = mb(Memory::of(master.pid()?)?.pss);
        doing("the end")?;
        let end = end(&mut master, &mut crowd).await;
        measured.end = Some(end.map_err(|error| with_lines(error, &master).to_string()));
    }
    progress(format_args!(""))?;
    Ok(measured)
}

impl Measured {
    async fn round(&mut self, master: &Master, crowd: &mut Crowd, round: usize) -> Outcome<()> {
        self.join.add(&crowd.last_join(round).await?);
        let own = i32::try_from(std::process::id())?;
        let before = (Used::of(master.pid()?)?, Used::of(own)?);
        let turn = crowd.fail(round).await?;
        self.master_cpu.add(Used::of(master.pid()?)?.since(before.0).cpu_ns as f64 / 1e6);
        self.bench_cpu.add(Used::of(own)?.since(before.1).cpu_ns as f64 / 1e6);
        self.told.add(&turn.told);
        self.turn.add(&turn.seated);
        Ok(())
    }
}

/// Aside, so that the agents go on meanwhile.
async fn start(plan: &Plan, port: u16, state_dir: Option<&Path>) -> Outcome<Master> {
    let (plan, state_dir) = (plan.clone(), state_dir.map(Path::to_owned));
    let master =
        tokio::task::spawn_blocking(move || Master::start(&plan, port, state_dir.as_deref())).await?;
    master.map_err(|error| error as Box<dyn std::error::Error>)
}

async fn storm(
    master: &mut Master,
    crowd: &mut Crowd,
    plan: &Plan,
    state_dir: Option<&Path>,
) -> Outcome<Storm> {
    let began = Instant::now();
    master.kill()?;
    *master = start(plan, master.port, state_dir).await?;
    crowd.storm(began).await
}

async fn end(master: &mut Master, crowd: &mut Crowd) -> Outcome<f64> {
    let took = crowd.succeed().await?;
    // The last acknowledgements are still to be sent.
    let began = Instant::now();
    loop {
        if let Some(status) = master.ended()? {
            return if status.success() { Ok(took) } else { Err(format!("the master: {status}").into()) };
        }
        if began.elapsed() > super::master::END {
            return Err("the master does not end".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn with_lines(error: Box<dyn std::error::Error>, master: &Master) -> Box<dyn std::error::Error> {
    if is_interrupted() {
        return error;
    }
    format!("{error}\nthe master said:\n{}", master.last_lines()).into()
}

fn mb(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}
