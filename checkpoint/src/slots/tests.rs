//! Events in, whole lists of effects out.

mod alone;
mod crashes;
mod ending;
mod fetching;
mod hostile;
mod loading;
mod persisting;
mod rounds;
mod saving;

use std::collections::BTreeMap;

use super::*;
use crate::{
    header::Header,
    manifest::{Folder, Manifest, Tracker},
    message::{
        FileSum, Format, FromSaver, Hello, Refusal, Reply, Request, RestorePoint, RestoreSource, Role,
        ShardFile, ShardState, SlotOffer, Storage, ToSaver, Wish,
    },
};

const EPOCH: u64 = 77;
const LAYOUT: u64 = 5;
const BYTES: u64 = 1 << 20;

fn dir() -> Dir {
    Dir::try_from("/ckpt").unwrap()
}

/// A saver with what its shell would remember.
struct Bench {
    saver: Saver,
    now: Moment,
    connections: u64,
}

impl Bench {
    fn new(allowance: u64) -> Self {
        let settings = Settings { epoch: EPOCH, run_id: "run".to_owned(), allowance };
        Self { saver: Saver::new(settings), now: Moment(1000), connections: 0 }
    }

    /// Round 0 of a world in which this node has all ranks.
    fn in_round(world: u32) -> Self {
        let mut bench = Self::new(1 << 30);
        assert_eq!(bench.agent(round(0, world, Vec::new())), []);
        bench
    }

    /// One writer of the only shard, with three slots of numbers 1 to 3 after the generation.
    fn with_writer() -> (Self, Connection, Vec<SlotId>) {
        let mut bench = Self::in_round(1);
        let writer = bench.admitted(Process(1), hello(0, 1, Role::Writer));
        let slots = bench.allocated(writer);
        (bench, writer, slots)
    }

    fn handle(&mut self, event: Event) -> Vec<Effect> {
        self.saver.handle(self.now, event)
    }

    fn agent(&mut self, message: ToSaver) -> Vec<Effect> {
        self.handle(Event::Agent(message))
    }

    fn connect(&mut self, process: Process) -> Connection {
        self.connections += 1;
        let connection = Connection(self.connections);
        assert_eq!(self.handle(Event::Connected { connection, process }), []);
        connection
    }

    fn send(&mut self, connection: Connection, request: Request) -> Vec<Effect> {
        self.handle(Event::Received { connection, request: Ok(request) })
    }

    /// A connection that was welcomed; the directory is empty when it is read.
    fn admitted(&mut self, process: Process, hello: Hello) -> Connection {
        let connection = self.connect(process);
        let dir = hello.dir.clone();
        let asked = self.send(connection, Request::Hello(hello));
        let is_read = asked.iter().any(|effect| matches!(effect, Effect::ReadFolder { .. }));
        let welcomed = if is_read { self.folder_read(&dir, Folder::default()) } else { asked };
        assert!(
            matches!(&welcomed[..], [Effect::Reply { reply: Reply::Welcome { .. }, .. }]),
            "{welcomed:?}"
        );
        connection
    }

    fn folder_read(&mut self, dir: &Dir, folder: Folder) -> Vec<Effect> {
        self.handle(Event::FolderRead { dir: dir.clone(), result: Ok(folder) })
    }

    fn allocated(&mut self, connection: Connection) -> Vec<SlotId> {
        let asked = self.send(connection, alloc(BYTES, LAYOUT));
        let [Effect::AllocateSlots { slots, .. }] = &asked[..] else { panic!("{asked:?}") };
        let slots = slots.clone();
        let made = self.handle(Event::SlotsAllocated { slots: slots.clone(), result: Ok(()) });
        let offers = slots.iter().map(|slot| SlotOffer { id: slot.0, bytes: BYTES }).collect();
        let fds = Fds::Writable(slots.clone());
        assert_eq!(made, [Effect::Reply { connection, reply: Reply::Allocated { slots: offers }, fds }]);
        slots
    }

    /// Begins a save, and returns its slot and the steps that it supersedes.
    fn begin(&mut self, connection: Connection, step: u64) -> (SlotId, Vec<u64>) {
        let effects = self.send(connection, begin(step));
        match &effects[..] {
            [Effect::Reply { reply: Reply::Begun { slot, superseded, pinned: false }, .. }] => {
                (SlotId(*slot), superseded.clone())
            }
            _ => panic!("{effects:?}"),
        }
    }

