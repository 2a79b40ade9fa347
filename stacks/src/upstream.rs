//! Reads the `.stacktrace` files of xpu_timer: a protobuf message `Stacktrace` with threads and their frames.
//!
//! The file comes from anywhere, so what is kept of it is counted while it is read: a message of two bytes would else
//! become a structure of fifty. Depth is that of the three messages; fields that are not needed here are skipped.
//!
//! | message | fields |
//! |---|---|
//! | `Stacktrace` | 1 native threads, 2 Python threads, 3 pid, 6 what gdb failed with, 8 what py-spy failed with, 11 state |
//! | native thread | 1 thread id, 2 name, 3 frames |
//! | Python thread | 1 pid, 3 name, 7 frames |
//! | frame of either | 1 function, 2 source |

use crate::{
    dump_name::DumpName,
    model::{Frame, RankDump, Thread},
};

/// Threads and frames of one file at most.
pub const MAX_THREADS: usize = 16_384;
pub const MAX_FRAMES: usize = 262_144;

/// Bytes of a name at most.
pub const MAX_NAME: usize = 64 << 10;

/// What is wrong with a file of xpu_timer, and at which byte of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {fault}")]
pub struct UpstreamError {
    pub at: usize,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the file ends inside a field")]
    Truncated,
    #[error("a number has more than 64 bits")]
    LongNumber,
    #[error("a field has the number 0, which protobuf does not allow")]
    FieldZero,
    #[error("wire type {0} is not used by stack traces")]
    WireType(u8),
    #[error("a name is not UTF-8")]
    NotUtf8,
    #[error("a name has more than {MAX_NAME} bytes")]
    LongName,
    #[error("more than {MAX_THREADS} threads")]
    TooManyThreads,
    #[error("more than {MAX_FRAMES} frames")]
    TooManyFrames,
}

/// Reads the message. Rank and size of the world are those of the file's name, as upstream's viewer takes them.
///
/// # Errors
/// When the bytes are not such a message, or when it has more of something than any process.
pub fn read(name: DumpName, bytes: &[u8]) -> Result<RankDump, UpstreamError> {
    let mut dump = RankDump { state: Some(String::new()), ..RankDump::new(name.rank, name.world_size) };
    let mut room = Room { threads: MAX_THREADS, frames: MAX_FRAMES };
    let mut fields = Fields { bytes, base: 0, at: 0 };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Bytes(inner)) => dump.native.push(thread(inner, (2, 3), &mut room)?),
            (2, Value::Bytes(inner)) => dump.python.push(thread(inner, (3, 7), &mut room)?),
            (3, Value::Number(pid)) => dump.pid = u32::try_from(pid).ok(),
            (6, Value::Bytes(inner)) => note(&mut dump.notes, "gdb", &inner),
            (8, Value::Bytes(inner)) => note(&mut dump.notes, "py-spy", &inner),
            (11, Value::Bytes(inner)) => dump.state = Some(inner.text()?),
            _ => {}
        }
    }
    Ok(dump)
}

/// What may still be added.
struct Room {
    threads: usize,
    frames: usize,
}

/// A native or a Python thread, by the numbers of its fields `name` and `frames`.
fn thread(
    mut fields: Fields<'_>,
    (name, frames): (u64, u64),
    room: &mut Room,
) -> Result<Thread, UpstreamError> {
    room.threads = room.threads.checked_sub(1).ok_or_else(|| fields.error(Fault::TooManyThreads))?;
    let mut thread = Thread::default();
    while let Some((number, value)) = fields.next()? {
        match value {
            Value::Bytes(inner) if number == name => thread.name = inner.text()?,
            Value::Bytes(inner) if number == frames => {
                room.frames = room.frames.checked_sub(1).ok_or_else(|| inner.error(Fault::TooManyFrames))?;
                thread.frames.push(frame(inner)?);
            }
            _ => {}
        }
    }
    Ok(thread)
}

fn frame(mut fields: Fields<'_>) -> Result<Frame, UpstreamError> {
    let (mut function, mut source) = (String::new(), String::new());
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, Value::Bytes(inner)) => function = inner.text()?,
            (2, Value::Bytes(inner)) => source = inner.text()?,
            _ => {}
        }
    }
    let (file, line) = split_line(&source);
    Ok(Frame { function, file: file.to_owned(), line })
}

/// `train.py:10` as file and line. A line that would not be written the same way stays part of the file.
fn split_line(source: &str) -> (&str, Option<u32>) {
    let split = source.rsplit_once(':').and_then(|(file, digits)| {
        let line = digits.parse::<u32>().ok().filter(|line| line.to_string() == digits)?;
        Some((file, Some(line)))
    });
    split.unwrap_or((source, None))
}

/// The last line of what a tool has failed with. It only informs, so it need not be valid.
fn note(notes: &mut Vec<String>, tool: &str, text: &Fields<'_>) {
    let text = String::from_utf8_lossy(text.bytes.get(..MAX_NAME).unwrap_or(text.bytes));
    if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty())
        && notes.len() < 8
    {
        notes.push(format!("{tool}: {}", line.trim().chars().take(200).collect::<String>()));
    }
}

/// The fields of a message.
struct Fields<'a> {
    bytes: &'a [u8],
    /// Where these bytes begin in the file.
    base: usize,
    at: usize,
}

enum Value<'a> {
    Number(u64),
    Bytes(Fields<'a>),
    /// Of a fixed size; stack traces have no such field, but skipping it is all it takes.
    Fixed,
}

impl<'a> Fields<'a> {
    fn error(&self, fault: Fault) -> UpstreamError {
        UpstreamError { at: self.base + self.at, fault }
    }

    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, UpstreamError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let start = self.at;
        let key = self.varint()?;
        let wire_type = (key & 7) as u8;
        let number = key >> 3;
        if number == 0 {
            return Err(UpstreamError { at: self.base + start, fault: Fault::FieldZero });
        }
        let value = match wire_type {
            0 => Value::Number(self.varint()?),
            1 => self.skip(8)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => self.skip(4)?,
            other => {
                return Err(UpstreamError { at: self.base + start, fault: Fault::WireType(other) });
            }
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Result<u64, UpstreamError> {
        let start = self.at;
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.bytes.get(self.at) else { return Err(self.error(Fault::Truncated)) };
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(UpstreamError { at: self.base + start, fault: Fault::LongNumber })
    }

    fn take(&mut self, length: usize) -> Result<Fields<'a>, UpstreamError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return Err(self.error(Fault::Truncated)) };
        let inner = Fields { bytes: &self.bytes[self.at..end], base: self.base + self.at, at: 0 };
        self.at = end;
        Ok(inner)
    }

    fn skip(&mut self, length: usize) -> Result<Value<'a>, UpstreamError> {
        self.take(length)?;
        Ok(Value::Fixed)
    }

    fn text(&self) -> Result<String, UpstreamError> {
        if self.bytes.len() > MAX_NAME {
            return Err(self.error(Fault::LongName));
        }
        match std::str::from_utf8(self.bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(UpstreamError { at: self.base + error.valid_up_to(), fault: Fault::NotUtf8 }),
        }
    }
}

#[cfg(test)]
#[path = "upstream/tests.rs"]
mod tests;
