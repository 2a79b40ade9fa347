//! Events and effects of a saver.

use serde::{Deserialize, Serialize};

use crate::{
    header::Header,
    manifest::{Folder, Manifest},
    message::{
        Dir, Endpoint, FetchSource, FileSum, Format, FromSaver, Refusal, Reply, Request, ShardId, ToSaver,
    },
};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

number!(
    /// A connection of a client. The shell counts; a number is never used again.
    Connection
);
number!(
    /// A process, from `SO_PEERCRED` of a connection. The shell counts, and gives the same number to connections of one
    /// process as long as it lives; a number is never used again, unlike a process id.
    Process
);
number!(
    /// A slot: one memfd. This machine counts; a number is never used again.
    SlotId
);
number!(
    /// A write to disk. This machine counts.
    PersistId
);
number!(
    /// A check of files on disk. This machine counts.
    CheckId
);

number!(
    /// A fetch of a shard from another node. This machine counts.
    FetchId
);
number!(
    /// A shard that another node fetches from here. The shell counts.
    SendId
);

/// What a saver is told at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// A random number, which tells this saver from those before it.
    pub epoch: u64,
    /// The run that clients must name.
    pub run_id: String,
    /// Bytes that all slots may have together.
    pub allowance: u64,
}

/// An event of a saver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client connected. The shell has checked its user and its descent, and watches the process:
    /// [`Event::ProcessDied`] follows, even if the connection ends before.
    Connected { connection: Connection, process: Process },
    /// A line of a client, read by [`Request::parse`]; its error becomes a [`Refusal`]. After a line that is too long
    /// the shell reads no more of this connection. Lines may be sent before earlier ones are answered.
    Received { connection: Connection, request: Result<Request, Refusal> },
    /// The connection ended. Its process may live: a child may hold the descriptor, and an end says nothing of memory.
    Disconnected { connection: Connection },
    /// The process is dead: its pidfd is readable. Once for each process of [`Event::Connected`].
    ProcessDied { process: Process },
    /// Answers [`Effect::AllocateSlots`]. On an error there is none of them; `have` is how many bytes there are, if
    /// the system says so.
    SlotsAllocated { slots: Vec<SlotId>, result: Result<(), NoRoom> },
    /// Answers [`Effect::FillSlot`].
    SlotFilled { slot: SlotId, result: Result<(), String> },
    /// Answers [`Effect::ReadHeader`]: what [`crate::header::Header`] and
    /// [`crate::format::meta::Meta`] say, an error as text. Also of a slot that is not
    /// whole.
    HeaderRead { slot: SlotId, result: Result<Box<Header>, String> },
    /// So many bytes of the file are written. About once a second.
    Progressed { persist: PersistId, bytes: u64, of: u64 },
    /// Answers [`Effect::Persist`]. On an error, no temporary file is left and what had the name before is still there.
    PersistEnded { persist: PersistId, result: Result<Written, String> },
    /// Answers [`Effect::WriteManifest`].
    ManifestWritten { dir: Dir, step: u64, result: Result<(), String> },
    /// Answers [`Effect::ReadFolder`].
    FolderRead { dir: Dir, result: Result<Folder, String> },
    /// Answers [`Effect::CheckFiles`]: the error names the file and what is wrong with it.
    FilesChecked { check: CheckId, result: Result<(), FileFault> },
    /// Answers [`Effect::Listen`].
    Listening { result: Result<Endpoint, String> },
    /// Another node, which has shown the ticket, asks for a shard of a step.
    Asked { send: SendId, shard: ShardId, step: u64, layout_id: u64, bytes: u64 },
    /// Answers [`Effect::Send`], however it ended.
    SendEnded { send: SendId },
    /// Answers [`Effect::Fetch`]: the slot has what the other node has, with the checksums that it said, and its header
    /// names the epoch of this saver.
    FetchEnded { fetch: FetchId, result: Result<Box<Fetched>, String> },
    /// A line of the agent.
    Agent(ToSaver),
    /// Standard input ended: the launcher is gone.
    AgentGone,
    /// [`super::Saver::deadline`] is reached.
    Deadline,
}

/// Slots could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    pub have: Option<u64>,
    /// What the system said.
    pub reason: String,
}

/// Files that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// With absolute names; the first is the one of the shard: for `pt` the target, else a file in the target
    /// directory. Never empty.
    pub files: Vec<FileSum>,
    /// How long it took, in milliseconds, without the time in which it stood back for saves.
    pub millis: u64,
}

/// What is told of a shard before its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub step: u64,
    /// The round in which it was saved.
    pub saved_in: u32,
    pub rank: u32,
    pub world: u32,
    pub format: Format,
    /// Where its client wants it on disk; empty: the default.
    pub path: String,
}

/// A shard that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    pub sent: Sent,
    /// Of the slot, as it was read after the last byte.
    pub header: Header,
}

/// A shard that is to be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchOrder {
    pub id: FetchId,
    /// An allocated slot of `bytes` bytes.
    pub slot: SlotId,
    pub shard: ShardId,
    pub step: u64,
    pub layout_id: u64,
    pub bytes: u64,
    pub from: FetchSource,
}

