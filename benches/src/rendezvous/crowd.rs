//! All the agents of one case, and what is measured with them.

use std::time::{Duration, Instant};

use master_proto::pb::{self, master_client::MasterClient};
use prost::Message as _;
use rules::liveness::return_grace;
use tokio::{sync::mpsc, time::timeout};

use super::agent::{Agent, Order, Report, What};
use crate::{Outcome, launcher::is_interrupted};

/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How much longer than the master waits for its nodes the bench looks for agents that are told to stop although nothing
/// happened.
const QUIET: Duration = Duration::from_secs(2);

/// The agents.
#[derive(Debug)]
pub(super) struct Crowd {
    port: u16,
    agents: Vec<mpsc::UnboundedSender<Order>>,
    said: mpsc::UnboundedReceiver<Report>,
    /// The last round that all have a seat in.
    round: Option<u32>,
    /// Of the largest push of a seat.
    pub(super) seat_bytes: usize,
}

/// What came of one failure; milliseconds after it was reported.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Every other agent was told.
    pub(super) told: Vec<f64>,
    /// Every agent has its seat in the next round.
    pub(super) seated: Vec<f64>,
}

/// What came of the master's death; milliseconds after `SIGKILL`.
#[derive(Debug, Default)]
pub(super) struct Storm {
    /// The stream of an agent is open again.
    pub(super) subscribed: Vec<f64>,
    /// An agent has said where it stands.
    pub(super) back: Vec<f64>,
    /// So many were told to stop their workers.
    pub(super) told: usize,
}

impl Crowd {
    /// All connect and join at once, for the first time; milliseconds until the last has attended and until it has its
    /// seat. They join as they come, as real ones do: the master keeps half of its room for those that have a part.
    pub(super) async fn gather(port: u16, count: usize) -> Outcome<(Self, f64, f64)> {
        let (tell, said) = mpsc::unbounded_channel();
        let (began, of) = (Instant::now(), u32::try_from(count)?);
        let agents = (0..count).map(|number| Agent::start(number, of, port, tell.clone())).collect();
        let mut crowd = Self { port, agents, said, round: None, seat_bytes: 0 };
        for agent in 0..count {
            crowd.tell(agent, Order::Join)?;
        }
        let (mut left, mut has_subscribed) = (count, vec![false; count]);
        // A master that is not quick enough may turn an agent away, which comes again.
        crowd
            .until("attend", true, |said| {
                if matches!(said.what, What::Subscribed) {
                    left -= usize::from(!std::mem::replace(&mut has_subscribed[said.agent], true));
                }
                left == 0
            })
            .await?;
        let subscribed = ms(began, Instant::now());
        let seated = crowd.seats(began, |_| ()).await?;
        Ok((crowd, subscribed, last(&seated)))
    }

    /// One agent fails, the others are told and join again at once.
    pub(super) async fn fail(&mut self, turn: usize) -> Outcome<Turn> {
        let failing = turn % self.agents.len();
        let mut told = Vec::new();
        let began = Instant::now();
        self.tell(failing, Order::Fail)?;
        let seated = self
            .seats(began, |said| {
                if matches!(said.what, What::Told) {
                    told.push(ms(began, said.at));
                }
            })
            .await?;
        if told.len() + 1 != self.agents.len() {
            return Err(format!("{} of {} agents were told", told.len(), self.agents.len() - 1).into());
        }
        Ok(Turn { told, seated })
    }

    /// All but one have joined; milliseconds from the last join until each has its seat.
    pub(super) async fn last_join(&mut self, turn: usize) -> Outcome<Vec<f64>> {
        let count = self.agents.len();
        let (last, failing) = (turn * 7 % count, (turn * 7 + 1) % count);
        self.tell(last, Order::Hold)?;
        self.tell(failing, Order::Fail)?;
        let (mut joined, mut is_told) = (0, false);
        self.until("join again", false, |said| {
            joined += usize::from(matches!(said.what, What::Joined));
            is_told |= said.agent == last && matches!(said.what, What::Told);
            is_told && joined + 1 == count
        })
        .await?;
        let began = Instant::now();
        self.tell(last, Order::Join)?;
        self.seats(began, |_| ()).await
    }

    /// Waits until all have a seat in one further round.
    async fn seats(&mut self, began: Instant, mut also: impl FnMut(&Report)) -> Outcome<Vec<f64>> {
        let (count, before) = (self.agents.len(), self.round);
        let mut seated = Vec::with_capacity(count);
        let (mut now, mut most) = (before, self.seat_bytes);
        self.until("have a seat", false, |said| {
            also(&said);
            if let What::Seated { round, bytes } = said.what
                && before.is_none_or(|before| round > before)
            {
                if now < Some(round) {
                    seated.clear();
                }
                (now, most) = (now.max(Some(round)), most.max(bytes));
                seated.push(ms(began, said.at));
            }
            seated.len() == count
        })
        .await?;
        (self.round, self.seat_bytes) = (now, most);
        Ok(seated)
    }