    fn commit(&mut self, connection: Connection, step: u64, slot: SlotId, storage: Storage) -> Vec<Effect> {
        self.send(connection, commit(step, slot, storage))
    }

    /// A whole save. Returns its slot and what follows besides the reply.
    fn save(&mut self, connection: Connection, step: u64, storage: Storage) -> (SlotId, Vec<Effect>) {
        let (slot, _) = self.begin(connection, step);
        let mut effects = self.commit(connection, step, slot, storage);
        let done = effects.remove(0);
        assert!(matches!(done, Effect::Reply { reply: Reply::Done { .. }, .. }), "{done:?}");
        (slot, effects)
    }

    fn persisted(&mut self, persist: PersistId, files: Vec<FileSum>) -> Vec<Effect> {
        self.handle(Event::PersistEnded { persist, result: Ok(Written { files, millis: 1000 }) })
    }

    fn later(&mut self, millis: u64) -> Vec<Effect> {
        self.now = self.now.plus(millis);
        self.handle(Event::Deadline)
    }

    fn states(&self) -> Vec<(u64, String, Option<u64>)> {
        let status = self.saver.status();
        let slots = status.shards.into_iter().flat_map(|shard| shard.slots);
        slots.map(|slot| (slot.id, slot.state, slot.step)).collect()
    }
}

fn round(round: u32, world: u32, restore: Vec<RestorePoint>) -> ToSaver {
    ToSaver::Round { round, world, first_rank: 0, local_world_size: world, restore, memory_is_void: false }
}

fn memory(step: u64) -> RestorePoint {
    RestorePoint {
        dir: dir(),
        step,
        source: RestoreSource::Memory,
        pending: None,
        given_up: 0,
        fetched: None,
    }
}

fn on_disk(step: u64, pending: Option<u64>) -> RestorePoint {
    RestorePoint { dir: dir(), step, source: RestoreSource::Disk, pending, given_up: 0, fetched: None }
}

/// Shard `rank` of `n_shards`, in a world of as many ranks.
fn hello(rank: u32, n_shards: u32, role: Role) -> Hello {
    Hello {
        v: 1,
        run_id: "run".to_owned(),
        dir: dir(),
        rank,
        world: n_shards,
        local_rank: rank,
        shard: rank,
        n_shards,
        replicated: n_shards == 1,
        role,
        round: None,
        format: Format::Pt,
        keep: None,
        replicas: 0,
    }
}

fn alloc(bytes: u64, layout_id: u64) -> Request {
    Request::Alloc { bytes, layout_id, slots: None }
}

fn begin(step: u64) -> Request {
    Request::Begin { step, layout_id: LAYOUT, wait: false }
}

fn commit(step: u64, slot: SlotId, storage: Storage) -> Request {
    Request::Commit { step, slot: slot.0, wish: Wish { storage, path: String::new(), writes_disk: true } }
}

fn load(step: Option<u64>) -> Request {
    Request::Load { step }
}

fn wait(step: Option<u64>) -> Request {
    Request::Wait { step, timeout_ms: 60_000 }
}

fn reply(connection: Connection, reply: Reply) -> Effect {
    Effect::Reply { connection, reply, fds: Fds::None }
}

fn done(connection: Connection, queued: bool) -> Effect {
    reply(connection, Reply::Done { queued })
}

/// The code of the only reply, which must be a refusal.
fn refused(effects: &[Effect]) -> crate::message::ErrorCode {
    match effects {
        [Effect::Reply { reply: Reply::Error(Refusal { code, .. }), .. }] => *code,
        _ => panic!("{effects:?}"),
    }
}

/// The text of the only reply, which must be a refusal.
fn refusal_text(effects: &[Effect]) -> &str {
    match effects {
        [Effect::Reply { reply: Reply::Error(Refusal { text, .. }), .. }] => text,
        _ => panic!("{effects:?}"),
    }
}

fn waited(connection: Connection, state: crate::message::WaitState, step: u64) -> Effect {
    reply(connection, Reply::Waited { state, step: Some(step), error: None })
}