/// Descriptors that go with a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fds {
    None,
    /// Of these slots, in this order, to be written by the client.
    Writable(Vec<SlotId>),
    /// A descriptor of this slot, opened again for reading only: the client must not be able to write with it.
    ReadOnly(SlotId),
}

/// A write of one shard of one step to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Persist {
    pub id: PersistId,
    pub slot: SlotId,
    /// The shell checks that the header names this step, this shard and these numbers, and fails otherwise.
    pub step: u64,
    pub shard: ShardId,
    pub n_shards: u32,
    pub rank: u32,
    pub world: u32,
    pub replicated: bool,
    pub layout_id: u64,
    pub format: Format,
    /// Absolute: the file for [`Format::Pt`], the directory of the step for the others. Directories are made as needed.
    pub target: String,
}

/// A file whose size and checksums are to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCheck {
    /// Absolute.
    pub path: String,
    /// `None`: that the file is there is enough, and that it is not empty.
    pub bytes: Option<u64>,
    /// Bytes of each chunk but the last, and the CRC-32 of each; `None`: the content is not read.
    pub crc32: Option<(u64, Vec<u32>)>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    /// It is not what was written: all nodes that share the file system find the same.
    #[error("{0}")]
    Differs(String),
    /// It is not there or cannot be read, which need not be so on another node.
    #[error("{0}")]
    Unreadable(String),
}

/// An effect of a saver. Effects on one directory (reading it, its documents, removals) are carried out in their
/// order, and answered in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send the line, and the descriptors with its first byte. A client that does not take it is disconnected by the
    /// shell, which never waits for one.
    Reply { connection: Connection, reply: Reply, fds: Fds },
    /// End the connection, after what was sent to it. No [`Event::Disconnected`] is needed.
    Close { connection: Connection },
    /// Make slots of so many bytes each. Memory of those in `filled` is allocated now: there must be no SIGBUS and no
    /// lack of memory later. The others get theirs by [`Effect::FillSlot`], or as they are written.
    AllocateSlots { slots: Vec<SlotId>, filled: Vec<SlotId>, bytes: u64 },
    /// Allocate the memory of a slot, in the background.
    FillSlot { slot: SlotId },
    /// Close the slots. Mappings of clients keep what they show.
    FreeSlots { slots: Vec<SlotId> },
    /// Read and check the header of a slot that no process writes.
    ReadHeader { slot: SlotId },
    /// Write a slot to disk, on a thread of its own. A file in the place of one that is there waits under another name
    /// for [`Effect::WriteManifest`]: the one that is there may be a file of the step that counts.
    Persist(Box<Persist>),
    /// End this write; [`Event::PersistEnded`] follows all the same.
    CancelPersist { persist: PersistId },
    /// Write `<dir>/.dlrover/<step>.json`, then `<dir>/dlrover_latest.txt`: each to a temporary file, fsync, rename,
    /// fsync of the directory. The shell puts the time into the manifest. Before that it looks whether the files of
    /// all shards are there, with their sizes: another node has written them, and may have another directory of this
    /// name. Files that wait for their names get them just before the manifest has its own, or after the tracker where
    /// another file has the name.
    /// Without `sets_tracker` the tracker stays: it names a newer step.
    WriteManifest { dir: Dir, manifest: Box<Manifest>, sets_tracker: bool },
    /// Read the tracker and all manifests. With `sweep`, remove temporary files of dead processes first.
    ReadFolder { dir: Dir, sweep: bool },
    /// Compare files on disk with what is known of them, in order, up to the first that differs.
    CheckFiles { check: CheckId, files: Vec<FileCheck> },
    /// Nothing waits for this check any more: end it, or do not begin it. [`Event::FilesChecked`] may follow.
    CancelCheck { check: CheckId },
    /// Remove a step: its manifest first if `manifest`; without, nothing is removed of a step that has one on disk,
    /// since another node has written it. Then these files (absolute; a missing one is no error), then
    /// `<dir>/<step>` if it is empty. Of `staged` (absolute) only what waits for these names as a file of this step,
    /// and that in any case. Nothing is answered; what fails is logged by the shell.
    Remove { dir: Dir, step: u64, manifest: bool, files: Vec<String>, staged: Vec<String> },
    /// Listen for savers of other nodes, at any port of all addresses. Once.
    Listen,
    /// Send a slot to a node that has asked for it, on a thread of its own.
    Send { send: SendId, slot: SlotId, sent: Sent },
    /// Tell a node that has asked why it gets nothing.
    RefuseSend { send: SendId, reason: String },
    /// End this: the slot is about to be written. What was read of the slot after this effect must not count at the
    /// other end. [`Event::SendEnded`] follows all the same.
    CancelSend { send: SendId },
    /// Fetch a slot from another node, on a thread of its own. No byte for so long is an error.
    Fetch(Box<FetchOrder>),
    /// End this; [`Event::FetchEnded`] follows all the same.
    CancelFetch { fetch: FetchId },
    /// Write a line for the agent.
    Tell(FromSaver),
    /// Exit with code 0, at once. The last effect.
    Exit,
}
