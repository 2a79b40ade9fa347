//! A worker: it loads, then trains and saves, in step with the others.

use checkpoint::{
    message::{Dir, Format, Hello, Keep, Reply, Request, Role, Storage, Wish},
    slots::{Connection, Process, SlotId},
};

use crate::{cluster::Kind, node};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Fresh,
    Welcome,
    Allocated,
    /// It has read this step from the slot.
    Loaded {
        step: u64,
        slot: SlotId,
    },
    /// It has this step, and trains.
    Trains,
    /// It may write into the slot.
    Begun(SlotId),
    /// Half of the state is there.
    Half(SlotId),
    /// All of it is.
    Written(SlotId),
    /// It has written the state to disk by itself, and says so.
    WrittenAlone,
}

#[derive(Debug)]
pub struct Worker {
    pub rank: u32,
    pub process: Process,
    pub connection: Connection,
    pub is_writer: bool,
    pub state: State,
    /// A request is not answered.
    pub is_waiting: bool,
    /// The step that it has restored, then the last one that it has saved.
    pub last: Option<u64>,
    /// It saves without a saver: that is lost, or has no memory for it.
    pub is_alone: bool,
}

impl Worker {
    pub fn new(kind: Kind, rank: u32, number: u64) -> Self {
        Self {
            rank,
            process: Process(number),
            connection: Connection(number),
            is_writer: kind.has_shards() || rank.is_multiple_of(2),
            state: State::Fresh,
            is_waiting: false,
            last: None,
            is_alone: false,
        }
    }

    /// The step that it saves, or will save next.
    pub fn next_step(&self) -> u64 {
        self.last.unwrap_or(0) + 1
    }

    /// The step that it has, or is saving.
    pub fn step(&self) -> u64 {
        match self.state {
            State::Begun(_) | State::Half(_) | State::Written(_) | State::WrittenAlone => self.next_step(),
            _ => self.last.unwrap_or(0),
        }
    }

    pub fn shard(&self, kind: Kind) -> u32 {
        if kind.has_shards() { self.rank } else { 0 }
    }

    /// What it asks next; `None`: it writes, or there is nothing to ask.
    pub fn request(&self, kind: Kind, world: u32, round: u32) -> Option<Request> {
        Some(match self.state {
            State::Fresh => self.hello(kind, world, round),
            State::Welcome if self.is_writer => node::alloc(kind),
            State::Welcome | State::Allocated => Request::Load { step: None },
            State::Loaded { slot, .. } => Request::LoadedDone { slot: slot.0 },
            State::Trains if !self.is_writer => return None,
            State::Trains => Request::Begin { step: self.next_step(), layout_id: node::LAYOUT, wait: true },
            State::Begun(_) | State::Half(_) => return None,
            State::Written(slot) => self.commit(kind, slot),
            State::WrittenAlone => Request::WrittenAlone {
                v: 1,
                run_id: "run".to_owned(),
                dir: Dir::try_from("/ckpt").unwrap(),
                step: self.next_step(),
                round: Some(round),
            },
        })
    }

    fn hello(&self, kind: Kind, world: u32, round: u32) -> Request {
        Request::Hello(Hello {
            v: 1,
            run_id: "run".to_owned(),
            dir: Dir::try_from("/ckpt").unwrap(),
            rank: self.rank,
            world,
            local_rank: self.rank % 2,
            shard: self.shard(kind),
            n_shards: if kind.has_shards() { world } else { 1 },
            replicated: !kind.has_shards(),
            role: if self.is_writer { Role::Writer } else { Role::Reader },
            round: Some(round),
            format: if kind.has_shards() { Format::Dcp } else { Format::Pt },
            keep: Some(Keep::Latest(2)),
            replicas: u32::from(kind == Kind::Replicas),
        })
    }

    /// Every second step goes to disk.
    fn commit(&self, kind: Kind, slot: SlotId) -> Request {
        let step = self.next_step();
        let storage = if step.is_multiple_of(2) { Storage::Disk } else { Storage::Memory };
        let writes_disk = kind.has_shards() || self.rank == 0;
        Request::Commit { step, slot: slot.0, wish: Wish { storage, path: String::new(), writes_disk } }
    }

    /// Takes a reply; returns the step that it has restored by it.
    pub fn on_reply(&mut self, reply: &Reply) -> Option<u64> {
        self.is_waiting = false;
        match (self.state, reply) {
            (State::Fresh, Reply::Welcome { .. }) => self.state = State::Welcome,
            (State::Welcome, Reply::Allocated { .. }) => self.state = State::Allocated,
            (State::Welcome | State::Allocated, Reply::Loaded { step, slot, .. }) => match slot {
                Some(slot) => self.state = State::Loaded { step: step.unwrap(), slot: SlotId(*slot) },
                None => return Some(self.restore(step.unwrap_or(0))),
            },
            (State::Loaded { step, .. }, Reply::Done { .. }) => return Some(self.restore(step)),
            (State::Trains, Reply::Begun { slot, pinned: false, .. }) => {
                self.state = State::Begun(SlotId(*slot))
            }
            (State::Written(_) | State::WrittenAlone, Reply::Done { .. }) => {
                self.last = Some(self.next_step());
                self.state = State::Trains;
            }
            _ => panic!("{reply:?} {self:?}"),
        }
        None
    }

    fn restore(&mut self, step: u64) -> u64 {
        self.last = Some(step);
        self.state = State::Trains;
        step
    }
}
