//! Streams, messages, pushes and heartbeats between nodes and the master.

use std::{collections::VecDeque, time::Duration};

use rules::{
    Moment,
    fence::question_timeout,
    job::{Event as JobEvent, NodeEnd},
    job_master::Input,
    push::Push,
    worker_group::Event as NodeEvent,
};

use crate::{
    clock::{Action, ConnId, LifeId},
    master::Reply,
    plan::End,
    simulation::Simulation,
};

/// How long a stream may take to open.
const CALL: Duration = Duration::from_secs(10);

/// A stream from one launcher to one master.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conn {
    pub(crate) life: LifeId,
    /// Nothing gets through any more, whether or not the two ends know it.
    pub(crate) is_doomed: bool,
    /// When the last push arrives: they do not overtake each other.
    last_push: Moment,
    /// When its last message arrives.
    last_word: Moment,
    /// When the node requested it.
    asked: Moment,
    /// The number of the master's state.
    pub(crate) memory: u64,
}

/// A node's side of its stream.
#[derive(Debug, Default)]
pub(crate) struct MasterLink {
    pub(crate) stream: Stream,
    /// What the node's state machine knows of a lost stream.
    told: Option<&'static str>,
    /// Messages to be sent, in this order.
    messages: VecDeque<JobEvent>,
    /// One is in transit.
    is_saying: bool,
    /// Answers to heartbeats on the present stream.
    beats: u64,
    /// The stream that was given up: it is closed when another one is open.
    kept: Option<ConnId>,
    /// Nothing gets through until then.
    pub(crate) cut_until: Moment,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    #[default]
    None,
    Opening(ConnId),
    Open(ConnId),
}

impl Simulation {
    fn latency(&mut self) -> Duration {
        if self.strikes(self.plan.rates.slow) { self.prng.millis(20, 1000) } else { self.prng.millis(0, 5) }
    }

    fn is_host(&self, life: LifeId) -> bool {
        self.plan.is_embedded && life == 0
    }

    pub(crate) fn connect(&mut self, life: LifeId) {
        if self.lives[life].link.stream != Stream::None {
            return;
        }
        let wait = self.latency();
        let (here, there) = (self.end_of_life(life), self.master_end());
        let is_cut = self.cut_until(here, there).or(self.cut_until(there, here)).is_some();
        if is_cut || self.lives[life].link.cut_until > self.now {
            let wait = wait + self.prng.millis(0, 1000);
            return self.after(wait, Action::ConnectFails { life, reason: "timed out" });
        }
        if self.master.core.is_none() {
            return self.after(wait, Action::ConnectFails { life, reason: "refused" });
        }
        let conn = self.conns.len();
        let (now, memory) = (self.now, self.checks.memory);
        self.conns.push(Conn { life, is_doomed: false, last_push: now, last_word: now, asked: now, memory });
        let link = &mut self.lives[life].link;
        (link.stream, link.beats) = (Stream::Opening(conn), 0);
        self.after(CALL, Action::Unanswered { conn, beats: 0 });
        self.after(wait, Action::ConnectArrives { conn });
    }

    pub(crate) fn on_connect_failed(&mut self, life: LifeId, reason: &'static str) {
        if self.lives[life].link.told != Some(reason) {
            self.lives[life].link.told = Some(reason);
            self.tell_node(life, NodeEvent::MasterAway { reason: reason.to_owned() });
        }
        let backoff = self.prng.millis(50, 500);
        self.after(backoff, Action::Connect { life });
    }

    pub(crate) fn on_connect_arrived(&mut self, conn: ConnId) {
        let life = self.conns[conn].life;
        if self.lives[life].is_over() {
            return;
        }
        if self.master.core.is_none() || self.conns[conn].is_doomed {
            let wait = self.latency();
            return self.after(wait, Action::StreamEnds { conn, reason: "refused" });
        }
        self.master.subscribe(life, conn);
        let node = self.lives[life].id.clone();
        self.tell_master(Input::Event(JobEvent::Subscribed { node }), Some(Reply::Opened(conn)));
    }

