//! A client of the saver as small as can be: what the Python package does in a worker. For the tests, and for the
//! processes that they start and kill.

use std::{
    cell::Cell,
    fs::File,
    io::{self, ErrorKind, IoSliceMut},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::{
            fs::FileExt as _,
            net::{SocketAddr, UnixStream},
        },
    },
    time::Duration,
};

use checkpoint::{
    header::{HEADER_LEN, Header},
    message::{Dir, Format, Hello, Keep, Reply, Request, Role, SlotOffer, Storage, Wish},
};
use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};

/// Longer than anything here takes on a busy machine; only a hang reaches it.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Where the description of a state begins in a slot, and its tensors.
const META: u64 = 4096;
const DATA: u64 = 8192;

/// The layout that states of so many bytes have here.
pub fn layout_of(bytes: u64) -> u64 {
    bytes ^ 0x5eed
}

/// Bytes of a slot for a state of so many.
pub fn slot_bytes(bytes: u64) -> u64 {
    DATA + bytes
}

/// Who saves what, where: what a client says in `hello`.
#[derive(Debug, Clone)]
pub struct Facts {
    pub dir: String,
    pub rank: u32,
    pub world: u32,
    pub shard: u32,
    pub n_shards: u32,
    pub role: Role,
    pub round: u32,
    pub keep: Option<Keep>,
    pub format: Format,
    /// Of the saver, once it has said it.
    pub epoch: Cell<u64>,
}

impl Facts {
    /// The only rank, and the only shard.
    pub fn alone(dir: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            rank: 0,
            world: 1,
            shard: 0,
            n_shards: 1,
            role: Role::Writer,
            round: 0,
            keep: None,
            format: Format::Pt,
            epoch: Cell::new(0),
        }
    }

    /// One rank of several, each with a shard of its own.
    pub fn sharded(dir: &str, rank: u32, world: u32) -> Self {
        Self { rank, world, shard: rank, n_shards: world, ..Self::alone(dir) }
    }

    pub fn hello(&self) -> Hello {
        Hello {
            v: checkpoint::message::VERSION,
            run_id: crate_run_id(),
            dir: Dir::try_from(self.dir.as_str()).unwrap(),
            rank: self.rank,
            world: self.world,
            local_rank: self.rank,
            shard: self.shard,
            n_shards: self.n_shards,
            replicated: self.n_shards == 1,
            role: self.role,
            round: Some(self.round),
            format: self.format,
            keep: self.keep,
            replicas: 0,
        }
    }
}

/// The run of all tests.
pub fn crate_run_id() -> String {
    "test-run".to_owned()
}

/// The bytes of a state: every 8 of them tell the step, the rank and where they are.
pub fn fill(block: &mut [u8], step: u64, rank: u32, offset: u64) {
    for (number, word) in (offset / 8..).zip(block.chunks_exact_mut(8)) {
        let mixed = (number ^ (step << 40) ^ (u64::from(rank) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.to_le_bytes());
    }
}

/// A state as a whole. `bytes` is a multiple of 8.
pub fn state(step: u64, rank: u32, bytes: u64) -> Vec<u8> {
    let mut all = vec![0; usize::try_from(bytes).unwrap()];
    fill(&mut all, step, rank, 0);
    all
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    pub socket: UnixStream,
    received: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A slot that was given to this client.
#[derive(Debug)]
pub struct Slot {
    pub id: u64,
    pub file: File,
}

impl Client {
    /// Connects to the abstract socket of this name.
    pub fn connect(name: &str) -> io::Result<Self> {
        let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { socket, received: Vec::new(), fds: Vec::new() })
    }

    /// Sends a request and returns its reply, with the descriptors that came with it.
    pub fn ask(&mut self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        match self.send(request.to_line().as_bytes()) {
            // A saver that refuses a process answers and closes, perhaps before this line: that can still be read.
            Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Err(error)
            }
            _ => self.reply(),
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.socket, bytes)
    }

    pub fn reply(&mut self) -> io::Result<(Reply, Vec<OwnedFd>)> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let reply = serde_json::from_slice(&line).map_err(io::Error::other)?;
                return Ok((reply, std::mem::take(&mut self.fds)));
            }
            let mut chunk = [0; 4096];
            let mut control = cmsg_space!([i32; 8]);
            let mut parts = [IoSliceMut::new(&mut chunk)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
            let (length, controls) = (message.bytes, message.cmsgs()?.collect::<Vec<_>>());
            for control in controls {
                if let ControlMessageOwned::ScmRights(raw) = control {
                    // SAFETY: the kernel has just made them for this process.
                    self.fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
                }
            }
            if length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.received.extend_from_slice(&chunk[..length]);
        }
    }

    /// As [`Client::ask`], for a request that must be carried out.
    pub fn get(&mut self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        match self.ask(request).unwrap() {
            (Reply::Error(refusal), _) => panic!("{request:?}: {refusal:?}"),
            answer => answer,
        }
    }

    pub fn hello(&mut self, facts: &Facts) -> Reply {
        let (reply, _) = self.get(&Request::Hello(facts.hello()));
        if let Reply::Welcome { epoch, .. } = reply {
            facts.epoch.set(epoch);
        }
        reply
    }

    /// Slots for states of so many bytes.
    pub fn alloc(&mut self, bytes: u64) -> Vec<Slot> {
        let request = Request::Alloc { bytes: slot_bytes(bytes), layout_id: layout_of(bytes), slots: None };
        let (Reply::Allocated { slots }, fds) = self.get(&request) else { panic!("no slots") };
        assert_eq!(slots.len(), fds.len());
        slots
            .iter()
            .zip(fds)
            .map(|(SlotOffer { id, .. }, fd)| Slot { id: *id, file: File::from(fd) })
            .collect()
    }

    pub fn begin(&mut self, step: u64, bytes: u64) -> (u64, Vec<u64>) {
        let (reply, _) = self.get(&Request::Begin { step, layout_id: layout_of(bytes), wait: false });
        let Reply::Begun { slot, superseded, .. } = reply else { panic!("{reply:?}") };
        (slot, superseded)
    }

    pub fn commit(&mut self, step: u64, slot: u64, storage: Storage) -> bool {
        let wish = Wish { storage, path: String::new(), writes_disk: true };
        let (reply, _) = self.get(&Request::Commit { step, slot, wish });
        let Reply::Done { queued } = reply else { panic!("{reply:?}") };
        queued
    }

    /// Saves a whole state.
    pub fn save(
        &mut self,
        facts: &Facts,
        slots: &[Slot],
        step: u64,
        bytes: u64,
        storage: Storage,
    ) -> Vec<u64> {
        let (id, superseded) = self.begin(step, bytes);
        let slot = slots.iter().find(|slot| slot.id == id).unwrap();
        write(&slot.file, facts, step, bytes, |_| ()).unwrap();
        self.commit(step, id, storage);
        superseded
    }

    pub fn load(&mut self, step: Option<u64>) -> (Reply, Option<File>) {
        let (reply, mut fds) = self.get(&Request::Load { step });
        (reply, fds.pop().map(File::from))
    }

    pub fn wait(&mut self, step: Option<u64>) -> Reply {
        self.get(&Request::Wait { step, timeout_ms: 60_000 }).0
    }
}

