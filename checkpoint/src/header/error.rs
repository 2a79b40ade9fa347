//! Why a slot cannot be used.

/// Why a slot does not hold a complete state.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("the header has {bytes} bytes; expected {}", super::HEADER_LEN)]
    Short { bytes: usize },
    #[error("the slot was never written")]
    Empty,
    #[error("the slot begins with `{}`; expected `{}`", found.escape_ascii(), super::MAGIC.escape_ascii())]
    Magic { found: Vec<u8> },
    #[error("the header has version {found}; this program reads version {}", super::VERSION)]
    Version { found: u32 },
    #[error("the write into the slot was not finished (sequence number {seq})")]
    NotWhole { seq: u64 },
    #[error("{field} of the header is {value}; expected {expected}")]
    Field { field: &'static str, value: u64, expected: String },
    #[error("{region} of the slot is at byte {offset} and has {len} bytes, but the slot has {slot} bytes")]
    Outside { region: &'static str, offset: u64, len: u64, slot: u64 },
    #[error("{first} and {second} of the slot overlap")]
    Overlap { first: &'static str, second: &'static str },
    #[error(
        "the checksum of header and metadata is {found:08x}; the header says {said:08x}: one of them was changed"
    )]
    Checksum { said: u32, found: u32 },
}
