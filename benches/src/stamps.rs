//! Times at which workers started and ended, which they write to a named pipe, from the machine's monotonic clock.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::fd::AsFd as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::Mode,
    time::{ClockId, clock_gettime},
    unistd::mkfifo,
};

use crate::{Outcome, launcher::is_interrupted};

/// The environment variable with the path of the pipe.
pub const VARIABLE: &str = "DLROVER_BENCH_STAMPS";

/// Returns CLOCK_MONOTONIC in nanoseconds.
///
/// # Panics
/// Never: the kernel always has this clock.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC always exists");
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
}

/// A record of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// True: its first instruction. False: its last before it exits.
    pub is_start: bool,
    pub pid: i32,
    pub at_ns: u64,
}

const RECORD: usize = 16;

impl Stamp {
    fn encode(self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record[..4].copy_from_slice(&u32::from(self.is_start).to_le_bytes());
        record[4..8].copy_from_slice(&self.pid.to_le_bytes());
        record[8..].copy_from_slice(&self.at_ns.to_le_bytes());
        record
    }

    fn decode(record: &[u8; RECORD]) -> Self {
        let [s0, s1, s2, s3, p0, p1, p2, p3, at @ ..] = *record;
        Self {
            is_start: u32::from_le_bytes([s0, s1, s2, s3]) != 0,
            pid: i32::from_le_bytes([p0, p1, p2, p3]),
            at_ns: u64::from_le_bytes(at),
        }
    }

    /// Writes it to the pipe.
    ///
    /// # Errors
    /// The bench is gone.
    pub fn write(self, pipe: &mut File) -> io::Result<()> {
        // Less than PIPE_BUF, so records never mix.
        pipe.write_all(&self.encode())
    }
}

/// The bench's end of the pipe.
#[derive(Debug)]
pub struct Stamps {
    path: PathBuf,
    pipe: File,
    /// Stamps that were read while waiting for the other kind.
    passed: Vec<Stamp>,
}

impl Stamps {
    /// Creates the pipe.
    ///
    /// # Errors
    /// The pipe cannot be created.
    pub fn new(path: PathBuf) -> Outcome<Self> {
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // Open for writing too, or it would end whenever no worker has it open.
        let pipe =
            OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path)?;
        Ok(Self { path, pipe, passed: Vec::new() })
    }

    /// Returns the value of [`VARIABLE`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Discards all queued stamps.
    ///
    /// # Errors
    /// The pipe cannot be read.
    pub fn clear(&mut self) -> Outcome<()> {
        self.passed.clear();
        while self.read()?.is_some() {}
        Ok(())
    }

    /// Returns what is queued of one kind, without waiting.
    ///
    /// # Errors
    /// The pipe cannot be read.
    pub fn drain(&mut self, starts: bool) -> Outcome<Vec<Stamp>> {
        while let Some(stamp) = self.read()? {
            self.passed.push(stamp);
        }
        let (taken, passed) = self.passed.drain(..).partition(|stamp| stamp.is_start == starts);
        self.passed = passed;
        Ok(taken)
    }

    fn read(&mut self) -> Outcome<Option<Stamp>> {
        let mut record = [0; RECORD];
        match self.pipe.read(&mut record) {
            Ok(RECORD) => Ok(Some(Stamp::decode(&record))),
            Ok(_) => Err("half a stamp".into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn next(&mut self, deadline_ns: u64) -> Outcome<Stamp> {
        loop {
            if let Some(stamp) = self.read()? {
                return Ok(stamp);
            }
            let left = deadline_ns.saturating_sub(now_ns()).div_ceil(1_000_000);
            if left == 0 {
                return Err("the workers did not start or end in time".into());
            }
            if is_interrupted() {
                return Err("interrupted".into());
            }
            let mut ready = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::try_from(left.min(200))?) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits for the next `count` stamps of one kind.
    ///
    /// # Errors
    /// They did not arrive in time, or the bench was interrupted.
    pub fn take(&mut self, count: usize, starts: bool, timeout: Duration) -> Outcome<Vec<Stamp>> {
        let deadline_ns = now_ns() + u64::try_from(timeout.as_nanos())?;
        let (mut taken, passed): (Vec<_>, _) =
            self.passed.drain(..).partition(|stamp| stamp.is_start == starts);
        self.passed = passed;
        while taken.len() < count {
            let stamp = self.next(deadline_ns)?;
            if stamp.is_start == starts { taken.push(stamp) } else { self.passed.push(stamp) }
        }
        Ok(taken)
    }
}

/// Returns the time of the first stamp.
#[must_use]
pub fn first_ns(stamps: &[Stamp]) -> u64 {
    stamps.iter().map(|stamp| stamp.at_ns).min().unwrap_or(0)
}

/// Returns the time of the last stamp.
#[must_use]
pub fn last_ns(stamps: &[Stamp]) -> u64 {
    stamps.iter().map(|stamp| stamp.at_ns).max().unwrap_or(0)
}
