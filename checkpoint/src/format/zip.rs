//! A stored zip, byte for byte as the writer of `torch.save` lays it out.
//!
//! Every record is `header, data, descriptor`: the checksum is behind the data. Data begins at a multiple of
//! 64, by a field `FB` in the header; torch maps such files, and with `calculate_storage_offsets` it
//! computes where the data of each record is instead of looking, so that nothing may lie elsewhere.

use std::ops::Range;

use super::plan::Plan;

/// Of the 32 bits of a plain zip: from here on, a length or an offset is in the field for 64 bits.
const WIDE: u64 = 0xffff_ffff;

/// Names are in UTF-8; the checksum and the lengths are behind the data.
const UTF8: u16 = 1 << 11;
const DESCRIPTOR: u16 = 1 << 3;

const LOCAL_HEADER: u64 = 30;
const FIELD_HEADER: u64 = 4;

/// Where the data of a record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At the next multiple of 64, as `torch.save` has it.
    Aligned,
    /// Right after the header.
    Tight,
    /// Right after the header, which has the form for 64 bits whatever the length: it is always as long.
    Wide,
}

const ALIGNMENT: u64 = 64;

#[derive(Debug, Default)]
pub struct Zip {
    plan: Plan,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// Where the header is, from the begin of the zip.
    header: u64,
    bytes: u64,
    pieces: Range<usize>,
    flags: u16,
    has_wide_length: bool,
}

impl Zip {
    /// Adds a record; the name is below 64 KiB.
    pub fn record(&mut self, name: &str, data: Plan, begin: Begin) {
        let (header, bytes) = (self.plan.len(), data.len());
        let has_wide_length = bytes >= WIDE || begin == Begin::Wide;
        let is_wide = has_wide_length || header >= WIDE;
        // An empty record has no descriptor.
        let flags = if bytes > 0 || begin == Begin::Wide { UTF8 | DESCRIPTOR } else { UTF8 };

        let mut extra = wide_field(has_wide_length.then_some(bytes), (header >= WIDE).then_some(header));
        if begin == Begin::Aligned {
            let start = header + LOCAL_HEADER + name.len() as u64 + extra.len() as u64 + FIELD_HEADER;
            let padding = start.next_multiple_of(ALIGNMENT) - start;
            extra.extend(b"FB");
            extra.extend((padding as u16).to_le_bytes());
            extra.extend(std::iter::repeat_n(b'Z', padding as usize));
        }
        let mut bits = Bits::of(b"PK\x03\x04");
        // Version, flags, method, time, date; checksum and lengths come later.
        bits.u16s(&[0, flags, 0, 0, 0]);
        bits.u32s(&[0, 0, 0]);
        bits.u16s(&[name.len() as u16, extra.len() as u16]);
        self.plan.bytes(&bits.0);
        self.plan.bytes(name.as_bytes());
        self.plan.bytes(&extra);

        let first = self.plan.mark();
        self.plan.append(data);
        let pieces = first..self.plan.mark();
        if flags & DESCRIPTOR != 0 {
            self.plan.bytes(b"PK\x07\x08");
            self.plan.crc(pieces.clone());
            let mut bits = Bits::of(b"");
            if is_wide {
                bits.u64s(&[bytes, bytes]);
            } else {
                bits.u32s(&[bytes as u32, bytes as u32]);
            }
            self.plan.bytes(&bits.0);
        }
        self.entries.push(Entry { name: name.to_owned(), header, bytes, pieces, flags, has_wide_length });
    }

    /// Adds a record of a few bytes.
    pub fn small(&mut self, name: &str, bytes: &[u8], begin: Begin) {
        let mut data = Plan::default();
        data.bytes(bytes);
        self.record(name, data, begin);
    }

    /// Writes the directory.
    pub fn finish(mut self) -> Plan {
        let directory = self.plan.len();
        for entry in &self.entries {
            let header = (entry.header >= WIDE).then_some(entry.header);
            let extra = wide_field(entry.has_wide_length.then_some(entry.bytes), header);
            let narrow = |value: u64, is_wide: bool| if is_wide { u32::MAX } else { value as u32 };
            let bytes = narrow(entry.bytes, entry.has_wide_length);
            let mut bits = Bits::of(b"PK\x01\x02");
            bits.u16s(&[0, 0, entry.flags, 0, 0, 0]);
            self.plan.bytes(&bits.0);
            self.plan.crc(entry.pieces.clone());
            let mut bits = Bits::of(b"");
            bits.u32s(&[bytes, bytes]);
            // Comment, disk, attributes: none.
            bits.u16s(&[entry.name.len() as u16, extra.len() as u16, 0, 0, 0]);
            bits.u32s(&[0, narrow(entry.header, header.is_some())]);
            self.plan.bytes(&bits.0);
            self.plan.bytes(entry.name.as_bytes());
            self.plan.bytes(&extra);
        }
        let (end, count) = (self.plan.len(), self.entries.len() as u64);
        let mut bits = Bits::of(b"PK\x06\x06");
        bits.u64s(&[44]);
        // Made by and needed: those of torch's writer.
        bits.u16s(&[0x031e, 45]);
        bits.u32s(&[0, 0]);
        bits.u64s(&[count, count, end - directory, directory]);
        bits.0.extend(b"PK\x06\x07");
        bits.u32s(&[0]);
        bits.u64s(&[end]);
        bits.u32s(&[1]);
        bits.0.extend(b"PK\x05\x06");
        let count = count.min(0xffff) as u16;
        bits.u16s(&[0, 0, count, count]);
        bits.u32s(&[(end - directory).min(WIDE) as u32, directory.min(WIDE) as u32]);
        bits.u16s(&[0]);
        self.plan.bytes(&bits.0);
        self.plan
    }
}

/// The field for what has no room in 32 bits, or nothing when all has.
fn wide_field(length: Option<u64>, header: Option<u64>) -> Vec<u8> {
    let mut values = Bits::of(b"");
    if let Some(length) = length {
        values.u64s(&[length, length]);
    }
    if let Some(header) = header {
        values.u64s(&[header]);
    }
    if values.0.is_empty() {
        return values.0;
    }
    let mut bits = Bits::of(b"");
    bits.u16s(&[1, values.0.len() as u16]);
    bits.0.extend(values.0);
    bits.0
}

/// Numbers, little endian.
struct Bits(Vec<u8>);

impl Bits {
    fn of(signature: &[u8]) -> Self {
        Self(signature.to_vec())
    }

    fn u16s(&mut self, values: &[u16]) {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn u32s(&mut self, values: &[u32]) {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn u64s(&mut self, values: &[u64]) {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

#[cfg(test)]
mod tests;
