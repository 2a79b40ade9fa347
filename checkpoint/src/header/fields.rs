//! The numbers at the beginning of a slot.

use std::ops::Range;

use super::error::HeaderError;
use crate::{
    format::meta::MAX_BYTES,
    message::{MAX_STEP, MAX_WORLD},
};

/// What a slot that was ever written begins with.
pub const MAGIC: [u8; 8] = *b"DLRFCKP1";

/// The version of the header.
pub const VERSION: u32 = 1;

/// Bytes of the header. What follows the numbers is not looked at.
pub const HEADER_LEN: usize = 4096;

/// Bytes that the checksum covers, before those of the description.
const SUMMED: Range<usize> = 24..144;
const REPLICATED: u64 = 1;
const HAS_SKELETON: u64 = 2;

/// The header of a slot that is whole: all offsets and lengths lie inside the slot, and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Even, and not 0.
    pub seq: u64,
    pub step: u64,
    pub rank: u32,
    pub world: u32,
    pub shard: u32,
    pub n_shards: u32,
    pub writer_pid: u32,
    pub restarts: u32,
    /// A hash of names, dtypes and shapes.
    pub layout_id: u64,
    pub meta_off: u64,
    pub meta_len: u64,
    /// A multiple of 4096.
    pub data_off: u64,
    pub data_len: u64,
    pub skeleton_off: u64,
    pub skeleton_len: u64,
    /// By the writer's clock, for people.
    pub t_begin_ns: u64,
    pub t_end_ns: u64,
    /// Of the saver that gave the slot out.
    pub epoch: u64,
    pub replicated: bool,
}

impl Header {
    /// Reads the numbers at the beginning of a slot. The checksum is not compared yet: [`Header::check`].
    ///
    /// # Errors
    /// When the slot is not whole, or a number does not fit into a slot of `slot_len` bytes.
    pub fn parse(first: &[u8], slot_len: u64) -> Result<Self, HeaderError> {
        if first.len() < HEADER_LEN {
            return Err(HeaderError::Short { bytes: first.len() });
        }
        let magic: [u8; 8] = take(first, 0);
        if magic == [0; 8] {
            return Err(HeaderError::Empty);
        }
        if magic != MAGIC {
            return Err(HeaderError::Magic { found: magic.to_vec() });
        }
        let u32_at = |at: usize| u32::from_le_bytes(take(first, at));
        let u64_at = |at: usize| u64::from_le_bytes(take(first, at));
        let version = u32_at(8);
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        field("header_len", u64::from(u32_at(12)), u32_at(12) as usize == HEADER_LEN, "4096")?;
        let seq = u64_at(16);
        if seq == 0 || !seq.is_multiple_of(2) {
            return Err(HeaderError::NotWhole { seq });
        }
        let flags = u64_at(136);
        let header = Self {
            seq,
            step: u64_at(24),
            rank: u32_at(32),
            world: u32_at(36),
            shard: u32_at(40),
            n_shards: u32_at(44),
            writer_pid: u32_at(48),
            restarts: u32_at(52),
            layout_id: u64_at(56),
            meta_off: u64_at(64),
            meta_len: u64_at(72),
            data_off: u64_at(80),
            data_len: u64_at(88),
            skeleton_off: u64_at(96),
            skeleton_len: u64_at(104),
            t_begin_ns: u64_at(112),
            t_end_ns: u64_at(120),
            epoch: u64_at(128),
            replicated: flags & REPLICATED != 0,
        };
        header.check_numbers()?;
        let has_skeleton = flags & HAS_SKELETON != 0;
        field(
            "skeleton_len",
            header.skeleton_len,
            has_skeleton || header.skeleton_len == 0,
            "0: no skeleton is flagged",
        )?;
        header.check_regions(slot_len)?;
        Ok(header)
    }

    /// Where the description is.
    #[must_use]
    pub const fn meta_range(&self) -> Range<u64> {
        self.meta_off..self.meta_off.saturating_add(self.meta_len)
    }

    /// Where the pickles of odd leaves are.
    #[must_use]
    pub const fn skeleton_range(&self) -> Range<u64> {
        self.skeleton_off..self.skeleton_off.saturating_add(self.skeleton_len)
    }

