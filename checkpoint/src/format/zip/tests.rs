use super::*;
use crate::format::plan::Piece;

/// The bytes of a file in which each checksum is four `c`, and a range of the slot `<length>`.
fn outline(plan: &Plan) -> Vec<u8> {
    let bytes = |piece: &Piece| match piece {
        Piece::Bytes(bytes) => bytes.clone(),
        Piece::Slot { len, .. } => format!("<{len}>").into_bytes(),
        Piece::Crc { .. } => b"cccc".to_vec(),
    };
    plan.pieces().iter().flat_map(bytes).collect()
}

fn slot(len: u64) -> Plan {
    let mut plan = Plan::default();
    plan.slot(0, len);
    plan
}

/// As torch 2.15 writes it, but for names and data.
#[test]
fn a_record_is_aligned_and_its_checksum_is_behind_it() {
    let mut zip = Zip::default();
    zip.small("a/byteorder", b"little", Begin::Aligned);
    zip.record("a/data/0", Plan::default(), Begin::Aligned);
    let expected = [
        &b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0b\0\x17\0a/byteorderFB\x13\0"[..],
        b"ZZZZZZZZZZZZZZZZZZZlittlePK\x07\x08cccc\x06\0\0\0\x06\0\0\0",
        // Empty: no descriptor.
        b"PK\x03\x04\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x08\0\x04\0a/data/0FB\0\0",
        b"PK\x01\x02\0\0\0\0\x08\x08\0\0\0\0\0\0cccc\x06\0\0\0\x06\0\0\0\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0a/byteorder",
        b"PK\x01\x02\0\0\0\0\0\x08\0\0\0\0\0\0cccc\0\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\x56\0\0\0a/data/0",
        b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x1e\x03\x2d\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
        b"\x6f\0\0\0\0\0\0\0\x80\0\0\0\0\0\0\0",
        b"PK\x06\x07\0\0\0\0\xef\0\0\0\0\0\0\0\x01\0\0\0",
        b"PK\x05\x06\0\0\0\0\x02\0\x02\0\x6f\0\0\0\x80\0\0\0\0\0",
    ];
    let plan = zip.finish();
    assert_eq!(String::from_utf8_lossy(&outline(&plan)), String::from_utf8_lossy(&expected.concat()));
    assert_eq!(plan.len(), expected.concat().len() as u64);
}

/// Lengths and offsets from 2^32 - 1 on have the forms of torch's writer; the bytes are those of
/// `torch.save` of a storage of 5 GiB and one of 12 bytes behind it.
#[test]
fn lengths_and_offsets_beyond_32_bits_are_wide() {
    let mut zip = Zip::default();
    zip.small("a", &[b'x'; 662 - 30 - 1 - 16], Begin::Tight);
    zip.record("big/data/0", slot(5 << 30), Begin::Aligned);
    zip.record("big/data/1", slot(12), Begin::Aligned);
    let plan = zip.finish();
    let text = outline(&plan);
    let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    let zs = |count| vec![b'Z'; count];
    let first = [
        b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0a\0\x42\0big/data/0",
        &b"\x01\0\x10\0\0\0\0\x40\x01\0\0\0\0\0\0\x40\x01\0\0\0FB\x2a\0"[..],
        &zs(42),
        b"<5368709120>PK\x07\x08cccc\0\0\0\x40\x01\0\0\0\0\0\0\x40\x01\0\0\0",
    ];
    assert!(has(&first.concat()));
    let second = [
        b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0a\0\x40\0big/data/1",
        &b"\x01\0\x08\0\x18\x03\0\x40\x01\0\0\0FB\x30\0"[..],
        &zs(48),
        b"<12>PK\x07\x08cccc\x0c\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0",
    ];
    assert!(has(&second.concat()));
    let directory = [
        &b"cccc\xff\xff\xff\xff\xff\xff\xff\xff\x0a\0\x14\0\0\0\0\0\0\0\0\0\0\0\x96\x02\0\0big/data/0"[..],
        b"\x01\0\x10\0\0\0\0\x40\x01\0\0\0\0\0\0\x40\x01\0\0\0PK\x01\x02\0\0\0\0\x08\x08\0\0\0\0\0\0",
        b"cccc\x0c\0\0\0\x0c\0\0\0\x0a\0\x0c\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xffbig/data/1",
        b"\x01\0\x08\0\x18\x03\0\x40\x01\0\0\0PK\x06\x06",
    ];
    assert!(has(&directory.concat()));
    assert!(text.ends_with(b"\xff\xff\xff\xff\0\0"));
}

#[test]
fn a_length_of_32_bits_of_ones_is_wide() {
    for (len, is_wide) in [(WIDE - 1, false), (WIDE, true)] {
        let mut zip = Zip::default();
        zip.record("a", slot(len), Begin::Tight);
        let plan = zip.finish();
        let descriptor = if is_wide { 24 } else { 16 };
        let extra = if is_wide { 20 } else { 0 };
        assert_eq!(plan.len(), (30 + 1 + extra) + len + descriptor + (46 + 1 + extra) + 98);
    }
}

#[test]
fn a_checksum_is_of_all_pieces_of_its_record() {
    let mut data = slot(5);
    data.bytes(b"tail");
    let mut zip = Zip::default();
    zip.record("a", data, Begin::Tight);
    let plan = zip.finish();
    let checksums: Vec<_> = plan
        .pieces()
        .iter()
        .filter_map(|piece| if let Piece::Crc { of } = piece { Some(of.clone()) } else { None })
        .collect();
    assert_eq!(checksums, [1..3, 1..3]);
    assert!(matches!(&plan.pieces()[2], Piece::Bytes(bytes) if bytes == b"tail"));
}

#[test]
fn many_records_are_counted_in_64_bits() {
    let mut zip = Zip::default();
    for number in 0..70_000 {
        zip.small(&number.to_string(), b"x", Begin::Tight);
    }
    let text = outline(&zip.finish());
    let end = &text[text.len() - 98..];
    assert_eq!(end[24..32], 70_000_u64.to_le_bytes());
    assert_eq!(end[end.len() - 14..end.len() - 10], [0xff; 4]);
}
