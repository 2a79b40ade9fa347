//! The savers of nodes: the real state machine, [`checkpoint::slots`], whose shell is a simulated disk and simulated
//! memory. What is in a slot or a file is a [`Content`]: of which step, and of which course of the training.

use std::{collections::BTreeMap, time::Duration};

use checkpoint::{
    Moment as SaverMoment,
    header::Header,
    manifest::{Folder, Manifest, Tracker},
    message::{Endpoint, FileSum, Format, FromSaver, Reply, ShardFile, ToSaver},
    slots::{
        Connection, Effect, Event as SaverEvent, FetchId, FetchOrder, Fetched, FileCheck, FileFault, Persist,
        PersistId, Process, Saver, SendId, Sent, Settings, SlotId, Written,
    },
};
use rules::{
    Moment,
    worker_group::{Event, SAVE_TIMEOUT},
};

use crate::{
    clock::{Action, LifeId},
    simulation::Simulation,
    trainers::LAYOUT,
};

/// How long a node that cannot be reached is tried.
const CONNECT: Duration = Duration::from_secs(5);

/// Between the agent and its saver, and between a worker and the saver.
const PIPE: Duration = Duration::from_micros(100);

/// A state of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) step: u64,
    /// The round that has made it, as a number of its own: two rounds make different states of one step.
    pub(crate) course: u32,
    pub(crate) shard: u32,
}

/// The file system that all nodes share.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) files: BTreeMap<String, Content>,
    pub(crate) manifests: BTreeMap<u64, Manifest>,
    pub(crate) tracker: Option<u64>,
}

/// A slot that another node fetches.
#[derive(Debug)]
struct Sending {
    /// `None`: the saver has not answered yet.
    slot: Option<(SlotId, Sent)>,
    is_cancelled: bool,
    to: (LifeId, u64, FetchOrder),
}

/// The saver of a node.
#[derive(Debug)]
pub(crate) struct NodeSaver {
    /// Tells it from those before and after it.
    pub(crate) number: u64,
    machine: Saver,
    /// The time that it was given for its end, in milliseconds: the shortest.
    grace_ms: Option<u64>,
    timer: (u64, Option<SaverMoment>),
    slots: BTreeMap<SlotId, Option<Content>>,
    /// With the reason, when it is cancelled.
    persists: BTreeMap<PersistId, bool>,
    connections: u64,
    sends: BTreeMap<SendId, Sending>,
    /// Those that are cancelled.
    fetches: BTreeMap<FetchId, bool>,
}

impl NodeSaver {
    pub(crate) fn connect(&mut self) -> Connection {
        self.connections += 1;
        Connection(self.connections)
    }

    pub(crate) fn content(&self, slot: u64) -> Option<Content> {
        self.slots.get(&SlotId(slot)).copied().flatten()
    }

    /// A writer writes into the slot; `None`: it has begun to.
    pub(crate) fn write(&mut self, slot: u64, content: Option<Content>) {
        self.slots.insert(SlotId(slot), content);
    }
}

impl Simulation {
    pub(crate) fn start_saver(&mut self, life: LifeId) {
        self.savers_made += 1;
        let number = self.savers_made;
        let settings =
            Settings { epoch: number, run_id: self.plan.terms.run_id.0.clone(), allowance: 1 << 40 };
        self.lives[life].saver = Some(NodeSaver {
            number,
            machine: Saver::new(settings),
            grace_ms: None,
            timer: (0, None),
            slots: BTreeMap::new(),
            persists: BTreeMap::new(),
            connections: 0,
            sends: BTreeMap::new(),
            fetches: BTreeMap::new(),
        });
    }

    pub(crate) fn tell_saver(&mut self, life: LifeId, message: ToSaver) {
        let Some(saver) = &mut self.lives[life].saver else { return };
        if let ToSaver::Finish { grace_ms, .. } = &message {
            saver.grace_ms = Some(saver.grace_ms.map_or(*grace_ms, |known| known.min(*grace_ms)));
        }
        let number = saver.number;
        let event = Box::new(SaverEvent::Agent(message));
        self.after(PIPE, Action::SaverHears { life, saver: number, event });
    }

    /// A worker's client sends something, or is connected or dead.
    pub(crate) fn client_says(&mut self, life: LifeId, number: u64, event: SaverEvent) {
        self.after(PIPE, Action::SaverHears { life, saver: number, event: Box::new(event) });
    }

