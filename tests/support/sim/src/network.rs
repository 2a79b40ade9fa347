//! Streams, words, pushes and beats between nodes and the master.

use std::{collections::VecDeque, time::Duration};

use rules::{
    Moment,
    job::{Event as JobEvent, NodeEnd},
    job_master::Input,
    worker_group::Event as NodeEvent,
};

use crate::{
    clock::{Action, ConnId, LifeId},
    master::Reply,
    simulation::Simulation,
};

/// A stream from one launcher to one master.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conn {
    pub(crate) life: LifeId,
    /// Nothing gets through any more, whether or not the two ends know it.
    pub(crate) is_doomed: bool,
    /// When the last push arrives: they do not overtake each other.
    last_push: Moment,
    /// Which memory the master has.
    pub(crate) memory: u64,
}

/// A node's side of its stream.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) stream: Stream,
    /// What the machine was told of a stream that is away.
    told: Option<&'static str>,
    /// To be said, in this order.
    words: VecDeque<JobEvent>,
    /// One is on its way.
    is_saying: bool,
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
        if self.lives[life].link.cut_until > self.now {
            let wait = wait + self.prng.millis(0, 1000);
            return self.after(wait, Action::ConnectFails { life, reason: "timed out" });
        }
        if self.master.core.is_none() {
            return self.after(wait, Action::ConnectFails { life, reason: "refused" });
        }
        let conn = self.conns.len();
        self.conns.push(Conn { life, is_doomed: false, last_push: self.now, memory: self.checks.memory });
        self.lives[life].link.stream = Stream::Opening(conn);
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
        self.master.attend(life, conn);
        let node = self.lives[life].id.clone();
        self.tell_master(Input::Event(JobEvent::Attended { node }), Some(Reply::Opened(conn)));
    }

    /// The master has noted the stream, so the node hears that it stands.
    pub(crate) fn send_opened(&mut self, conn: ConnId) {
        if self.conns[conn].is_doomed {
            return;
        }
        if self.strikes(self.plan.rates.ack_lost) && !self.is_host(self.conns[conn].life) {
            return self.break_stream(conn);
        }
        let at = self.now + self.latency();
        self.conns[conn].last_push = at;
        self.queue.push(at, Action::Opened { conn });
    }

    pub(crate) fn on_opened(&mut self, conn: ConnId) {
        let life = self.conns[conn].life;
        let link = &mut self.lives[life].link;
        if link.stream != Stream::Opening(conn) {
            return;
        }
        (link.stream, link.told) = (Stream::Open(conn), None);
        self.after(Duration::from_secs(1), Action::Beat { conn });
        self.tell_node(life, NodeEvent::MasterBack);
    }

    pub(crate) fn on_beat(&mut self, conn: ConnId) {
        let life = self.conns[conn].life;
        if self.lives[life].link.stream != Stream::Open(conn) {
            return;
        }
        let Some(core) = &self.master.core else { return };
        let timeout = self.plan.patience.heartbeat_timeout.unwrap_or_default();
        // Coarser than in life, so that a schedule is not mostly beats.
        let interval = core.beat_interval().unwrap_or_default().max(timeout / 4);
        if !self.conns[conn].is_doomed {
            let node = self.lives[life].id.clone();
            self.tell_master(Input::Beat { node, seat: None }, None);
        }
        self.after(interval, Action::Beat { conn });
    }

    /// The master's word to a node; dropped when the node has no stream.
    pub(crate) fn push(&mut self, life: LifeId, event: NodeEvent) {
        let Some(conn) = self.master.open_stream_of(life) else { return };
        if self.conns[conn].is_doomed {
            return;
        }
        let at = (self.now + self.latency()).max(self.conns[conn].last_push);
        self.conns[conn].last_push = at;
        self.queue.push(at, Action::Push { conn, event: Box::new(event) });
    }

    pub(crate) fn on_push(&mut self, conn: ConnId, event: NodeEvent) {
        let life = self.conns[conn].life;
        if self.lives[life].link.stream == Stream::Open(conn) {
            self.check_push(conn, &event);
            let seat = match &event {
                NodeEvent::Seated { assignment } => Some(assignment.round),
                _ => None,
            };
            self.tell_node(life, event);
            if let Some(round) = seat {
                let node = self.lives[life].id.clone();
                self.say(life, JobEvent::SeatTaken { node, round });
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
            self.after(server, Action::LinkBroken { conn });
        }
    }

    pub(crate) fn on_stream_ended(&mut self, conn: ConnId, reason: &'static str) {
        let life = self.conns[conn].life;
        self.conns[conn].is_doomed = true;
        let link = &mut self.lives[life].link;
        if link.stream != Stream::Open(conn) && link.stream != Stream::Opening(conn) {
            return;
        }
        link.stream = Stream::None;
        link.words.clear();
        link.is_saying = false;
        self.on_connect_failed(life, reason);
    }

    pub(crate) fn on_link_broken(&mut self, conn: ConnId) {
        let life = self.conns[conn].life;
        if self.master.core.is_some() && self.master.end_of(life, conn) {
            let node = self.lives[life].id.clone();
            self.tell_master(Input::Event(JobEvent::LinkBroken { node }), None);
        }
    }

    /// A node's word to the master; it waits for those before it.
    pub(crate) fn say(&mut self, life: LifeId, word: JobEvent) {
        if let Stream::Open(_) = self.lives[life].link.stream {
            self.lives[life].link.words.push_back(word);
            self.say_next(life);
        }
    }

    fn say_next(&mut self, life: LifeId) {
        let Stream::Open(conn) = self.lives[life].link.stream else { return };
        let link = &mut self.lives[life].link;
        if link.is_saying {
            return;
        }
        let Some(word) = link.words.pop_front() else { return };
        link.is_saying = true;
        if self.conns[conn].is_doomed {
            return;
        }
        let is_safe = self.is_host(life);
        if !is_safe && self.strikes(self.plan.rates.word_lost) {
            return self.break_stream(conn);
        }
        let wait = self.latency();
        self.after(wait, Action::Word { conn, word: Box::new(word) });
        if !is_safe && self.strikes(self.plan.rates.ack_lost) {
            // The node hears nothing of it; the word may still be on its way when the stream is gone.
            self.break_stream(conn);
        }
    }

    pub(crate) fn on_word(&mut self, conn: ConnId, word: JobEvent) {
        let life = self.conns[conn].life;
        let is_stray = !self.master.is_newest(life, conn);
        if self.master.core.is_none() || (is_stray && !self.plan.stray_words) {
            return;
        }
        let ends =
            matches!(&word, JobEvent::NodeEnded { end: NodeEnd::Failed { .. } | NodeEnd::Left { .. }, .. });
        self.tell_master(Input::Event(word), Some(Reply::Acked { conn, ends }));
    }

    pub(crate) fn send_acked(&mut self, conn: ConnId, ends: bool) {
        if !self.conns[conn].is_doomed {
            let wait = self.latency();
            self.after(wait, Action::Acked { conn, ends });
        }
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

    /// The launcher is gone, and its side of the stream with it. Its last words may be said yet.
    pub(crate) fn close_link(&mut self, life: LifeId, says_last_words: bool) {
        let (Stream::Open(conn) | Stream::Opening(conn)) = self.lives[life].link.stream else { return };
        self.lives[life].link.stream = Stream::None;
        let words = std::mem::take(&mut self.lives[life].link.words);
        let was_doomed = std::mem::replace(&mut self.conns[conn].is_doomed, true);
        if was_doomed {
            return;
        }
        let mut wait = self.latency();
        if says_last_words {
            for word in words {
                self.after(wait, Action::Word { conn, word: Box::new(word) });
                wait += Duration::from_micros(100);
            }
        }
        let late = if self.prng.chance(100) { self.prng.millis(0, 3000) } else { Duration::ZERO };
        self.after(wait + late, Action::LinkBroken { conn });
    }
}