    /// Where the tensors are.
    #[must_use]
    pub const fn data_range(&self) -> Range<u64> {
        self.data_off..self.data_off.saturating_add(self.data_len)
    }

    /// Compares the checksum of the numbers and the description.
    ///
    /// # Errors
    /// When it differs.
    pub fn check(&self, first: &[u8], meta: &[u8]) -> Result<(), HeaderError> {
        if first.len() < HEADER_LEN {
            return Err(HeaderError::Short { bytes: first.len() });
        }
        let said = u32::from_le_bytes(take(first, SUMMED.end));
        let found = sum(first, meta);
        if said == found { Ok(()) } else { Err(HeaderError::Checksum { said, found }) }
    }

    /// The bytes of this header, for a slot with this description.
    #[must_use]
    pub fn to_bytes(&self, meta: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        put(0, &MAGIC);
        let flags = u64::from(self.replicated) * REPLICATED + u64::from(self.skeleton_len > 0) * HAS_SKELETON;
        let short = [
            (8, VERSION),
            (12, 4096),
            (32, self.rank),
            (36, self.world),
            (40, self.shard),
            (44, self.n_shards),
            (48, self.writer_pid),
            (52, self.restarts),
        ];
        let long = [
            (16, self.seq),
            (24, self.step),
            (56, self.layout_id),
            (64, self.meta_off),
            (72, self.meta_len),
            (80, self.data_off),
            (88, self.data_len),
            (96, self.skeleton_off),
            (104, self.skeleton_len),
            (112, self.t_begin_ns),
            (120, self.t_end_ns),
            (128, self.epoch),
            (136, flags),
        ];
        for (at, value) in short {
            put(at, &value.to_le_bytes());
        }
        for (at, value) in long {
            put(at, &value.to_le_bytes());
        }
        let sum = sum(&bytes, meta);
        if let Some(place) = bytes.get_mut(SUMMED.end..SUMMED.end + 4) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    fn check_numbers(&self) -> Result<(), HeaderError> {
        // Negative steps of the client's `i64` are above it too.
        field("step", self.step, self.step <= MAX_STEP, "0 to 2^53 - 1")?;
        let is_world = |count: u32| (1..=MAX_WORLD).contains(&count);
        field("world size", u64::from(self.world), is_world(self.world), "1 to 1048576")?;
        field("rank", u64::from(self.rank), self.rank < self.world, "less than the world size")?;
        field("n_shards", u64::from(self.n_shards), is_world(self.n_shards), "1 to 1048576")?;
        field("shard", u64::from(self.shard), self.shard < self.n_shards, "less than the number of shards")?;
        field("meta_len", self.meta_len, self.meta_len <= MAX_BYTES as u64, "at most 64 MiB")?;
        field("data_off", self.data_off, self.data_off.is_multiple_of(4096), "a multiple of 4096")
    }

    fn check_regions(&self, slot: u64) -> Result<(), HeaderError> {
        let mut regions = [
            ("the metadata", self.meta_off, self.meta_len),
            ("the skeleton", self.skeleton_off, self.skeleton_len),
            ("the data", self.data_off, self.data_len),
        ];
        for (region, offset, len) in regions {
            let end = offset.checked_add(len);
            // An empty region has no place.
            let is_inside = offset >= HEADER_LEN as u64 && end.is_some_and(|end| end <= slot);
            if len > 0 && !is_inside {
                return Err(HeaderError::Outside { region, offset, len, slot });
            }
        }
        regions.sort_by_key(|(_, offset, _)| *offset);
        let taken: Vec<_> = regions.into_iter().filter(|(_, _, len)| *len > 0).collect();
        for pair in taken.windows(2) {
            if let [(first, offset, len), (second, next, _)] = pair
                && offset.saturating_add(*len) > *next
            {
                return Err(HeaderError::Overlap { first, second });
            }
        }
        Ok(())
    }
}

fn sum(first: &[u8], meta: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(first.get(SUMMED).unwrap_or_default());
    crc.update(meta);
    crc.finalize()
}

fn field(field: &'static str, value: u64, holds: bool, expected: &str) -> Result<(), HeaderError> {
    if holds { Ok(()) } else { Err(HeaderError::Field { field, value, expected: expected.to_owned() }) }
}

/// Bytes at an offset; zeros where there are none.
fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}