    pub(crate) fn saver_hears(&mut self, life: LifeId, number: u64, event: SaverEvent) {
        let at = saver_time(self.now);
        let is_deadline = event == SaverEvent::Deadline;
        let Some(saver) = self.lives[life].saver.as_mut().filter(|saver| saver.number == number) else {
            return;
        };
        if let SaverEvent::PersistEnded { persist, .. } = &event {
            saver.persists.remove(persist);
        }
        let effects = saver.machine.handle(at, event);
        let deadline = saver.machine.deadline();
        if is_deadline && deadline.is_some_and(|deadline| deadline <= at) {
            let messages = format!("a deadline of a saver was handled and stays: {:?}", saver.machine);
            self.fail(|| messages);
        }
        if let Some(saver) = &mut self.lives[life].saver
            && saver.timer.1 != deadline
        {
            saver.timer = (saver.timer.0 + 1, deadline);
            let generation = saver.timer.0;
            if let Some(deadline) = deadline {
                let at = Moment::at_millis(deadline.0).max(self.now);
                self.queue.push(at, Action::SaverTimer { life, saver: number, generation });
            }
        }
        for effect in effects {
            self.note(|| format!("saver {number}: {effect:?}"));
            self.carry_out_saver(life, number, effect);
        }
    }

    pub(crate) fn on_saver_timer(&mut self, life: LifeId, number: u64, generation: u64) {
        let saver = self.lives[life].saver.as_mut().filter(|saver| saver.number == number);
        if let Some(saver) = saver.filter(|saver| saver.timer.0 == generation) {
            saver.timer.1 = None;
            self.saver_hears(life, number, SaverEvent::Deadline);
        }
    }

    fn carry_out_saver(&mut self, life: LifeId, number: u64, effect: Effect) {
        let soon = self.prng.millis(0, 3);
        let Some(saver) = &mut self.lives[life].saver else { return };
        let answer = match effect {
            Effect::Reply { connection, reply, .. } => return self.reply(life, number, connection, reply),
            Effect::Close { connection } => return self.connection_closed(life, number, connection),
            Effect::AllocateSlots { slots, .. } => {
                saver.slots.extend(slots.iter().map(|slot| (*slot, None)));
                SaverEvent::SlotsAllocated { slots, result: Ok(()) }
            }
            Effect::FillSlot { slot } => SaverEvent::SlotFilled { slot, result: Ok(()) },
            Effect::FreeSlots { slots } => return saver.slots.retain(|slot, _| !slots.contains(slot)),
            Effect::ReadHeader { slot } => {
                let content = saver.slots.get(&slot).copied().flatten();
                let header = content.map(|content| Box::new(header(content, number)));
                SaverEvent::HeaderRead { slot, result: header.ok_or_else(|| "it is not whole".to_owned()) }
            }
            Effect::Persist(persist) => return self.persist(life, number, *persist),
            Effect::CancelPersist { persist } => {
                if let Some(is_cancelled) = saver.persists.get_mut(&persist) {
                    *is_cancelled = true;
                }
                return;
            }
            Effect::WriteManifest { dir, manifest, sets_tracker } => {
                let wait = self.prng.millis(1, 50);
                let action = Action::ManifestWritten { life, saver: number, dir, manifest, sets_tracker };
                return self.after(wait, action);
            }
            Effect::ReadFolder { dir, .. } => SaverEvent::FolderRead { dir, result: Ok(self.disk.folder()) },
            Effect::CheckFiles { check, files } => SaverEvent::FilesChecked {
                check,
                result: files.iter().try_for_each(|file| self.disk.check(file)),
            },
            // It ends all the same, and nothing waits for it.
            Effect::CancelCheck { .. } => return,
            Effect::Remove { step, manifest, files, .. } => {
                if manifest {
                    self.disk.manifests.remove(&step);
                } else if self.disk.manifests.contains_key(&step) {
                    // It counts by now.
                    return;
                }
                return self.disk.files.retain(|file, _| !files.contains(file));
            }
            Effect::Listen => {
                let endpoint = Endpoint { port: 1, ticket: number.to_string() };
                SaverEvent::Listening { result: Ok(endpoint) }
            }
            Effect::Fetch(order) => {
                saver.fetches.insert(order.id, false);
                let wait = self.prng.millis(0, 5);
                return self.after(wait, Action::FetchAsks { life, saver: number, order });
            }
            Effect::CancelFetch { fetch } => {
                if let Some(is_cancelled) = saver.fetches.get_mut(&fetch) {
                    *is_cancelled = true;
                }
                return;
            }
            Effect::Send { send, slot, sent } => {
                if let Some(sending) = saver.sends.get_mut(&send) {
                    sending.slot = Some((slot, sent));
                }
                let wait = self.prng.millis(1, 500);
                return self.after(wait, Action::SlotSent { life, saver: number, send });
            }
            Effect::RefuseSend { send, reason } => {
                let Some(Sending { to: (to, of, order), .. }) = saver.sends.remove(&send) else { return };
                return self.fetch_ends(to, of, &order, Err(reason));
            }
            Effect::CancelSend { send } => {
                if let Some(sending) = saver.sends.get_mut(&send) {
                    sending.is_cancelled = true;
                }
                return;
            }
            Effect::Tell(said) => return self.saver_says(life, said),
            Effect::Exit => return self.saver_ends(life, "exited with code 0"),
        };
        self.after(soon, Action::SaverHears { life, saver: number, event: Box::new(answer) });
    }

