//! Why a slot cannot be used.

/// Why the bytes of a slot are no whole state.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("the header has {bytes} bytes; expected {}", super::HEADER_LEN)]
    Short { bytes: usize },
    #[error("the slot was never written")]
    Empty,
    #[error("the slot begins with {found:02x?}, not with the mark of a checkpoint")]
    Magic { found: Vec<u8> },
    #[error("the header is of version {found}; this program reads version {}", super::VERSION)]
    Version { found: u32 },
    #[error("the write into the slot was not finished (sequence number {seq})")]
    NotWhole { seq: u64 },
    #[error("{field} of the header is {value}; expected {expected}")]
    Field { field: &'static str, value: u64, expected: String },
    #[error("{region} of the slot is at {offset} and has {len} bytes, but the slot has {slot}")]
    Outside { region: &'static str, offset: u64, len: u64, slot: u64 },
    #[error("{first} and {second} of the slot overlap")]
    Overlap { first: &'static str, second: &'static str },
    #[error(
        "the checksum of header and description is {found:08x}, but the header says {said:08x}: one of them was changed"
    )]
    Checksum { said: u32, found: u32 },
}
