//! The saver's loop: it takes an input, asks [`Saver`] for the effects, and starts them. It never waits for an effect;
//! its end is the next input.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use checkpoint::{
    Moment,
    message::{ErrorCode, Level},
    slots::{CheckId, Event, FetchId, PersistId, Saver, SendId, Settings, SlotId},
};
use tokio::{
    sync::mpsc,
    time::{Instant as TokioInstant, sleep_until, timeout},
};

use super::{
    agent_link::AgentLines,
    clients::Clients,
    input::{Input, Outcome},
    listener::refuse,
    pause::Pause,
    persist::Running,
    sending::Asker,
    slot_file::SlotFile,
    stop::Stop,
    threads::Threads,
};

/// Between two reports of how far writes are.
const PROGRESS: Duration = Duration::from_secs(1);

/// At the end: for lines that are on their way to clients and to the agent, and for temporary files to be removed.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The state of a saver.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) saver: Saver,
    pub(super) agent: AgentLines,
    pub(super) clients: Clients,
    pub(super) threads: Threads,
    pub(super) slots: BTreeMap<SlotId, Arc<SlotFile>>,
    pub(super) running: BTreeMap<PersistId, Arc<Running>>,
    /// Writes to disk wait while a worker saves.
    pub(super) saves: Arc<Pause>,
    /// Nodes that have asked for a slot.
    pub(super) askers: BTreeMap<SendId, Asker>,
    pub(super) sends: u64,
    /// Slots that are fetched, and what ends that.
    pub(super) fetches: BTreeMap<FetchId, Arc<Stop>>,
    pub(super) run_id: String,
    pub(super) epoch: u64,
    pub(super) ticket: String,
    pub(super) sender: mpsc::Sender<Input>,
    /// Checks of files that have not ended, and whether they are given up.
    pub(super) checks: BTreeMap<CheckId, Arc<AtomicBool>>,
    inputs: mpsc::Receiver<Input>,
    started: Instant,
    refused: u64,
    agent_is_gone: bool,
}

/// Whether the loop goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Exit,
}

impl Session {
    /// A saver without connections.
    pub(super) fn new(
        settings: Settings,
        ticket: String,
        agent: AgentLines,
        inputs: (mpsc::Sender<Input>, mpsc::Receiver<Input>),
    ) -> Self {
        let (sender, receiver) = inputs;
        Self {
            askers: BTreeMap::new(),
            sends: 0,
            fetches: BTreeMap::new(),
            run_id: settings.run_id.clone(),
            epoch: settings.epoch,
            ticket,
            sender: sender.clone(),
            saver: Saver::new(settings),
            agent,
            clients: Clients::new(sender.clone()),
            threads: Threads::new(sender),
            slots: BTreeMap::new(),
            running: BTreeMap::new(),
            saves: Arc::default(),
            checks: BTreeMap::new(),
            inputs: receiver,
            started: Instant::now(),
            refused: 0,
            agent_is_gone: false,
        }
    }

    /// Runs until the saver has nothing left to do.
    pub(super) async fn run(mut self) {
        let mut progress = TokioInstant::now() + PROGRESS;
        loop {
            let deadline = self.saver.deadline().map(|deadline| self.instant(deadline));
            let events = tokio::select! {
                input = self.inputs.recv() => match input {
                    Some(input) => self.events(input),
                    // This process has senders of its own, so this does not happen.
                    None => vec![Event::AgentGone],
                },
                () = is_due(deadline) => vec![Event::Deadline],
                () = sleep_until(progress), if !self.running.is_empty() => {
                    progress = TokioInstant::now() + PROGRESS;
                    self.running.iter().map(|(persist, running)| running.progress(*persist)).collect()
                }
            };
            for event in events {
                if self.handle(event) == Next::Exit {
                    return self.end().await;
                }
            }
            while let Some(outcome) = self.threads.failed() {
                if let Some(event) = self.said(outcome)
                    && self.handle(event) == Next::Exit
                {
                    return self.end().await;
                }
            }
        }
    }