    /// The master has the stream, so the node knows that it is open.
    pub(crate) fn send_opened(&mut self, conn: ConnId) {
        if self.conns[conn].is_doomed {
            return;
        }
        if self.strikes(self.plan.rates.ack_lost) && !self.is_host(self.conns[conn].life) {
            return self.break_stream(conn);
        }
        self.send_down(conn, Action::Opened { conn });
    }

    pub(crate) fn on_opened(&mut self, conn: ConnId) {
        let life = self.conns[conn].life;
        let link = &mut self.lives[life].link;
        if link.stream != Stream::Opening(conn) {
            return;
        }
        (link.stream, link.told, link.beats, link.kept) = (Stream::Open(conn), None, 1, None);
        self.after(Duration::from_secs(1), Action::Beat { conn });
        let sent = self.conns[conn].asked;
        self.heard(life, sent);
        self.tell_node(life, NodeEvent::MasterBack);
    }

    fn heard(&mut self, life: LifeId, sent: Moment) {
        let sent = Moment::new(sent - self.lives[life].born);
        self.tell_node(life, NodeEvent::MasterAnswered { sent });
    }

    pub(crate) fn on_beat(&mut self, conn: ConnId) {
        let life = self.conns[conn].life;
        if self.lives[life].link.stream != Stream::Open(conn) {
            return;
        }
        let timeout = self.plan.timeout.heartbeat_timeout.unwrap_or_default();
        let beats = self.lives[life].link.beats;
        self.after(question_timeout(timeout), Action::Unanswered { conn, beats });
        self.send_up(conn, Action::BeatArrives { conn, sent: self.now });
    }

    pub(crate) fn on_beat_arrived(&mut self, conn: ConnId, sent: Moment) {
        let life = self.conns[conn].life;
        if self.master.core.is_none() || self.conns[conn].is_doomed {
            return;
        }
        let is_known = self.master.stream_of(life) == Some(conn);
        if is_known {
            let node = self.lives[life].id.clone();
            self.tell_master(Input::Beat { node, taken_round: None }, None);
        }
        self.send_down(conn, Action::BeatAnswered { conn, sent, is_known });
    }

    pub(crate) fn on_beat_answered(&mut self, conn: ConnId, sent: Moment, is_known: bool) {
        let life = self.conns[conn].life;
        if self.lives[life].link.stream != Stream::Open(conn) {
            return;
        }
        if !is_known {
            return self.give_up(conn, "it does not know this node");
        }
        self.lives[life].link.beats += 1;
        let timeout = self.plan.timeout.heartbeat_timeout.unwrap_or_default();
        let interval = self.master.core.as_ref().and_then(rules::job_master::JobMaster::beat_interval);
        // Coarser than in reality, so that a schedule is not mostly heartbeats.
        let interval = interval.unwrap_or_default().max(timeout / 6);
        self.after(interval, Action::Beat { conn });
        self.heard(life, sent);
    }

    pub(crate) fn on_unanswered(&mut self, conn: ConnId, beats: u64) {
        if self.lives[self.conns[conn].life].link.beats == beats {
            self.give_up(conn, "no answer");
        }
    }

    /// The launcher reconnects. It keeps its side of the old stream open meanwhile, so that it does not look gone to
    /// the master.
    fn give_up(&mut self, conn: ConnId, reason: &'static str) {
        let link = &mut self.lives[self.conns[conn].life].link;
        if link.stream == Stream::Open(conn) {
            link.kept = Some(conn);
        }
        self.leave_stream(conn, reason);
    }

    /// From the node to the master, in order; what a cut delays may arrive when it has healed, or the stream is dead.
    fn send_up(&mut self, conn: ConnId, action: Action) {
        let (here, there) = (self.end_of_life(self.conns[conn].life), self.master_end());
        if let Some(at) = self.carried(conn, here, there) {
            let at = at.max(self.conns[conn].last_word);
            self.conns[conn].last_word = at;
            self.queue.push(at, action);
        }
    }