/// The header of a whole slot.
fn header(step: u64, shard: u32, n_shards: u32) -> Box<Header> {
    Box::new(Header {
        seq: 2,
        step,
        rank: shard,
        world: n_shards,
        shard,
        n_shards,
        writer_pid: 1,
        restarts: 0,
        layout_id: LAYOUT,
        meta_off: 4096,
        meta_len: 0,
        data_off: 4096,
        data_len: 0,
        skeleton_off: 0,
        skeleton_len: 0,
        t_begin_ns: 0,
        t_end_ns: 0,
        epoch: EPOCH,
        replicated: n_shards == 1,
    })
}

fn sum(file: &str) -> FileSum {
    FileSum { file: file.to_owned(), bytes: 10, chunk_bytes: 64 << 20, crc32: vec![9] }
}

fn shard_file(step: u64, shard: u32, n_shards: u32) -> ShardFile {
    ShardFile {
        shard,
        rank: shard,
        n_shards,
        world: n_shards,
        replicated: n_shards == 1,
        format: Format::Pt,
        file: format!("{step}/rank_{shard}.pt"),
        bytes: 10,
        chunk_bytes: 64 << 20,
        crc32: vec![9],
        also: Vec::new(),
    }
}

fn path(step: u64, shard: u32) -> String {
    format!("/ckpt/{step}/rank_{shard}.pt")
}

fn manifest(step: u64, n_shards: u32) -> Manifest {
    Manifest {
        version: 1,
        step,
        world: n_shards,
        n_shards,
        replicated: n_shards == 1,
        format: Format::Pt,
        time: None,
        saved_in: None,
        shards: (0..n_shards).map(|shard| shard_file(step, shard, n_shards)).collect(),
    }
}

fn folder(tracker: u64, steps: &[u64], n_shards: u32) -> Folder {
    let manifests: BTreeMap<u64, Manifest> =
        steps.iter().map(|step| (*step, manifest(*step, n_shards))).collect();
    Folder { tracker: Tracker::Step(tracker), manifests, unusable: BTreeMap::new() }
}

/// The write of a shard to its default place.
fn persist(id: u64, slot: SlotId, step: u64, shard: u32, n_shards: u32) -> Effect {
    Effect::Persist(Box::new(Persist {
        id: PersistId(id),
        slot,
        step,
        shard: ShardId { dir: dir(), shard },
        n_shards,
        rank: shard,
        world: n_shards,
        replicated: n_shards == 1,
        layout_id: LAYOUT,
        format: Format::Pt,
        target: path(step, shard),
    }))
}

fn persist_id(effects: &[Effect]) -> PersistId {
    let mut ids = effects.iter().filter_map(|effect| match effect {
        Effect::Persist(persist) => Some(persist.id),
        _ => None,
    });
    ids.next().unwrap_or_else(|| panic!("{effects:?}"))
}

fn tell(message: FromSaver) -> Effect {
    Effect::Tell(message)
}

fn persisted(step: u64, saved_in: u32, shard: u32, n_shards: u32) -> Effect {
    let shard = Box::new(shard_file(step, shard, n_shards));
    tell(FromSaver::Persisted { dir: dir(), step, saved_in, given_up: 0, shard })
}

fn state(round: u32, mut shards: Vec<ShardState>) -> Effect {
    shards.iter_mut().for_each(|shard| shard.round = Some(round));
    tell(FromSaver::State { round: Some(round), shards })
}

fn shard_state(
    shard: u32,
    n_shards: u32,
    steps: &[u64],
    wishes: &[u64],
    disk_step: Option<u64>,
) -> ShardState {
    ShardState {
        dir: dir(),
        shard,
        n_shards,
        replicated: n_shards == 1,
        world: n_shards,
        rank: shard,
        steps: steps.to_vec(),
        wishes: wishes.to_vec(),
        disk_step,
        replicas: 0,
        is_replica: false,
        // Of the newest step, if there is one.
        layout_id: if steps.is_empty() { 0 } else { LAYOUT },
        bytes: if steps.is_empty() { 0 } else { BYTES },
        endpoint: None,
        round: None,
        awaits_fetches: false,
    }
}