    /// Milliseconds and bytes of the whole table.
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

    /// Nothing but beats, for so long.
    pub(super) async fn idle(&mut self, time: Duration) -> Outcome<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            check_interrupt()?;
            if let Ok(said) = timeout(left.min(Duration::from_millis(200)), self.said.recv()).await {
                let said = said.ok_or("no agent is left")?;
                return Err(format!("agent {}: {:?} while nothing happened", said.agent, said.what).into());
            }
        }
        Ok(())
    }

    /// The master was killed at `began` and is there again: all come back.
    pub(super) async fn storm(&mut self, began: Instant) -> Outcome<Storm> {
        let count = self.agents.len();
        let mut storm = Storm::default();
        let mut has_subscribed = vec![false; count];
        let mut is_back = vec![false; count];
        let mut seated = 0;
        let mut hear = |storm: &mut Storm, said: Report| {
            match said.what {
                What::Subscribed if !std::mem::replace(&mut has_subscribed[said.agent], true) => {
                    storm.subscribed.push(ms(began, said.at));
                }
                What::Back if !std::mem::replace(&mut is_back[said.agent], true) => {
                    storm.back.push(ms(began, said.at));
                }
                What::Told => (storm.told, seated) = (storm.told + 1, 0),
                What::Seated { .. } => seated += 1,
                _ => {}
            }
            (storm.back.len() == count, seated)
        };
        self.until("come back", true, |said| hear(&mut storm, said).0).await?;
        // Who is told to stop now is told so because others were late.
        let grace = return_grace(Duration::ZERO, u32::try_from(count)?);
        let until = Instant::now() + grace + QUIET;
        let mut seats = 0;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            check_interrupt()?;
            if let Ok(Some(said)) = timeout(left.min(Duration::from_millis(200)), self.said.recv()).await {
                seats = hear(&mut storm, said).1;
            }
        }
        if storm.told > 0 && seats < count {
            self.until("have a seat after the storm", true, |said| hear(&mut storm, said).1 >= count).await?;
        }
        Ok(storm)
    }

    /// The workers of all end well; milliseconds until the last knows that the job is over.
    pub(super) async fn succeed(&mut self) -> Outcome<f64> {
        let count = self.agents.len();
        let began = Instant::now();
        for agent in 0..count {
            self.tell(agent, Order::Succeed)?;
        }
        let (mut ended, mut last) = (0, began);
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while ended < count {
            check_interrupt()?;
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{ended} of {count} agents know that the job is over").into());
            }
            match timeout(Duration::from_millis(200), self.said.recv()).await {
                Err(_) => {}
                Ok(None) => return Err("the agents are gone".into()),
                Ok(Some(Report { what: What::Ended(verdict), .. })) if !verdict.contains("Succeeded") => {
                    return Err(format!("the job ended: {verdict}").into());
                }
                Ok(Some(Report { what: What::Ended(_), at, .. })) => (ended, last) = (ended + 1, at),
                Ok(Some(Report { what: What::Broken(why), agent, .. })) => {
                    return Err(format!("agent {agent}: {why}").into());
                }
                Ok(Some(_)) => {}
            }
        }
        Ok(ms(began, last))
    }

    fn tell(&self, agent: usize, word: Order) -> Outcome<()> {
        let agent = self.agents.get(agent).ok_or("no such agent")?;
        agent.send(word).map_err(|_| "an agent is gone")?;
        Ok(())
    }

    /// Waits until `hear` is content. Streams break only where that `may_break`.
    async fn until(
        &mut self,
        what: &str,
        may_break: bool,
        mut hear: impl FnMut(Report) -> bool,
    ) -> Outcome<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            check_interrupt()?;
            if Instant::now() > deadline {
                return Err(format!("not all agents {what} within {} s", TIMEOUT.as_secs()).into());
            }
            let Ok(said) = timeout(Duration::from_millis(200), self.said.recv()).await else { continue };
            let said = said.ok_or("no agent is left")?;
            match &said.what {
                What::Refused(why) => return Err(format!("agent {}: refused: {why}", said.agent).into()),
                What::Ended(how) => return Err(format!("the job ended: {how}").into()),
                What::Broken(why) if !may_break => {
                    return Err(format!("agent {}: {why}", said.agent).into());
                }
                _ => {}
            }
            if hear(said) {
                return Ok(());
            }
        }
    }
}

/// The latest.
pub(super) fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e3
}

fn check_interrupt() -> Outcome<()> {
    if is_interrupted() { Err("interrupted".into()) } else { Ok(()) }
}
