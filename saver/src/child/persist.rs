//! A slot that is written to disk.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use checkpoint::{
    format::{
        self, PlannedFile, Source,
        meta::Meta,
        plan::Plan,
        stream::{Part, Stream},
    },
    header::{HEADER_LEN, Header},
    message::{FileSum, Format},
    slots::{Event, Persist, PersistId, Written, pause_left},
};

use super::{folder, output::Output, pause::Pause, slot_file::SlotFile, staged, temporary::Temporary};

/// Bytes that are copied at once: they stay in a core's cache from the copy to the checksum to the write.
const BLOCK: u64 = 1 << 20;

/// Bytes of pickles of one state at most. They are held in memory while the files are planned.
const MAX_SKELETON: u64 = 256 << 20;

/// A write that runs.
#[derive(Debug)]
pub(super) struct Running {
    is_cancelled: AtomicBool,
    bytes: AtomicU64,
    of: AtomicU64,
    saves: Arc<Pause>,
    waited_micros: AtomicU64,
}

impl Running {
    /// A write that waits while there are `saves`.
    pub(super) fn new(saves: Arc<Pause>) -> Self {
        let (is_cancelled, of) = (AtomicBool::default(), AtomicU64::default());
        Self { is_cancelled, bytes: AtomicU64::default(), of, saves, waited_micros: AtomicU64::default() }
    }

    /// Ends the write after the block that it is at.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.saves.wake();
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn waited(&self) -> Duration {
        Duration::from_micros(self.waited_micros.load(Ordering::Relaxed))
    }

    /// Stands back while a worker saves, for as long as it may.
    fn await_saves(&self, began: Instant) {
        let now = Instant::now();
        self.saves.wait(pause_left(now.duration_since(began), self.waited()), || self.is_cancelled());
        let micros = u64::try_from(now.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.waited_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(super) fn progress(&self, persist: PersistId) -> Event {
        let (bytes, of) = (self.bytes.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed));
        Event::Progressed { persist, bytes, of }
    }
}

/// Reads and checks the header of a slot, and what describes its state.
///
/// # Errors
/// When the slot is not whole, or something in it does not fit together.
pub(super) fn read_header(slot: &SlotFile) -> Result<(Header, Meta), String> {
    let (_, header, meta) = read_head(slot)?;
    Ok((header, meta))
}

fn read_head(slot: &SlotFile) -> Result<(Vec<u8>, Header, Meta), String> {
    let first = fetch(slot, 0..HEADER_LEN as u64)?;
    let header = Header::parse(&first, slot.bytes()).map_err(|error| error.to_string())?;
    let meta = fetch(slot, header.meta_range())?;
    header.check(&first, &meta).map_err(|error| error.to_string())?;
    let meta = Meta::parse(&meta, header.data_len, header.skeleton_len).map_err(|error| error.to_string())?;
    Ok((first, header, meta))
}

/// Bytes of a slot. The caller bounds how many.
pub(super) fn fetch(slot: &SlotFile, range: Range<u64>) -> Result<Vec<u8>, String> {
    let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; length];
    slot.read_exact_at(&mut bytes, range.start).map_err(|error| {
        format!("cannot read {length} bytes at byte {} of the slot: {error}", range.start)
    })?;
    Ok(bytes)
}

/// Writes the files of a slot. They appear under their names whole and synced, or not at all.
///
/// # Errors
/// What failed, with the path and what the system says.
pub(super) fn write(slot: &SlotFile, persist: &Persist, running: &Running) -> Result<Written, String> {
    let began = Instant::now();
    let (first, header, meta) = read_head(slot)?;
    check_identity(&header, persist)?;
    if header.skeleton_len > MAX_SKELETON {
        let found = header.skeleton_len;
        return Err(format!(
            "the pickles of the state have {found} bytes (maximum: {MAX_SKELETON}): keep large data in tensors"
        ));
    }
    let skeleton = fetch(slot, header.skeleton_range())?;
    let plans = Source::new(&meta, header.data_off, header.skeleton_off, &skeleton)
        .and_then(|source| format::files(format_of(persist.format), &source, header.rank))
        .map_err(|error| format!("step {} cannot be written in its format: {error}", persist.step))?;
    running.of.store(plans.iter().map(|file| file.plan.len()).sum(), Ordering::Relaxed);
    let mut written = Vec::new();
    for file in &plans {
        let path = path_of(&persist.target, file);
        let result = write_file(slot, file, &path, persist, (running, began), &first);
        let sum = result.map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error.to_string(),
            _ => format!("cannot write {path}: {error}"),
        })?;
        written.push(sum);
    }
    let taken = began.elapsed().saturating_sub(running.waited());
    Ok(Written { files: written, millis: u64::try_from(taken.as_millis()).unwrap_or(u64::MAX) })
}