    fn handle(&mut self, event: Event) -> Next {
        let effects = self.saver.handle(self.now(), event);
        // Before the reply to `begin` goes out.
        self.saves.set(self.saver.is_saving());
        effects.into_iter().fold(Next::Continue, |next, effect| match self.perform(effect) {
            Next::Exit => Next::Exit,
            Next::Continue => next,
        })
    }

    fn events(&mut self, input: Input) -> Vec<Event> {
        match input {
            Input::Accepted(socket, peer) => match self.clients.add(socket, peer) {
                Ok(connected) => vec![connected],
                Err((socket, error)) => {
                    let text = format!("{error}; the connection is closed");
                    refuse(socket, ErrorCode::TooMany, &text);
                    self.log_refused(&text);
                    Vec::new()
                }
            },
            Input::NotAccepted(text) => {
                self.log_refused(&text);
                Vec::new()
            }
            Input::Received(connection, request) => {
                let event = Event::Received { connection, request: *request };
                if self.clients.is_open(connection) { vec![event] } else { Vec::new() }
            }
            Input::Asked(socket, ask) => vec![self.asked(socket, *ask)],
            Input::Disconnected(connection) => self.clients.ended(connection),
            Input::Died(process) => self.clients.died(process).into_iter().collect(),
            Input::Agent(Ok(message)) => vec![Event::Agent(message)],
            Input::Agent(Err(error)) => {
                self.agent.log(Level::Error, format!("ignoring an invalid message from the agent: {error}"));
                Vec::new()
            }
            Input::AgentGone if self.agent_is_gone => Vec::new(),
            Input::AgentGone => {
                self.agent_is_gone = true;
                vec![Event::AgentGone]
            }
            Input::Worked(lane, outcome) => {
                self.threads.ended(&lane);
                self.said(outcome).into_iter().collect()
            }
        }
    }

    /// What the end of work means, after its lines for the log.
    fn said(&mut self, outcome: Outcome) -> Option<Event> {
        for (level, text) in outcome.logs {
            self.agent.log(level, text);
        }
        match &outcome.event {
            // On an error there are none of them.
            Some(Event::SlotsAllocated { slots, result: Err(_) }) => {
                slots.iter().for_each(|slot| drop(self.slots.remove(slot)));
            }
            Some(Event::PersistEnded { persist, .. }) => drop(self.running.remove(persist)),
            Some(Event::SendEnded { send }) => drop(self.askers.remove(send)),
            Some(Event::FetchEnded { fetch, .. }) => drop(self.fetches.remove(fetch)),
            Some(Event::FilesChecked { check, .. }) => drop(self.checks.remove(check)),
            _ => {}
        }
        outcome.event
    }

    /// A process that tries again and again does not fill the log: the 1st, 2nd, 4th, 8th refusal is there, and so on.
    fn log_refused(&mut self, text: &str) {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            let text = match self.refused {
                1 => text.to_owned(),
                count => format!("{text} ({count} so far)"),
            };
            self.agent.log(Level::Warn, text);
        }
    }

    /// Sends what is left to send, and waits shortly for threads to remove their temporary files.
    async fn end(mut self) {
        self.clients.close_all();
        self.running.values().for_each(|running| running.cancel());
        let words = async {
            while !(self.clients.is_empty() && self.running.is_empty()) {
                match self.inputs.recv().await {
                    Some(Input::Disconnected(connection)) => drop(self.clients.ended(connection)),
                    Some(Input::Worked(_, outcome)) => drop(self.said(outcome)),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        let _some_hang = timeout(LAST_WORDS, words).await;
        let _agent_hangs = timeout(LAST_WORDS, self.agent.flush()).await;
    }

    fn now(&self) -> Moment {
        Moment(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn instant(&self, moment: Moment) -> TokioInstant {
        // A moment that no clock reaches is far away.
        let after = Duration::from_millis(moment.0);
        let due = self.started.checked_add(after).unwrap_or(self.started + Duration::from_secs(1 << 32));
        TokioInstant::from_std(due)
    }
}

async fn is_due(deadline: Option<TokioInstant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