/// The header of a state of one tensor.
pub fn header(facts: &Facts, step: u64, bytes: u64, meta: &[u8]) -> Header {
    Header {
        seq: 2,
        step,
        rank: facts.rank,
        world: facts.world,
        shard: facts.shard,
        n_shards: facts.n_shards,
        writer_pid: std::process::id(),
        restarts: 0,
        layout_id: layout_of(bytes),
        meta_off: META,
        meta_len: meta.len() as u64,
        data_off: DATA,
        data_len: bytes,
        skeleton_off: 0,
        skeleton_len: 0,
        t_begin_ns: 0,
        t_end_ns: 0,
        epoch: facts.epoch.get(),
        replicated: facts.n_shards == 1,
    }
}

/// What describes a state of one tensor.
pub fn meta(bytes: u64) -> Vec<u8> {
    let count = bytes / 4;
    format!(r#"{{"tensors":[["w","float32",[{count}],0,{bytes}]],"tree":{{"d":[["w",{{"T":0}}]]}}}}"#)
        .into_bytes()
}

/// Writes a state as a worker does: the mark that it is not whole first, the header last. `between` is called after each
/// part of it, with the number of bytes.
pub fn write(
    slot: &File,
    facts: &Facts,
    step: u64,
    bytes: u64,
    mut between: impl FnMut(u64),
) -> io::Result<()> {
    let meta = meta(bytes);
    let header = header(facts, step, bytes, &meta).to_bytes(&meta);
    slot.write_all_at(&1_u64.to_le_bytes(), 16)?;
    slot.write_all_at(&meta, META)?;
    let mut block = vec![0; 256 << 10];
    let mut done = 0;
    while done < bytes {
        let length = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(block.len());
        fill(&mut block[..length], step, facts.rank, done);
        slot.write_all_at(&block[..length], DATA + done)?;
        done += length as u64;
        between(done);
    }
    let mut not_whole = header.clone();
    not_whole[16..24].copy_from_slice(&1_u64.to_le_bytes());
    slot.write_all_at(&not_whole, 0)?;
    slot.write_all_at(&header[16..24], 16)
}

/// The step of a slot, and its state.
pub fn read(slot: &File) -> (u64, Vec<u8>) {
    let mut first = vec![0; HEADER_LEN];
    slot.read_exact_at(&mut first, 0).unwrap();
    let header = Header::parse(&first, slot.metadata().unwrap().len()).unwrap();
    let mut bytes = vec![0; usize::try_from(header.data_len).unwrap()];
    slot.read_exact_at(&mut bytes, header.data_off).unwrap();
    (header.step, bytes)
}