    fn saver_says(&mut self, life: LifeId, said: FromSaver) {
        let grace_ms = self.lives[life].saver.as_ref().and_then(|saver| saver.grace_ms);
        // Writes are slow, but the time that the end of a run gives is far more than they need.
        if let FromSaver::Log { text, .. } = &said
            && text.starts_with("timed out before all steps")
            && self.plan.answers_at_the_end()
            && grace_ms.is_some_and(|grace_ms| u128::from(grace_ms) >= SAVE_TIMEOUT.as_millis())
        {
            self.fail(|| format!("the end waited in vain: {text}"));
        }
        self.locally(PIPE, life, Event::SaverSaid { said: Box::new(said) });
    }

    /// The process is gone, and what was in memory with it.
    pub(crate) fn saver_ends(&mut self, life: LifeId, reason: &str) {
        if let Some(saver) = self.lives[life].saver.take() {
            self.break_sends(saver.sends);
            self.trainers_disconnected(life);
            self.locally(PIPE, life, Event::SaverEnded { reason: reason.to_owned() });
        }
    }

    fn persist(&mut self, life: LifeId, number: u64, persist: Persist) {
        let Some(saves) = self.plan.saves else { return };
        let Some(saver) = &mut self.lives[life].saver else { return };
        saver.persists.insert(persist.id, false);
        let content = saver.slots.get(&persist.slot).copied().flatten();
        let wait = self.prng.millis(saves.persist.0, saves.persist.1);
        let fails = self.strikes(saves.fails);
        self.after(
            wait,
            Action::Persisted { life, saver: number, persist: Box::new(persist), content, fails },
        );
    }

    pub(crate) fn on_persisted(
        &mut self,
        life: LifeId,
        number: u64,
        persist: Persist,
        content: Option<Content>,
        fails: bool,
    ) {
        let Some(saver) = self.lives[life].saver.as_ref().filter(|saver| saver.number == number) else {
            return;
        };
        let is_cancelled = saver.persists.get(&persist.id).copied().unwrap_or(true);
        let written =
            content.filter(|content| (content.step, content.shard) == (persist.step, persist.shard.shard));
        if written.is_none() {
            self.fail(|| format!("{persist:?} has {content:?} in its slot"));
        }
        let result = match (written, is_cancelled, fails) {
            (None, ..) => Err("the slot has another step".to_owned()),
            (_, true, _) => Err("cancelled".to_owned()),
            (_, _, true) => Err("no space left on device".to_owned()),
            (Some(content), false, false) => {
                self.disk.files.insert(persist.target.clone(), content);
                let (file, bytes, chunk_bytes) = (persist.target, 1, 64 << 20);
                let files = vec![FileSum { file, bytes, chunk_bytes, crc32: vec![content.course] }];
                Ok(Written { files, millis: 100 })
            }
        };
        self.saver_hears(life, number, SaverEvent::PersistEnded { persist: persist.id, result });
    }

    pub(crate) fn on_manifest_written(
        &mut self,
        life: LifeId,
        number: u64,
        dir: checkpoint::message::Dir,
        manifest: Manifest,
        sets_tracker: bool,
    ) {
        if self.lives[life].saver.as_ref().is_none_or(|saver| saver.number != number) {
            return;
        }
        let step = manifest.step;
        // As the saver does: a step whose files are gone again does not count.
        let mut paths = manifest.paths(&dir).map(|file| file.path);
        let missing = paths.find(|path| !self.disk.files.contains_key(path));
        drop(paths);
        if let Some(missing) = missing {
            let result = Err(format!("{missing} is not there"));
            return self.saver_hears(life, number, SaverEvent::ManifestWritten { dir, step, result });
        }
        if let Err(why) = self.disk.check_manifest(&dir, &manifest) {
            self.fail(|| format!("step {step} is committed, and {why}: {manifest:?}"));
        }
        self.disk.manifests.insert(step, manifest);
        if sets_tracker {
            self.disk.tracker = Some(step);
        }
        self.saver_hears(life, number, SaverEvent::ManifestWritten { dir, step, result: Ok(()) });
    }

