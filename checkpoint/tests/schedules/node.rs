//! The shell of a saver, without memory and disks: slots have the number of a step instead of bytes.

use std::collections::{BTreeMap, VecDeque};

use checkpoint::{
    Moment,
    header::Header,
    manifest::Manifest,
    message::{Dir, Endpoint, FetchSource, FileSum, Format, FromSaver, Reply, Request, ShardId},
    slots::{
        CheckId, Connection, Effect, Event, FetchId, FetchOrder, Fetched, FileCheck, Persist, PersistId,
        Process, Saver, SendId, Sent, Settings, SlotId, Written,
    },
};

use crate::{cluster::Kind, disk::Disk};

const EPOCH: u64 = 3;
pub const LAYOUT: u64 = 4;
const BYTES: u64 = 100;

pub fn alloc(kind: Kind) -> Request {
    let slots = if kind == Kind::TwoSlots { Some(2) } else { None };
    Request::Alloc { bytes: BYTES, layout_id: LAYOUT, slots }
}

/// What is in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Nothing,
    Whole(u64),
    Half,
}

/// Work that is not done yet, besides writes.
#[derive(Debug)]
pub enum Work {
    Header(SlotId),
    Folder(Dir),
    Files(CheckId, Vec<FileCheck>),
    Manifest(Dir, Box<Manifest>, bool),
}

/// A slot that another node has asked for.
#[derive(Debug)]
pub struct Sending {
    pub slot: SlotId,
    pub sent: Sent,
    pub is_cancelled: bool,
}

/// A slot that is fetched.
#[derive(Debug)]
pub struct Fetching {
    pub order: FetchOrder,
    /// The number by which the other node knows it; `None`: it was not asked yet.
    pub send: Option<SendId>,
    pub is_cancelled: bool,
}

#[derive(Debug)]
pub struct Node {
    pub saver: Saver,
    pub slots: BTreeMap<SlotId, Content>,
    /// The shard of each slot, as its writers have said.
    pub shards: BTreeMap<SlotId, u32>,
    pub writers: BTreeMap<SlotId, Process>,
    pub writes: BTreeMap<PersistId, Persist>,
    pub work: VecDeque<Work>,
    pub replies: VecDeque<(Connection, Reply)>,
    pub told: VecDeque<FromSaver>,
    number: u64,
    pub fetches: BTreeMap<FetchId, Fetching>,
    pub sends: BTreeMap<SendId, Sending>,
}

impl Node {
    pub fn new(number: u64, allowed_slots: u64) -> Self {
        let allowance = allowed_slots * BYTES;
        let settings = Settings { epoch: EPOCH, run_id: "run".to_owned(), allowance };
        Self {
            saver: Saver::new(settings),
            slots: BTreeMap::new(),
            shards: BTreeMap::new(),
            writers: BTreeMap::new(),
            writes: BTreeMap::new(),
            work: VecDeque::new(),
            replies: VecDeque::new(),
            told: VecDeque::new(),
            number,
            fetches: BTreeMap::new(),
            sends: BTreeMap::new(),
        }
    }

    /// The number of the node that a source names.
    pub fn number_of(from: &FetchSource) -> u64 {
        from.ticket.parse().unwrap()
    }

