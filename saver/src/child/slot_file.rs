//! The memory of one slot: a file in memory that a worker maps, and that nothing can make longer or shorter.
//!
//! It is read by `pread` and never mapped here, although the seals keep a mapping safe from SIGBUS by truncation:
//!
//! * A writer can still punch holes. Reading through a mapping allocates pages for them, where no memory may be left;
//!   `pread` gives zeros.
//! * A writer can still change bytes at any time. What is checked, checksummed and written must be the same bytes, so
//!   they are copied once and used from the copy.
//! * Page tables for a mapping of 24 GB take 48 MB.

use std::{
    fs::{File, OpenOptions},
    io,
    mem::ManuallyDrop,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::stat::{Mode, fchmod},
};

use processes::memory_file::{seal_length, sealable_memory_file};

use super::memory;

/// Allocated by one call, between two looks at the memory that is left: bytes.
const PART: u64 = 256 << 20;

/// A file of more bytes is freed on a thread of its own: freeing takes about a tenth of a second per GiB.
const FREED_AT_ONCE: u64 = 16 << 20;

/// Why a slot has no memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum SlotFileError {
    /// The host or a cgroup has no room.
    #[error("the host or the cgroup has only {have} of {need} bytes free")]
    NoMemory { need: u64, have: u64 },
    /// The slot is not needed any more.
    #[error("the slot is no longer needed")]
    Cancelled,
    #[error("cannot create a memory file: {0}")]
    System(io::Error),
}

/// The memory of one slot.
#[derive(Debug)]
pub(super) struct SlotFile {
    file: ManuallyDrop<File>,
    bytes: u64,
    is_cancelled: AtomicBool,
}

impl SlotFile {
    /// A slot of this many bytes, which takes memory only as it is filled or written.
    ///
    /// # Errors
    /// When the system allows no such file.
    pub(super) fn new(bytes: u64) -> Result<Self, SlotFileError> {
        if libc::off_t::try_from(bytes).is_err() {
            return Err(no_memory(bytes, 0));
        }
        let file = sealable_memory_file(c"dlrover-checkpoint").map_err(SlotFileError::System)?;
        let system = |errno: Errno| SlotFileError::System(errno.into());
        // Only this process and root can open it again for writing, by way of /proc.
        fchmod(&file, Mode::S_IRUSR).map_err(system)?;
        let too_long = |error: io::Error| match error.raw_os_error() {
            Some(libc::EFBIG | libc::EINVAL | libc::ENOMEM) => no_memory(bytes, 0),
            _ => SlotFileError::System(error),
        };
        file.set_len(bytes).map_err(too_long)?;
        seal_length(&file).map_err(SlotFileError::System)?;
        Ok(Self { file: ManuallyDrop::new(file), bytes, is_cancelled: AtomicBool::new(false) })
    }

    /// Allocates all of it now: a worker that writes it later needs no further memory, and bytes that it has written
    /// stay. Blocks for about a third of a second per GiB.
    ///
    /// # Errors
    /// When there is no memory for it. What was allocated so far stays.
    pub(super) fn fill(&self) -> Result<(), SlotFileError> {
        let mut done = 0;
        while done < self.bytes {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return Err(SlotFileError::Cancelled);
            }
            check_room(self.missing())?;
            let part = (self.bytes - done).min(PART);
            match fallocate(self, FallocateFlags::empty(), offset_of(done), offset_of(part)) {
                Ok(()) => done += part,
                Err(Errno::EINTR) => {}
                Err(Errno::ENOSPC | Errno::ENOMEM) => return Err(no_memory(self.bytes, done)),
                Err(errno) => return Err(SlotFileError::System(errno.into())),
            }
        }
        Ok(())
    }

    /// Bytes that are not allocated yet.
    pub(super) fn missing(&self) -> u64 {
        let allocated = self.file.metadata().map_or(0, |metadata| metadata.blocks().saturating_mul(512));
        self.bytes.saturating_sub(allocated)
    }

    /// Ends a `fill` on another thread.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Frees the memory before it returns, which takes about a tenth of a second per GiB.
    pub(super) fn free(self) {
        let mut slot = ManuallyDrop::new(self);
        // SAFETY: `slot` is never dropped, and nothing uses the field after this.
        drop(unsafe { ManuallyDrop::take(&mut slot.file) });
    }

    /// Its length, which never changes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// When the slot ends before: `UnexpectedEof`.
    pub(super) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    /// Writes all of these bytes from `offset` on. Nothing else writes meanwhile: the slot is not given out.
    ///
    /// # Errors
    /// When the slot ends before, or has no memory there.
    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// A descriptor that can only read, also when it is mapped.
    ///
    /// # Errors
    /// When the process has no room for a descriptor.
    pub(super) fn read_only(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(path).map(OwnedFd::from)
    }
}