    /// A saver asks the one that a fetch names.
    pub(crate) fn on_fetch_asks(&mut self, life: LifeId, number: u64, order: FetchOrder) {
        let is_source =
            |saver: &NodeSaver| Ok(saver.number) == order.from.ticket.parse() && saver.number != number;
        let found = self.lives.iter().position(|life| life.saver.as_ref().is_some_and(is_source));
        let Some(source) = found else {
            return self.fetch_ends(life, number, &order, Err("connection refused".to_owned()));
        };
        let (here, there) = (self.end_of_life(life), self.end_of_life(source));
        if self.cut_until(here, there).or(self.cut_until(there, here)).is_some() {
            let event = SaverEvent::FetchEnded { fetch: order.id, result: Err("timed out".to_owned()) };
            return self.after(CONNECT, Action::SaverHears { life, saver: number, event: Box::new(event) });
        }
        self.sends_made += 1;
        let send = SendId(self.sends_made);
        let Some(saver) = &mut self.lives[source].saver else { return };
        let FetchOrder { shard, step, layout_id, bytes, .. } = order.clone();
        saver.sends.insert(send, Sending { slot: None, is_cancelled: false, to: (life, number, order) });
        let of = saver.number;
        self.saver_hears(source, of, SaverEvent::Asked { send, shard, step, layout_id, bytes });
    }

    /// The slot is what it was when the saver was asked, unless a save has taken it: then nothing was sent.
    pub(crate) fn on_slot_sent(&mut self, life: LifeId, number: u64, send: SendId) {
        let Some(saver) = self.lives[life].saver.as_mut().filter(|saver| saver.number == number) else {
            // Its node is gone. What it was to send is given up by the other end.
            return;
        };
        let Some(Sending { slot, is_cancelled, to: (to, of, order) }) = saver.sends.remove(&send) else {
            return;
        };
        let result = match slot {
            _ if is_cancelled => Err("the connection ended".to_owned()),
            None => Err("the connection ended".to_owned()),
            Some((slot, sent)) => match saver.slots.get(&slot).copied() {
                // Slots that are freed meanwhile keep what they have until the last byte is sent.
                None => Err("the connection ended".to_owned()),
                Some(content) if content.is_some_and(|content| content.step == sent.step) => {
                    content.map(|content| (content, sent)).ok_or_else(String::new)
                }
                Some(content) => {
                    self.fail(|| format!("{order:?} is sent {content:?}"));
                    return;
                }
            },
        };
        self.saver_hears(life, number, SaverEvent::SendEnded { send });
        self.fetch_ends(to, of, &order, result);
    }

    fn fetch_ends(
        &mut self,
        life: LifeId,
        number: u64,
        order: &FetchOrder,
        result: Result<(Content, Sent), String>,
    ) {
        let Some(saver) = self.lives[life].saver.as_mut().filter(|saver| saver.number == number) else {
            return;
        };
        let is_cancelled = saver.fetches.remove(&order.id).unwrap_or(true);
        let result = result.and_then(|(content, sent)| {
            if is_cancelled {
                return Err("cancelled".to_owned());
            }
            if let Some(slot) = saver.slots.get_mut(&order.slot) {
                *slot = Some(content);
            }
            let header = Header { rank: sent.rank, world: sent.world, ..header(content, number) };
            Ok(Box::new(Fetched { sent, header }))
        });
        self.saver_hears(life, number, SaverEvent::FetchEnded { fetch: order.id, result });
    }

    /// The saver of a node is gone: what others were to fetch from it breaks off.
    fn break_sends(&mut self, sends: BTreeMap<SendId, Sending>) {
        for Sending { to: (life, saver, order), .. } in sends.into_values() {
            let result = Err("the connection was reset".to_owned());
            let event = Box::new(SaverEvent::FetchEnded { fetch: order.id, result });
            self.after(PIPE, Action::SaverHears { life, saver, event });
        }
    }

    /// The launcher is gone: its saver ends by itself.
    pub(crate) fn orphan_saver(&mut self, life: LifeId) {
        if let Some(saver) = &self.lives[life].saver {
            let number = saver.number;
            self.after(
                PIPE,
                Action::SaverHears { life, saver: number, event: Box::new(SaverEvent::AgentGone) },
            );
        }
    }