    pub fn handle(&mut self, now: Moment, event: Event, disk: &mut Disk) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.saver.handle(now, event) {
                events.extend(self.perform(effect, disk));
            }
        }
    }

    fn perform(&mut self, effect: Effect, disk: &mut Disk) -> Option<Event> {
        if !matches!(effect, Effect::Reply { .. } | Effect::Tell(_)) {
            crate::trace::note(format!("effect: {effect:?}"));
        }
        match effect {
            Effect::Reply { connection, reply, .. } => self.replies.push_back((connection, reply)),
            Effect::AllocateSlots { slots, .. } => {
                self.slots.extend(slots.iter().map(|slot| (*slot, Content::Nothing)));
                return Some(Event::SlotsAllocated { slots, result: Ok(()) });
            }
            Effect::FillSlot { slot } => return Some(Event::SlotFilled { slot, result: Ok(()) }),
            Effect::FreeSlots { slots } => {
                for slot in slots {
                    assert!(!self.writers.contains_key(&slot));
                    assert!(self.writes.values().all(|write| write.slot != slot));
                    self.slots.remove(&slot);
                }
            }
            Effect::ReadHeader { slot } => {
                assert!(!self.writers.contains_key(&slot), "a header is read while it is written");
                self.work.push_back(Work::Header(slot));
            }
            Effect::Persist(persist) => {
                assert_eq!(self.slots.get(&persist.slot), Some(&Content::Whole(persist.step)));
                assert!(self.writes.len() < 2);
                assert!(self.writes.values().all(|write| write.shard != persist.shard));
                self.writes.insert(persist.id, *persist);
            }
            Effect::WriteManifest { dir, manifest, sets_tracker } => {
                self.work.push_back(Work::Manifest(dir, manifest, sets_tracker));
            }
            Effect::ReadFolder { dir, .. } => self.work.push_back(Work::Folder(dir)),
            Effect::CheckFiles { check, files } => self.work.push_back(Work::Files(check, files)),
            Effect::Remove { step, manifest, files, .. } => disk.remove(step, manifest, &files),
            Effect::Tell(message) => self.told.push_back(message),
            Effect::Listen => {
                let endpoint = Endpoint { port: 1, ticket: self.number.to_string() };
                return Some(Event::Listening { result: Ok(endpoint) });
            }
            Effect::Send { send, slot, sent } => {
                assert_eq!(self.slots.get(&slot), Some(&Content::Whole(sent.step)));
                self.sends.insert(send, Sending { slot, sent, is_cancelled: false });
            }
            Effect::RefuseSend { .. } => {}
            Effect::CancelSend { send } => {
                if let Some(sending) = self.sends.get_mut(&send) {
                    sending.is_cancelled = true;
                }
            }
            Effect::Fetch(order) => {
                assert!(!self.writers.contains_key(&order.slot), "a slot is fetched that is written");
                assert!(self.writes.values().all(|write| write.slot != order.slot));
                self.slots.insert(order.slot, Content::Half);
                self.shards.insert(order.slot, order.shard.shard);
                let fetching = Fetching { order: *order, send: None, is_cancelled: false };
                self.fetches.insert(fetching.order.id, fetching);
            }
            Effect::CancelFetch { fetch } => {
                if let Some(fetching) = self.fetches.get_mut(&fetch) {
                    fetching.is_cancelled = true;
                }
            }
            Effect::Close { .. } | Effect::CancelPersist { .. } | Effect::CancelCheck { .. } => {}
            Effect::Exit => panic!("nothing has ended"),
        }
        None
    }

    /// Does the oldest work.
    pub fn do_work(&mut self, now: Moment, disk: &mut Disk) {
        let event = match self.work.pop_front() {
            None => return,
            Some(Work::Header(slot)) => {
                let result = match self.slots.get(&slot) {
                    Some(Content::Whole(step)) => Ok(self.header(slot, *step)),
                    other => Err(format!("{other:?}")),
                };
                Event::HeaderRead { slot, result }
            }
            Some(Work::Folder(dir)) => Event::FolderRead { dir, result: Ok(disk.folder()) },
            Some(Work::Files(check, files)) => Event::FilesChecked { check, result: disk.check(&files) },
            Some(Work::Manifest(dir, manifest, sets_tracker)) => {
                let step = manifest.step;
                let result = disk.commit(&dir, *manifest, sets_tracker);
                Event::ManifestWritten { dir, step, result }
            }
        };
        self.handle(now, event, disk);
    }

    /// Ends the oldest write.
    pub fn end_write(&mut self, now: Moment, disk: &mut Disk, fails: bool) {
        let Some((persist, write)) = self.writes.pop_first() else { return };
        let Persist { slot, step, shard: ShardId { shard, .. }, format, target, .. } = write;
        // Nothing has touched the slot meanwhile.
        assert_eq!(self.slots.get(&slot), Some(&Content::Whole(step)));
        let file = match format {
            Format::Pt => target,
            Format::Dcp | Format::Safetensors => format!("{target}/__{shard}_0.distcp"),
        };
        let result = if fails {
            Err("disk full".to_owned())
        } else {
            disk.files.insert(file.clone(), step);
            let sum = FileSum { file, bytes: 10, chunk_bytes: 64 << 20, crc32: vec![0] };
            Ok(Written { files: vec![sum], millis: 1 })
        };
        self.handle(now, Event::PersistEnded { persist, result }, disk);
    }

    /// A slot has arrived, or cannot.
    pub fn fetched(&mut self, now: Moment, fetch: FetchId, sent: Result<Sent, String>, disk: &mut Disk) {
        let fetching = self.fetches.remove(&fetch).unwrap();
        let slot = fetching.order.slot;
        let result = match sent {
            _ if fetching.is_cancelled => Err("cancelled".to_owned()),
            Err(error) => Err(error),
            Ok(sent) => {
                // Only if the slot is still there.
                if let Some(content) = self.slots.get_mut(&slot) {
                    *content = Content::Whole(sent.step);
                }
                let header = Header { rank: sent.rank, world: sent.world, ..*self.header(slot, sent.step) };
                Ok(Box::new(Fetched { sent, header }))
            }
        };
        self.handle(now, Event::FetchEnded { fetch, result }, disk);
    }

    fn header(&self, slot: SlotId, step: u64) -> Box<Header> {
        let shard = self.shards.get(&slot).copied().unwrap_or(0);
        Box::new(Header {
            seq: 2,
            step,
            rank: shard,
            world: shard + 1,
            shard,
            n_shards: shard + 1,
            writer_pid: 0,
            restarts: 0,
            layout_id: LAYOUT,
            meta_off: 4096,
            meta_len: 0,
            data_off: 4096,
            data_len: 0,
            skeleton_off: 4096,
            skeleton_len: 0,
            t_begin_ns: 0,
            t_end_ns: 0,
            epoch: EPOCH,
            replicated: false,
        })
    }
}