impl AsFd for SlotFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SlotFile {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        if self.bytes > FREED_AT_ONCE {
            // Without room for a thread the closure is dropped here, and the file with it.
            let _no_thread = thread::Builder::new().name("free".into()).spawn(move || drop(file));
        }
    }
}

/// Whether so many bytes can be taken. Beyond the limit of a cgroup the kernel refuses nothing: it kills a worker.
///
/// # Errors
/// When there are less.
pub(super) fn check_room(need: u64) -> Result<(), SlotFileError> {
    match memory::available() {
        Some(have) if have < need => Err(no_memory(need, have)),
        _ => Ok(()),
    }
}

fn no_memory(need: u64, have: u64) -> SlotFileError {
    SlotFileError::NoMemory { need, have }
}

/// No file is longer than an `off_t` can say.
fn offset_of(bytes: u64) -> libc::off_t {
    libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nothing_changes_its_length() {
        let slot = SlotFile::new(10_000).unwrap();
        slot.fill().unwrap();
        slot.file.set_len(0).unwrap_err();
        slot.file.set_len(20_000).unwrap_err();
        slot.file.write_at(b"x", 10_000).unwrap_err();
        slot.write_all_at(b"last", 9_996).unwrap();
        // Again, as for a slot that is filled while it is written.
        slot.fill().unwrap();
        let mut end = [0; 4];
        slot.read_exact_at(&mut end, 9_996).unwrap();
        assert_eq!(&end, b"last");
        assert_eq!(slot.read_exact_at(&mut end, 9_997).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_read_only_descriptor_does_not_write() {
        let slot = SlotFile::new(4096).unwrap();
        let reader = File::from(slot.read_only().unwrap());
        reader.write_at(b"x", 0).unwrap_err();
        let keep = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert_eq!(fallocate(&reader, keep, 0, 4096), Err(Errno::EBADF));
    }

    #[test]
    fn a_slot_that_is_freed_is_gone_at_once() {
        let slot = SlotFile::new(64 << 20).unwrap();
        slot.fill().unwrap();
        let number = slot.as_fd().as_raw_fd();
        let path = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        let inode = slot.file.metadata().unwrap().ino();
        slot.free();
        // Another test may have the number by now.
        let is_it = fs::metadata(format!("/proc/self/fd/{number}")).is_ok_and(|found| found.ino() == inode);
        assert!(!is_it, "{}", path.display());
    }

    #[test]
    fn more_than_there_is_is_refused_before_it_is_taken() {
        let error = SlotFile::new(u64::MAX).unwrap_err();
        assert!(matches!(error, SlotFileError::NoMemory { need: u64::MAX, .. }), "{error}");
        let slot = SlotFile::new(1 << 50).unwrap();
        assert!(matches!(slot.fill().unwrap_err(), SlotFileError::NoMemory { .. }));
        assert_eq!(slot.missing(), 1 << 50);
        slot.cancel();
        assert!(matches!(slot.fill().unwrap_err(), SlotFileError::Cancelled));
    }
}