    /// From the master to the node.
    fn send_down(&mut self, conn: ConnId, action: Action) {
        let (here, there) = (self.master_end(), self.end_of_life(self.conns[conn].life));
        if let Some(at) = self.carried(conn, here, there) {
            let at = at.max(self.conns[conn].last_push);
            self.conns[conn].last_push = at;
            self.queue.push(at, action);
        }
    }

    fn carried(&mut self, conn: ConnId, from: End, to: End) -> Option<Moment> {
        if self.conns[conn].is_doomed {
            return None;
        }
        let arrives = self.now + self.latency();
        let Some(heals) = self.cut_until(from, to) else { return Some(arrives) };
        if self.prng.chance(500) {
            return Some(arrives.max(heals + Duration::from_millis(200)));
        }
        self.conns[conn].is_doomed = true;
        None
    }

    pub(crate) fn end_of_life(&self, life: LifeId) -> End {
        End::Slot(self.lives[life].slot)
    }

    pub(crate) fn master_end(&self) -> End {
        if self.plan.is_embedded { End::Slot(0) } else { End::Master }
    }

    pub(crate) fn cut(&mut self, from: End, to: End, lasts: Duration) {
        let at = |end| if end == End::Master { self.master_end() } else { end };
        let way = (at(from), at(to));
        let until = self.now + lasts;
        if way.0 != way.1 {
            let known = self.cuts.entry(way).or_insert(until);
            *known = (*known).max(until);
        }
    }

    /// When messages will get through from here to there again; `None`: now.
    pub(crate) fn cut_until(&self, from: End, to: End) -> Option<Moment> {
        self.cuts.get(&(from, to)).copied().filter(|until| self.now < *until)
    }

    /// The master's message to a node; dropped when the node has no stream.
    pub(crate) fn push(&mut self, life: LifeId, event: NodeEvent) {
        let Some(conn) = self.master.open_stream_of(life) else { return };
        if self.conns[conn].is_doomed {
            return;
        }
        self.send_down(conn, Action::Push { conn, event: Box::new(event) });
    }

    pub(crate) fn on_push(&mut self, conn: ConnId, event: NodeEvent) {
        let life = self.conns[conn].life;
        if self.lives[life].link.stream == Stream::Open(conn) {
            self.check_push(conn, &event);
            let round = match &event {
                NodeEvent::Pushed(Push::Assigned(assignment)) => Some(assignment.round),
                _ => None,
            };
            self.tell_node(life, event);
            if let Some(round) = round {
                let node = self.lives[life].id.clone();
                self.send(life, JobEvent::AssignmentTaken { node, round });
            }
        }
    }

    /// A reset: both ends see it soon, the master sometimes late.
    pub(crate) fn break_stream(&mut self, conn: ConnId) {
        let client = self.latency();
        let server = if self.prng.chance(200) { self.prng.millis(0, 2000) } else { self.latency() };
        self.doom(conn, "reset", client, Some(server));
    }

    pub(crate) fn doom(
        &mut self,
        conn: ConnId,
        reason: &'static str,
        client: Duration,
        server: Option<Duration>,
    ) {
        if std::mem::replace(&mut self.conns[conn].is_doomed, true) {
            return;
        }
        let client = (self.now + client).max(self.conns[conn].last_push);
        self.queue.push(client, Action::StreamEnds { conn, reason });
        if let Some(server) = server {
            self.after(server, Action::LinkBroken { conn, is_off: false });
        }
    }

    pub(crate) fn on_stream_ended(&mut self, conn: ConnId, reason: &'static str) {
        self.conns[conn].is_doomed = true;
        self.leave_stream(conn, reason);
    }

    fn leave_stream(&mut self, conn: ConnId, reason: &'static str) {
        let life = self.conns[conn].life;
        let link = &mut self.lives[life].link;
        if link.stream != Stream::Open(conn) && link.stream != Stream::Opening(conn) {
            return;
        }
        link.stream = Stream::None;
        link.messages.clear();
        link.is_saying = false;
        self.on_connect_failed(life, reason);
    }

