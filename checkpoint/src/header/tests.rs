//! Bytes of slots, right and wrong.

use proptest::prelude::*;

use super::*;

const SLOT: u64 = 1 << 20;

/// A description; what it says is not looked at here.
const META: &[u8] = br#"{"tensors":[],"tree":{"d":[["step",7]]}}"#;

fn header(meta: &[u8]) -> Header {
    let meta_len = meta.len() as u64;
    Header {
        seq: 4,
        step: 100,
        rank: 1,
        world: 4,
        shard: 1,
        n_shards: 4,
        writer_pid: 77,
        restarts: 2,
        layout_id: u64::MAX,
        meta_off: 4096,
        meta_len,
        data_off: 16384,
        data_len: 4096,
        skeleton_off: 4096 + meta_len,
        skeleton_len: 10,
        t_begin_ns: 5,
        t_end_ns: 6,
        epoch: 9,
        replicated: false,
    }
}

fn read_slot(first: &[u8], meta: &[u8]) -> Result<Header, HeaderError> {
    let header = Header::parse(first, SLOT)?;
    header.check(first, meta)?;
    Ok(header)
}

#[test]
fn what_was_written_is_read() {
    let written = header(META);
    assert_eq!(read_slot(&written.to_bytes(META), META).unwrap(), written);
    assert_eq!(written.meta_range(), 4096..4096 + META.len() as u64);
}

#[test]
fn fields_are_where_the_format_says() {
    let bytes = header(b"{}").to_bytes(b"{}");
    assert_eq!(bytes.len(), 4096);
    assert_eq!(&bytes[..8], b"DLRFCKP1");
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let found =
        [u64_at(16), u64_at(24), u64_at(56), u64_at(64), u64_at(80), u64_at(104), u64_at(128), u64_at(136)];
    assert_eq!(found, [4, 100, u64::MAX, 4096, 16384, 10, 9, 2]);
    let found = [8, 12, 32, 36, 40, 44, 48, 52].map(u32_at);
    assert_eq!(found, [1, 4096, 1, 4, 1, 4, 77, 2]);
    let mut summed = bytes[24..144].to_vec();
    summed.extend_from_slice(b"{}");
    assert_eq!(u32_at(144), crc32fast::hash(&summed));
}

#[test]
fn a_slot_that_is_not_whole_is_named() {
    let error = |change: fn(&mut Header)| {
        let mut header = header(META);
        change(&mut header);
        read_slot(&header.to_bytes(META), META).unwrap_err().to_string()
    };
    assert_eq!(
        error(|header| header.seq = 5),
        "the write into the slot was not finished (sequence number 5)"
    );
    assert_eq!(
        error(|header| header.seq = 0),
        "the write into the slot was not finished (sequence number 0)"
    );
    assert_eq!(
        error(|header| header.step = 1 << 63),
        "step of the header is 9223372036854775808; expected 0 to 2^53 - 1"
    );
    assert_eq!(error(|header| header.rank = 4), "rank of the header is 4; expected less than the world size");
    assert_eq!(
        error(|header| header.shard = 9),
        "shard of the header is 9; expected less than the number of shards"
    );
    assert_eq!(
        error(|header| header.data_off = 100),
        "data_off of the header is 100; expected a multiple of 4096"
    );
    assert_eq!(
        error(|header| header.meta_len = 1 << 40),
        "meta_len of the header is 1099511627776; expected at most 64 MiB"
    );
    let outside =
        "the data of the slot is at byte 16384 and has 1048576 bytes, but the slot has 1048576 bytes";
    assert_eq!(error(|header| header.data_len = SLOT), outside);
    assert!(error(|header| header.data_len = u64::MAX).contains("the data"));
    assert!(error(|header| header.skeleton_off = u64::MAX).contains("the skeleton"));
    assert!(error(|header| header.meta_off = 0).contains("the metadata"));
    assert!(error(|header| header.skeleton_off = header.meta_off).ends_with("overlap"));
    assert_eq!(read_slot(&[0; 4096], b"").unwrap_err().to_string(), "the slot was never written");
    assert_eq!(read_slot(&[0; 100], b"").unwrap_err().to_string(), "the header has 100 bytes; expected 4096");
    assert!(read_slot(&[7; 4096], b"").unwrap_err().to_string().contains("expected `DLRFCKP1`"));
}

#[test]
fn every_changed_byte_is_found() {
    let bytes = header(META).to_bytes(META);
    for at in 24..148 {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(read_slot(&changed, META).is_err(), "byte {at}");
    }
    for at in 0..META.len() {
        let mut changed = META.to_vec();
        changed[at] ^= 1;
        assert!(matches!(read_slot(&bytes, &changed), Err(HeaderError::Checksum { .. })), "byte {at}");
    }
}

proptest! {
    #[test]
    fn no_header_panics(
        bytes in proptest::collection::vec(any::<u8>(), 200),
        meta in "\\PC{0,200}",
        has_magic: bool,
    ) {
        let mut first = bytes;
        first.resize(HEADER_LEN, 0);
        if has_magic {
            first[..8].copy_from_slice(&MAGIC);
            first[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 16, 0, 0]);
            first[16..24].copy_from_slice(&2_u64.to_le_bytes());
        }
        if let Ok(header) = Header::parse(&first, SLOT) {
            for range in [header.meta_range(), header.skeleton_range(), header.data_range()] {
                prop_assert!(range.is_empty() || range.start <= range.end && range.end <= SLOT);
            }
            let _ = header.check(&first, meta.as_bytes());
        }
    }
}