    pub(crate) fn client_died(
        &mut self,
        life: LifeId,
        number: u64,
        connection: Connection,
        process: Process,
    ) {
        self.client_says(life, number, SaverEvent::Disconnected { connection });
        self.client_says(life, number, SaverEvent::ProcessDied { process });
    }

    fn reply(&mut self, life: LifeId, number: u64, connection: Connection, reply: Reply) {
        // What a load shows is what is in the slot when the reply is made: the slot is pinned.
        let content = match &reply {
            Reply::Loaded { slot: Some(slot), .. } => {
                self.lives[life].saver.as_ref().and_then(|saver| saver.content(*slot))
            }
            _ => None,
        };
        let reply = Box::new(reply);
        self.after(PIPE, Action::TrainerHears { life, saver: number, connection, reply, content });
    }
}

impl Disk {
    fn folder(&self) -> Folder {
        let tracker = self.tracker.map_or(Tracker::Missing, Tracker::Step);
        Folder { tracker, manifests: self.manifests.clone(), unusable: BTreeMap::new() }
    }

    fn check(&self, file: &FileCheck) -> Result<(), FileFault> {
        let missing = || FileFault::Unreadable(format!("{} is missing", file.path));
        let found = self.files.get(&file.path).ok_or_else(missing)?;
        match &file.crc32 {
            Some((_, crc32)) if *crc32 != [found.course] => {
                Err(FileFault::Differs(format!("{} has other bytes", file.path)))
            }
            _ => Ok(()),
        }
    }

    /// A worker writes a state that is the same on all ranks by itself.
    pub(crate) fn write_alone(&mut self, content: Content, world: u32) {
        let Content { step, course, .. } = content;
        let file = format!("{step}/rank_0.pt");
        self.files.insert(format!("/ckpt/{file}"), content);
        let (shard, rank, n_shards, replicated, format) = (0, 0, 1, true, Format::Pt);
        let (bytes, chunk_bytes, crc32, also) = (1, 64 << 20, vec![course], Vec::new());
        let shards = vec![ShardFile {
            shard,
            rank,
            n_shards,
            world,
            replicated,
            format,
            file,
            bytes,
            chunk_bytes,
            crc32,
            also,
        }];
        let (version, time, saved_in) = (checkpoint::manifest::VERSION, None, None);
        let manifest =
            Manifest { version, step, world, n_shards, replicated, format, time, saved_in, shards };
        self.manifests.insert(step, manifest);
        self.tracker = Some(step);
    }

    /// Every shard is there, and all of them are of one course of the training.
    fn check_manifest(&self, dir: &checkpoint::message::Dir, manifest: &Manifest) -> Result<(), String> {
        let mut course = None;
        for shard in 0..manifest.n_shards {
            let file = manifest.paths(dir).find(|file| file.shard == shard);
            let file = file.ok_or_else(|| format!("shard {shard} is missing"))?;
            let found = self.files.get(&file.path).ok_or_else(|| format!("{} is not there", file.path))?;
            if found.step != manifest.step || file.sum.crc32 != [found.course] {
                return Err(format!("{} has {found:?}", file.path));
            }
            if *course.get_or_insert(found.course) != found.course {
                return Err(format!("shard {shard} is of another course of the training"));
            }
        }
        Ok(())
    }

    /// What a load of this step gives a rank.
    pub(crate) fn content(&self, step: u64, rank: u32) -> Option<Content> {
        let path = |rank: u32| format!("/ckpt/{step}/rank_{rank}.pt");
        let manifest = self.manifests.get(&step)?;
        self.files
            .get(&path(if manifest.n_shards == 1 { manifest.shards.first()?.rank } else { rank }))
            .copied()
    }
}

fn header(content: Content, epoch: u64) -> Header {
    Header {
        seq: 2,
        step: content.step,
        rank: 0,
        world: 1,
        shard: content.shard,
        n_shards: 1,
        writer_pid: 1,
        restarts: 0,
        layout_id: LAYOUT,
        meta_off: 4096,
        meta_len: 0,
        data_off: 8192,
        data_len: 0,
        skeleton_off: 0,
        skeleton_len: 0,
        t_begin_ns: 0,
        t_end_ns: 0,
        epoch,
        replicated: false,
    }
}

fn saver_time(now: Moment) -> SaverMoment {
    SaverMoment(u64::try_from(now.since_start().as_millis()).unwrap_or(u64::MAX))
}
