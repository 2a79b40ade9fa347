//! How a slot goes from one node to another: a TCP connection for each.
//!
//! ```text
//! asks  ---> {"v":1,"ticket":"...","run_id":"...","dir":"/ckpt","shard":3,"step":30,"layout_id":7,"bytes":4096}
//! sends <--- {"sent":{"step":30,"saved_in":2,"rank":3,"world":8,"format":"dcp","path":""}}    or {"error":"..."}
//!       <--- frames: length and CRC-32 of up to 1 MiB, little endian, then the bytes; length 0 is the end
//! ```
//!
//! A connection that ends before the last frame has sent nothing: the slot was taken by a save meanwhile. The ticket is
//! random and comes by way of the job master, so only savers of the job have it. The bytes are not encrypted, as what
//! workers send each other is not.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use checkpoint::{
    message::Dir,
    slots::{FetchOrder, Sent},
};
use serde::{Deserialize, Serialize};

use super::{slot_file::SlotFile, stop::Stop};

/// The version of this protocol.
pub(super) const VERSION: u32 = 1;

/// Bytes of a frame at most.
const FRAME: u64 = 1 << 20;

/// Bytes of a line at most.
pub(super) const MAX_LINE: usize = 64 << 10;

/// A connection on which nothing moves for so long is given up.
pub(super) const IDLE: Duration = Duration::from_secs(30);

/// What a node asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) v: u32,
    pub(super) ticket: String,
    pub(super) run_id: String,
    pub(super) dir: Dir,
    pub(super) shard: u32,
    pub(super) step: u64,
    pub(super) layout_id: u64,
    pub(super) bytes: u64,
}

impl Ask {
    pub(super) fn new(order: &FetchOrder, run_id: &str) -> Self {
        Self {
            v: VERSION,
            ticket: order.from.ticket.clone(),
            run_id: run_id.to_owned(),
            dir: order.shard.dir.clone(),
            shard: order.shard.shard,
            step: order.step,
            layout_id: order.layout_id,
            bytes: order.bytes,
        }
    }
}

/// The answer, before the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Sent(Sent),
    Error(String),
}

/// A line of JSON, with its line feed.
pub(super) fn line<T: Serialize>(message: &T) -> String {
    // Only maps with keys that are no text fail.
    let mut json = serde_json::to_string(message).unwrap_or_default();
    json.push('\n');
    json
}

/// Writes the bytes of a slot.
///
/// # Errors
/// When the other node does not take them, or when it is to stop. The last frame is not written then.
pub(super) fn write_slot(slot: &SlotFile, to: &mut impl Write, stop: &Stop) -> io::Result<()> {
    let mut block = vec![0; usize::try_from(FRAME).map_err(io::Error::other)?];
    let mut offset = 0;
    while offset < slot.bytes() {
        let length = usize::try_from((slot.bytes() - offset).min(FRAME)).map_err(io::Error::other)?;
        let bytes = block.get_mut(..length).ok_or(io::ErrorKind::InvalidInput)?;
        slot.read_exact_at(bytes, offset)?;
        // After the read: a save that takes the slot writes only when it is set.
        stop.check()?;
        to.write_all(&head(bytes)?)?;
        to.write_all(bytes)?;
        offset += bytes.len() as u64;
    }
    stop.check()?;
    to.write_all(&[0; 8])?;
    to.flush()
}

/// Reads the bytes of a slot, and compares their checksums.
///
/// # Errors
/// When they are not those that were sent, not as many as the slot has, or do not come.
pub(super) fn read_slot(from: &mut impl Read, slot: &SlotFile, stop: &Stop) -> io::Result<()> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut block = vec![0; usize::try_from(FRAME).map_err(io::Error::other)?];
    let mut offset = 0;
    loop {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        stop.check()?;
        let [a, b, c, d, crc @ ..] = head;
        let (length, crc) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(crc));
        if length == 0 {
            break;
        }
        let left = slot.bytes() - offset;
        let bytes = block.get_mut(..length as usize).filter(|_| u64::from(length) <= left);
        let bytes = bytes.ok_or_else(|| {
            invalid(format!("a frame has {length} bytes; expected at most {}", left.min(FRAME)))
        })?;
        from.read_exact(bytes)?;
        let found = crc32fast::hash(bytes);
        if found != crc {
            return Err(invalid(format!(
                "the checksum of {length} bytes at byte {offset} is {found:#010x}, and {crc:#010x} was sent"
            )));
        }
        slot.write_all_at(bytes, offset)?;
        offset += u64::from(length);
    }
    if offset == slot.bytes() {
        return Ok(());
    }
    Err(invalid(format!("{offset} of {} bytes were sent", slot.bytes())))
}

fn head(bytes: &[u8]) -> io::Result<[u8; 8]> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let [a, b, c, d] = length.to_le_bytes();
    let [e, f, g, h] = crc32fast::hash(bytes).to_le_bytes();
    Ok([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(bytes: usize) -> SlotFile {
        let slot = SlotFile::new(bytes as u64).unwrap();
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        slot.write_all_at(&content, 0).unwrap();
        slot
    }

    fn content(slot: &SlotFile) -> Vec<u8> {
        let mut content = vec![0; usize::try_from(slot.bytes()).unwrap()];
        slot.read_exact_at(&mut content, 0).unwrap();
        content
    }

    #[test]
    fn what_is_sent_arrives() {
        let no = Stop::default();
        for bytes in [1, 4096, (1 << 20) - 1, 1 << 20, (3 << 20) + 5] {
            let (from, to, mut wire) = (slot(bytes), SlotFile::new(bytes as u64).unwrap(), Vec::new());
            write_slot(&from, &mut wire, &no).unwrap();
            read_slot(&mut wire.as_slice(), &to, &no).unwrap();
            assert!(content(&from) == content(&to));
        }
    }

    #[test]
    fn a_flipped_bit_a_missing_end_and_other_sizes_are_found() {
        let no = Stop::default();
        let (from, mut wire) = (slot(3_000_000), Vec::new());
        write_slot(&from, &mut wire, &no).unwrap();
        let read = |wire: &[u8], bytes: u64| {
            let to = SlotFile::new(bytes).unwrap();
            read_slot(&mut &*wire, &to, &no).unwrap_err().kind()
        };
        let end = wire.len();
        assert_eq!(read(&wire[..end - 8], 3_000_000), io::ErrorKind::UnexpectedEof);
        assert_eq!(read(&wire[..end - 9], 3_000_000), io::ErrorKind::UnexpectedEof);
        assert_eq!(read(&wire, 2_999_999), io::ErrorKind::InvalidData);
        assert_eq!(read(&wire, 3_000_001), io::ErrorKind::InvalidData);
        for at in [4, 9, 1_500_000] {
            let mut damaged = wire.clone();
            damaged[at] ^= 4;
            assert_eq!(read(&damaged, 3_000_000), io::ErrorKind::InvalidData, "byte {at}");
        }
        let mut long = wire.clone();
        long[3] = 0xff;
        assert_eq!(read(&long, 3_000_000), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_is_cancelled_has_no_end() {
        let (from, mut wire) = (slot(100), Vec::new());
        let stop = Stop::default();
        stop.set();
        write_slot(&from, &mut wire, &stop).unwrap_err();
        assert_eq!(wire, Vec::<u8>::new());
    }
}