    pub(crate) fn on_link_broken(&mut self, conn: ConnId, is_off: bool) {
        let life = self.conns[conn].life;
        if self.master.core.is_some() && self.master.end_of(life, conn) {
            let node = self.lives[life].id.clone();
            self.tell_master(Input::Event(JobEvent::LinkBroken { node: node.clone() }), None);
            if is_off {
                self.tell_master(Input::HungUp { node }, None);
            }
        }
    }

    /// A node's message to the master; it waits for those before it.
    pub(crate) fn send(&mut self, life: LifeId, message: JobEvent) {
        if let Stream::Open(_) = self.lives[life].link.stream {
            self.lives[life].link.messages.push_back(message);
            self.say_next(life);
        }
    }

    fn say_next(&mut self, life: LifeId) {
        let Stream::Open(conn) = self.lives[life].link.stream else { return };
        let link = &mut self.lives[life].link;
        if link.is_saying {
            return;
        }
        let Some(message) = link.messages.pop_front() else { return };
        link.is_saying = true;
        if self.conns[conn].is_doomed {
            return;
        }
        let is_safe = self.is_host(life);
        if !is_safe && self.strikes(self.plan.rates.message_lost) {
            return self.break_stream(conn);
        }
        self.send_up(conn, Action::Message { conn, message: Box::new(message) });
        if !is_safe && self.strikes(self.plan.rates.ack_lost) {
            // The node does not know of it; the message may still be in transit when the stream is gone.
            self.break_stream(conn);
        }
    }

    pub(crate) fn on_message(&mut self, conn: ConnId, message: JobEvent) {
        let life = self.conns[conn].life;
        // A request that expects its answer on a stream has that one's session, which may be closed.
        let is_stray = match &message {
            JobEvent::Joined(_) | JobEvent::Resumed { .. } => self.master.stream_of(life) != Some(conn),
            _ => !self.master.is_newest(life, conn),
        };
        if self.master.core.is_none() || (is_stray && !self.plan.stray_messages) {
            return;
        }
        let ends = matches!(
            &message,
            JobEvent::NodeEnded { end: NodeEnd::Failed { .. } | NodeEnd::Left { .. }, .. }
        );
        self.tell_master(Input::Event(message), Some(Reply::Acked { conn, ends }));
    }

    pub(crate) fn send_acked(&mut self, conn: ConnId, ends: bool) {
        self.send_down(conn, Action::Acked { conn, ends });
    }

    pub(crate) fn on_acked(&mut self, conn: ConnId, ends: bool) {
        let life = self.conns[conn].life;
        if self.lives[life].link.stream != Stream::Open(conn) {
            return;
        }
        self.lives[life].link.is_saying = false;
        if ends {
            self.tell_node(life, NodeEvent::EndNoted);
        }
        self.say_next(life);
    }

    /// The launcher is gone, and its side of the stream with it. Its last messages may still be sent.
    pub(crate) fn close_link(&mut self, life: LifeId, sends_end: bool) {
        let link = &mut self.lives[life].link;
        let (conn, is_open) = match (link.stream, link.kept) {
            (Stream::Open(conn), _) => (conn, true),
            // Of two that are not closed yet the master knows the last that it saw.
            (Stream::Opening(conn), kept) => (kept.unwrap_or(conn), false),
            (Stream::None, Some(conn)) => (conn, false),
            (Stream::None, None) => return,
        };
        link.stream = Stream::None;
        let messages = std::mem::take(&mut link.messages);
        if sends_end && is_open {
            for message in messages {
                self.send_up(conn, Action::Message { conn, message: Box::new(message) });
            }
        }
        // The kernel's reset arrives when it gets through.
        let late = if self.prng.chance(100) { self.prng.millis(0, 3000) } else { Duration::ZERO };
        let (here, there) = (self.end_of_life(life), self.master_end());
        if let Some(at) = self.carried(conn, here, there) {
            let at = at.max(self.conns[conn].last_word + Duration::from_micros(100)) + late;
            self.queue.push(at, Action::LinkBroken { conn, is_off: true });
        }
        self.conns[conn].is_doomed = true;
    }
}
