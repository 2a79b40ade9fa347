//! A copy between two processes through shared memory. It tests no link; it shows that everything around it works.
//!
//! One process copies a buffer into a shared mapping, the other one from there into its own, block by block at the
//! same time, each on a core of its own if there are two. Every byte is compared.

use std::{
    io, ptr, slice,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use diagnosis::switchbox::{Path, SocketPair, Trouble, Wrong};
use nix::{
    libc,
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::{prctl, signal::Signal},
    unistd::{ForkResult, Pid, fork},
};
use processes::memory_file::memory_file;

use super::contract::{Measured, Response};
use crate::{
    child::pattern::{BLOCK, Pattern},
    wire::switchbox::{Direction, Request},
};

/// Bytes of one repetition: more than the caches of most processors hold.
const BYTES: usize = 32 << 20;

/// Bytes between two updates of the counters.
const PIECE: usize = 1 << 20;

/// The counters, before the data.
const PAGE: usize = 4096;

/// Any pair is accepted: there are no devices.
pub(super) fn measure(request: &Request) -> Response {
    let mut response = Response { devices: None, ..Response::new("host", 0) };
    for pair in &request.pairs {
        match both_ways(*pair, request) {
            Ok(results) => response.results.extend(results),
            Err(error) => {
                let wrong = Wrong::new(Trouble::NoAnswer, rules::chain(&error));
                response.fail(slice::from_ref(pair), &wrong);
            }
        }
    }
    response
}

fn both_ways(pair: SocketPair, request: &Request) -> io::Result<Vec<Measured>> {
    let mapping = Mapping::new()?;
    let blocks = Pattern::new(u64::from(pair.0) << 32 | u64::from(pair.1), &[]).blocks();
    let mut sent = Vec::with_capacity(BYTES);
    (0..BYTES / BLOCK).for_each(|index| sent.extend_from_slice(blocks.get(index as u64)));
    let mut results = Vec::new();
    for dir in &request.directions {
        for turn in 0..request.warmup.saturating_add(request.iters) {
            let (took, verified) = mapping.copy(&sent, *dir)?;
            if turn < request.warmup {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let mbps = BYTES as f64 / took.as_secs_f64().max(1e-9) / 1e6;
            results.push(Measured {
                pair,
                dir: *dir,
                mbps: Some(mbps),
                path: Some(Path::Host.as_str().to_owned()),
                verified: Some(verified),
                err: None,
                gpus: Some((core(&mapping.cores, 0), core(&mapping.cores, 1))),
            });
        }
    }
    Ok(results)
}

fn core(cores: &[usize], place: usize) -> String {
    cores.get(place).map_or_else(|| "any core".to_owned(), |core| format!("core {core}"))
}

/// The first two cores that this process may run on; the same one twice if there is no other.
fn cores() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(this_thread()) else { return Vec::new() };
    let mut cores: Vec<usize> =
        (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).take(2).collect();
    if let [only] = cores[..] {
        cores.push(only);
    }
    cores
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}

/// The destination buffer, if this process receives. It is written to first, so that page faults are not measured.
fn buffer(is_needed: bool) -> Vec<u8> {
    if is_needed { vec![0xff; BYTES] } else { Vec::new() }
}

fn pin(core: Option<&usize>) {
    let mut set = CpuSet::new();
    if let Some(core) = core
        && set.set(*core).is_ok()
    {
        // A container may forbid it; then any cores are measured.
        let _stays = sched_setaffinity(this_thread(), &set);
    }
}

/// Memory that this process and its children share.
struct Mapping {
    at: *mut u8,
    /// The cores of the two processes.
    cores: Vec<usize>,
}

impl Mapping {
    fn new() -> io::Result<Self> {
        let file = memory_file(c"switchbox-host")?;
        file.set_len((PAGE + BYTES) as u64)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping of a file that is private to this process, of the same length.
        let at = unsafe {
            use std::os::fd::AsRawFd as _;
            libc::mmap(ptr::null_mut(), PAGE + BYTES, protection, flags, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at: at.cast(), cores: cores() })
    }

    /// Counters: bytes written into the mapping, bytes copied out; then the verdict: 1 right, 2 wrong.
    fn counter(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the first page belongs to the counters, is aligned, and lives as long as the mapping.
        unsafe { &*self.at.cast::<AtomicU64>().add(index) }
    }

    /// Copies once. `dir`: whether this process writes or reads.
    fn copy(&self, sent: &[u8], dir: Direction) -> io::Result<(Duration, bool)> {
        (0..4).for_each(|index| self.counter(index).store(0, Ordering::Release));
        let parent = nix::unistd::getpid();
        // SAFETY: this process has one thread; the child takes no lock that another thread could hold, and exits by
        // `_exit`.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let _alone = prctl::set_pdeathsig(Some(Signal::SIGKILL));
                let is_orphan = nix::unistd::getppid() != parent;
                pin(self.cores.get(1));
                let mut received = buffer(dir == Direction::There);
                if !is_orphan {
                    self.counter(3).store(1, Ordering::Release);
                    match dir {
                        Direction::There => self.read(sent, &mut received),
                        Direction::Back => self.write(sent),
                    }
                }
                // SAFETY: no preconditions.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                pin(self.cores.first());
                let mut received = buffer(dir == Direction::Back);
                while self.counter(3).load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                let began = Instant::now();
                match dir {
                    Direction::There => self.write(sent),
                    Direction::Back => self.read(sent, &mut received),
                }
                while (self.counter(1).load(Ordering::Acquire) as usize) < BYTES {
                    thread::yield_now();
                }
                let took = began.elapsed();
                let verdict = loop {
                    match self.counter(2).load(Ordering::Acquire) {
                        0 => thread::yield_now(),
                        verdict => break verdict,
                    }
                };
                // Its own child, which is about to exit.
                let _ended = nix::sys::wait::waitpid(child, None);
                Ok((took, verdict == 1))
            }
        }
    }

    fn write(&self, sent: &[u8]) {
        for from in (0..BYTES).step_by(PIECE) {
            // SAFETY: both are `PIECE` bytes within their memory; the reader does not access them before the counter
            // is set.
            unsafe { ptr::copy_nonoverlapping(sent.as_ptr().add(from), self.at.add(PAGE + from), PIECE) };
            self.counter(0).store((from + PIECE) as u64, Ordering::Release);
        }
    }

    fn read(&self, sent: &[u8], received: &mut [u8]) {
        for (from, piece) in (0..BYTES).step_by(PIECE).zip(received.chunks_mut(PIECE)) {
            while (self.counter(0).load(Ordering::Acquire) as usize) < from + PIECE {
                thread::yield_now();
            }
            // SAFETY: `PIECE` bytes of the mapping, which the writer no longer accesses.
            unsafe { ptr::copy_nonoverlapping(self.at.add(PAGE + from), piece.as_mut_ptr(), PIECE) };
            self.counter(1).store((from + PIECE) as u64, Ordering::Release);
        }
        let verdict = if received == sent { 1 } else { 2 };
        self.counter(2).store(verdict, Ordering::Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length, and not used afterwards.
        unsafe { libc::munmap(self.at.cast(), PAGE + BYTES) };
    }
}