/// The slot must hold what is to be written: a process that writes into a slot that it was not given is found here.
fn check_identity(header: &Header, persist: &Persist) -> Result<(), String> {
    let fields = [
        ("step", header.step, persist.step),
        ("shard", u64::from(header.shard), u64::from(persist.shard.shard)),
        ("n_shards", u64::from(header.n_shards), u64::from(persist.n_shards)),
        ("rank", u64::from(header.rank), u64::from(persist.rank)),
        ("world size", u64::from(header.world), u64::from(persist.world)),
        ("replicated", u64::from(header.replicated), u64::from(persist.replicated)),
        ("layout_id", header.layout_id, persist.layout_id),
    ];
    for (name, found, expected) in fields {
        if found != expected {
            return Err(format!(
                "the slot has {name} {found}; expected {expected}: it was changed after its commit"
            ));
        }
    }
    Ok(())
}

fn format_of(format: Format) -> format::Format {
    match format {
        Format::Pt => format::Format::Pt,
        Format::Dcp => format::Format::Dcp,
        Format::Safetensors => format::Format::Safetensors,
    }
}

fn path_of(target: &str, file: &PlannedFile) -> String {
    match &file.name {
        None => target.to_owned(),
        Some(name) => format!("{}/{name}", target.trim_end_matches('/')),
    }
}

fn write_file(
    slot: &SlotFile,
    file: &PlannedFile,
    path: &str,
    persist: &Persist,
    (running, began): (&Running, Instant),
    first: &[u8],
) -> io::Result<FileSum> {
    let step = persist.step;
    let staged = staged::path(Path::new(path), step);
    // What is there may be all that the step has which counts so far: it stays until there is a manifest of this one.
    let is_staged = file.is_commit || fs::symlink_metadata(path).is_ok();
    if is_staged {
        staged::remove_all(Path::new(path), folder::tracked(&persist.shard.dir));
    } else {
        // Of a saver that was killed; it must not take the place of this one.
        staged::remove(path, step);
    }
    let target: PathBuf = if is_staged { staged } else { path.into() };
    let temporary = Temporary::create(&target)?;
    let sums = copy(slot, &file.plan, &mut Output::new(temporary.file(), file.plan.len())?, running, began)?;
    // A writer has the slot mapped for as long as it lives; ours does not touch it now, and user code must not.
    let now = fetch(slot, 0..HEADER_LEN as u64).map_err(io::Error::other)?;
    if now != first {
        return Err(io::Error::other(
            "the slot was changed while it was being written to disk, so the copy is inconsistent",
        ));
    }
    temporary.publish()?;
    let format::chunks::Sums { bytes, chunk_bytes, crc32 } = sums;
    Ok(FileSum { file: path.to_owned(), bytes, chunk_bytes, crc32 })
}

fn copy(
    slot: &SlotFile,
    plan: &Plan,
    output: &mut Output<'_>,
    running: &Running,
    began: Instant,
) -> io::Result<format::chunks::Sums> {
    let mut stream = Stream::new(plan);
    let mut block = vec![0; usize::try_from(BLOCK).unwrap_or(1)];
    loop {
        running.await_saves(began);
        if running.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the write was stopped"));
        }
        let length = match stream.next(BLOCK) {
            None => break,
            Some(Part::Bytes(bytes)) => {
                output.write(bytes)?;
                bytes.len() as u64
            }
            Some(Part::Slot { offset, len }) => {
                let length = usize::try_from(len).map_err(io::Error::other)?;
                let bytes = block.get_mut(..length).ok_or(io::ErrorKind::InvalidInput)?;
                slot.read_exact_at(bytes, offset)?;
                output.write(bytes)?;
                stream.copied(bytes).map_err(io::Error::other)?;
                len
            }
        };
        running.bytes.fetch_add(length, Ordering::Relaxed);
    }
    stream.finish().ok_or_else(|| {
        io::Error::other("the layout of the file is incomplete; this is a bug: report it with this message")
    })
}
