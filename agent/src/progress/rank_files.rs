//! The two files of one worker.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

use processes::memory_file::{memory_file, sealed_memory_file};

use super::{
    numbers::Numbers,
    text::{Declared, TAIL, parse},
};

/// Bytes of memory that a text file may occupy. A longer one is emptied: its writer appends.
const MOST_MEMORY: u64 = 64 << 10;

/// Bytes that a block of [`std::os::unix::fs::MetadataExt::blocks`] has.
const BLOCK: u64 = 512;

/// When a text file was written and how long it is.
type Stamp = (i64, i64, u64);

/// The files of one worker, and what they said last.
#[derive(Debug)]
pub(super) struct RankFiles {
    pub(super) text: File,
    pub(super) counter: File,
    stamp: Stamp,
    /// The text was written since the last sample but one: its next write may have the same stamp.
    is_fresh: bool,
    tail: Vec<u8>,
    count: u64,
    /// The newest step of the text.
    step: Option<u64>,
    pub(super) busy_with: Option<String>,
    /// The newest text declares nothing.
    is_none: bool,
    pub(super) changes: u64,
}

impl RankFiles {
    pub(super) fn new(numbers: &mut Numbers) -> io::Result<Self> {
        let text = numbers.give(memory_file(c"dlrover-progress")?);
        let counter = sealed_memory_file(c"dlrover-progress-counter", &0_u64.to_ne_bytes(), false)?;
        Ok(Self {
            stamp: stamp(&text)?,
            text,
            counter: numbers.give(counter),
            is_fresh: false,
            tail: Vec::new(),
            count: 0,
            step: None,
            busy_with: None,
            is_none: false,
            changes: 0,
        })
    }

    /// The newest step: that of the text, else the number of counted steps.
    pub(super) fn step(&self) -> Option<u64> {
        self.step.or((self.count > 0).then_some(self.count))
    }

    /// Reads what is new. A file that cannot be read says nothing.
    pub(super) fn sample(&mut self) {
        // Both may have changed, which is as much progress as one of them.
        let is_written = self.sample_text().unwrap_or_default();
        let is_counted = self.sample_counter().unwrap_or_default();
        self.changes += u64::from(is_written || is_counted);
    }

    fn sample_counter(&mut self) -> io::Result<bool> {
        let mut count = [0; 8];
        self.counter.read_exact_at(&mut count, 0)?;
        let count = u64::from_ne_bytes(count);
        Ok(std::mem::replace(&mut self.count, count) != count)
    }

    fn sample_text(&mut self) -> io::Result<bool> {
        let stamp = stamp(&self.text)?;
        let is_touched = stamp != self.stamp;
        if !is_touched && !self.is_fresh {
            return Ok(false);
        }
        self.stamp = stamp;
        self.is_fresh = is_touched;
        let (_, _, length) = stamp;
        let mut tail = [0; TAIL];
        let read = self.text.read_at(&mut tail, length.saturating_sub(TAIL as u64))?;
        let tail = &tail[..read];
        let is_written = is_touched || self.tail != tail;
        if self.tail != tail {
            self.tail.clear();
            self.tail.extend_from_slice(tail);
            if let Some(Declared { step, busy_with, is_none }) = parse(tail, length <= TAIL as u64) {
                self.step = step.or(self.step);
                self.busy_with = busy_with;
                self.is_none = is_none;
            }
        }
        if is_touched && self.text.metadata()?.blocks() * BLOCK > MOST_MEMORY {
            self.text.set_len(0)?;
            self.stamp = self::stamp(&self.text)?;
            self.tail.clear();
        }
        Ok(is_written && !self.is_none)
    }
}

fn stamp(file: &File) -> io::Result<Stamp> {
    let found = file.metadata()?;
    Ok((found.mtime(), found.mtime_nsec(), found.len()))
}
