//! All the agents of one case, and what is measured with them.

use std::time::{Duration, Instant};

use master_proto::pb::{self, master_client::MasterClient};
use prost::Message as _;
use rules::liveness::return_grace;
use tokio::{sync::mpsc, time::timeout};

use super::agent::{Agent, Command, Event, Report};
use crate::{Outcome, launcher::is_interrupted};

/// Time limit of each step.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How much longer than the master's grace the bench waits for agents that are stopped without a reason.
const OBSERVATION: Duration = Duration::from_secs(2);

/// The agents.
#[derive(Debug)]
pub(super) struct Agents {
    port: u16,
    agents: Vec<mpsc::UnboundedSender<Command>>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// The last round that all have an assignment in.
    round: Option<u32>,
    /// Size of the largest message with an assignment.
    pub(super) assignment_bytes: usize,
}

/// The times of one failure; milliseconds after it was reported.
#[derive(Debug, Default)]
pub(super) struct RoundTimes {
    /// Each other agent was stopped.
    pub(super) stopped: Vec<f64>,
    /// Each agent has its assignment in the next round.
    pub(super) assigned: Vec<f64>,
}

/// The times of a restart of the master; milliseconds after `SIGKILL`.
#[derive(Debug, Default)]
pub(super) struct Reconnects {
    /// The stream of an agent is open again.
    pub(super) subscribed: Vec<f64>,
    /// An agent has reported its state.
    pub(super) back: Vec<f64>,
    /// Number of agents that had to stop their workers.
    pub(super) stopped: usize,
}

impl Agents {
    /// Connects and joins all at once; milliseconds until the last has subscribed and until it has its assignment. They join as
    /// soon as they are subscribed, as real ones do: the master reserves half of its capacity for nodes of the job.
    pub(super) async fn join_all(port: u16, count: usize) -> Outcome<(Self, f64, f64)> {
        let (send, reports) = mpsc::unbounded_channel();
        let (began, of) = (Instant::now(), u32::try_from(count)?);
        let agents = (0..count).map(|number| Agent::start(number, of, port, send.clone())).collect();
        let mut agents = Self { port, agents, reports, round: None, assignment_bytes: 0 };
        for agent in 0..count {
            agents.send(agent, Command::Join)?;
        }
        let (mut left, mut has_subscribed) = (count, vec![false; count]);
        // A busy master may refuse an agent, which retries.
        agents
            .until("subscribe", true, |report| {
                if matches!(report.event, Event::Subscribed) {
                    left -= usize::from(!std::mem::replace(&mut has_subscribed[report.agent], true));
                }
                left == 0
            })
            .await?;
        let subscribed = ms(began, Instant::now());
        let assigned = agents.assignments(began, |_| ()).await?;
        Ok((agents, subscribed, last(&assigned)))
    }

    /// One agent fails; the others are stopped and join again at once.
    pub(super) async fn fail(&mut self, turn: usize) -> Outcome<RoundTimes> {
        let failing = turn % self.agents.len();
        let mut stopped = Vec::new();
        let began = Instant::now();
        self.send(failing, Command::Fail)?;
        let assigned = self
            .assignments(began, |report| {
                if matches!(report.event, Event::Stopped) {
                    stopped.push(ms(began, report.at));
                }
            })
            .await?;
        if stopped.len() + 1 != self.agents.len() {
            return Err(format!("{} of {} agents were stopped", stopped.len(), self.agents.len() - 1).into());
        }
        Ok(RoundTimes { stopped, assigned })
    }

    /// Lets the last agent join; milliseconds until each has its assignment.
    pub(super) async fn last_join(&mut self, turn: usize) -> Outcome<Vec<f64>> {
        let count = self.agents.len();
        let (last, failing) = (turn * 7 % count, (turn * 7 + 1) % count);
        self.send(last, Command::Hold)?;
        self.send(failing, Command::Fail)?;
        let (mut joined, mut is_stopped) = (0, false);
        self.until("join again", false, |report| {
            joined += usize::from(matches!(report.event, Event::Joined));
            is_stopped |= report.agent == last && matches!(report.event, Event::Stopped);
            is_stopped && joined + 1 == count
        })
        .await?;
        let began = Instant::now();
        self.send(last, Command::Join)?;
        self.assignments(began, |_| ()).await
    }

    /// Waits until all have an assignment in one further round.
    async fn assignments(&mut self, began: Instant, mut also: impl FnMut(&Report)) -> Outcome<Vec<f64>> {
        let (count, before) = (self.agents.len(), self.round);
        let mut assigned = Vec::with_capacity(count);
        let (mut now, mut max) = (before, self.assignment_bytes);
        self.until("have an assignment", false, |report| {
            also(&report);
            if let Event::Assigned { round, bytes } = report.event
                && before.is_none_or(|before| round > before)
            {
                if now < Some(round) {
                    assigned.clear();
                }
                (now, max) = (now.max(Some(round)), max.max(bytes));
                assigned.push(ms(began, report.at));
            }
            assigned.len() == count
        })
        .await?;
        (self.round, self.assignment_bytes) = (now, max);
        Ok(assigned)
    }

    /// Requests the whole table; milliseconds and bytes.
    pub(super) async fn show(&self) -> Outcome<(f64, usize)> {
        let mut client = MasterClient::connect(format!("http://127.0.0.1:{}", self.port)).await?;
        let began = Instant::now();
        let table = client.show_world(pb::ShowWorldRequest {}).await?.into_inner();
        let took = ms(began, Instant::now());
        if table.round != self.round || table.members.len() != self.agents.len() {
            return Err(format!("a table of round {:?}, {} members", table.round, table.members.len()).into());
        }
        Ok((took, table.encoded_len()))
    }

    /// Waits; there must be nothing but heartbeats.
    pub(super) async fn idle(&mut self, time: Duration) -> Outcome<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            check_interrupt()?;
            if let Ok(report) = timeout(left.min(Duration::from_millis(200)), self.reports.recv()).await {
                let report = report.ok_or("no agent is left")?;
                return Err(
                    format!("agent {}: {:?} while nothing happened", report.agent, report.event).into()
                );
            }
        }
        Ok(())
    }

    /// Waits until all agents have reconnected to the master that was killed at `began`.
    pub(super) async fn reconnects(&mut self, began: Instant) -> Outcome<Reconnects> {
        let count = self.agents.len();
        let mut reconnects = Reconnects::default();
        let mut has_subscribed = vec![false; count];
        let mut is_back = vec![false; count];
        let mut assigned = 0;
        let mut on_report = |reconnects: &mut Reconnects, report: Report| {
            match report.event {
                Event::Subscribed if !std::mem::replace(&mut has_subscribed[report.agent], true) => {
                    reconnects.subscribed.push(ms(began, report.at));
                }
                Event::Back if !std::mem::replace(&mut is_back[report.agent], true) => {
                    reconnects.back.push(ms(began, report.at));
                }
                Event::Stopped => (reconnects.stopped, assigned) = (reconnects.stopped + 1, 0),
                Event::Assigned { .. } => assigned += 1,
                _ => {}
            }
            (reconnects.back.len() == count, assigned)
        };
        self.until("come back", true, |report| on_report(&mut reconnects, report).0).await?;
        // An agent that is stopped now is stopped because others were late.
        let grace = return_grace(Duration::ZERO, u32::try_from(count)?);
        let until = Instant::now() + grace + OBSERVATION;
        let mut assignments = 0;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            check_interrupt()?;
            if let Ok(Some(report)) = timeout(left.min(Duration::from_millis(200)), self.reports.recv()).await
            {
                assignments = on_report(&mut reconnects, report).1;
            }
        }
        if reconnects.stopped > 0 && assignments < count {
            self.until("have an assignment after the restart", true, |report| {
                on_report(&mut reconnects, report).1 >= count
            })
            .await?;
        }
        Ok(reconnects)
    }

    /// All workers succeed; milliseconds until the last agent knows that the job is over.
    pub(super) async fn succeed(&mut self) -> Outcome<f64> {
        let count = self.agents.len();
        let began = Instant::now();
        for agent in 0..count {
            self.send(agent, Command::Succeed)?;
        }
        let (mut ended, mut last) = (0, began);
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while ended < count {
            check_interrupt()?;
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{ended} of {count} agents know that the job is over").into());
            }
            match timeout(Duration::from_millis(200), self.reports.recv()).await {
                Err(_) => {}
                Ok(None) => return Err("the agents are gone".into()),
                Ok(Some(Report { event: Event::Ended(verdict), .. })) if !verdict.contains("Succeeded") => {
                    return Err(format!("the job ended: {verdict}").into());
                }
                Ok(Some(Report { event: Event::Ended(_), at, .. })) => (ended, last) = (ended + 1, at),
                Ok(Some(Report { event: Event::Broken(why), agent, .. })) => {
                    return Err(format!("agent {agent}: {why}").into());
                }
                Ok(Some(_)) => {}
            }
        }
        Ok(ms(began, last))
    }

    fn send(&self, agent: usize, command: Command) -> Outcome<()> {
        let agent = self.agents.get(agent).ok_or("no such agent")?;
        agent.send(command).map_err(|_| "an agent is gone")?;
        Ok(())
    }

    /// Waits until `on_report` returns true. Streams may break only with `may_break`.
    async fn until(
        &mut self,
        event: &str,
        may_break: bool,
        mut on_report: impl FnMut(Report) -> bool,
    ) -> Outcome<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            check_interrupt()?;
            if Instant::now() > deadline {
                return Err(format!("not all agents {event} within {} s", TIMEOUT.as_secs()).into());
            }
            let Ok(report) = timeout(Duration::from_millis(200), self.reports.recv()).await else { continue };
            let report = report.ok_or("no agent is left")?;
            match &report.event {
                Event::Refused(why) => return Err(format!("agent {}: refused: {why}", report.agent).into()),
                Event::Ended(how) => return Err(format!("the job ended: {how}").into()),
                Event::Broken(why) if !may_break => {
                    return Err(format!("agent {}: {why}", report.agent).into());
                }
                _ => {}
            }
            if on_report(report) {
                return Ok(());
            }
        }
    }
}

/// Returns the latest.
pub(super) fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e3
}

fn check_interrupt() -> Outcome<()> {
    if is_interrupted() { Err("interrupted".into()) } else { Ok(()) }
}
