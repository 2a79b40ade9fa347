use proptest::prelude::*;

use super::*;

fn plan() -> Plan {
    let mut plan = Plan::default();
    plan.bytes(b"head");
    let first = plan.mark();
    plan.bytes(b"name");
    plan.slot(10, 50);
    plan.slot(0, 5);
    let end = plan.mark();
    plan.bytes(b"PK");
    plan.crc(first..end);
    plan.crc(0..1);
    plan
}

fn slot() -> Vec<u8> {
    (0..100).collect()
}

/// The file, written in parts of so many bytes, of which `copied` takes so many at a time.
fn written(plan: &Plan, at_most: u64, copied: usize) -> (Vec<u8>, Sums) {
    let (mut file, mut stream, slot) = (Vec::new(), Stream::new(plan), slot());
    loop {
        match stream.next(at_most) {
            None => break,
            Some(Part::Bytes(bytes)) => file.extend_from_slice(bytes),
            Some(Part::Slot { offset, len }) => {
                let bytes = &slot[offset as usize..][..(len as usize).min(copied)];
                file.extend_from_slice(bytes);
                stream.copied(bytes).unwrap();
            }
        }
        assert_eq!(stream.written(), file.len() as u64);
    }
    (file, stream.finish().unwrap())
}

fn expected() -> Vec<u8> {
    let slot = slot();
    let member = [b"name", &slot[10..60], &slot[..5]].concat();
    let crc = |bytes| crc32fast::hash(bytes).to_le_bytes();
    [b"head", &member[..], b"PK", &crc(&member), &crc(b"head")].concat()
}

#[test]
fn a_checksum_comes_after_its_bytes() {
    let (file, sums) = written(&plan(), u64::MAX, usize::MAX);
    assert_eq!(file, expected());
    assert_eq!(sums.crc32, [crc32fast::hash(&file)]);
    assert_eq!(sums.verify_length(plan().len()), Ok(()));
}

#[test]
fn a_part_comes_again_until_it_is_copied() {
    let plan = plan();
    let mut stream = Stream::new(&plan);
    stream.next(100);
    stream.next(100);
    assert_eq!(stream.next(20), Some(Part::Slot { offset: 10, len: 20 }));
    assert_eq!(stream.next(30), Some(Part::Slot { offset: 10, len: 30 }));
    stream.copied(&[0; 4]).unwrap();
    assert_eq!(stream.next(30), Some(Part::Slot { offset: 14, len: 30 }));
    assert_eq!(stream.copied(&[0; 31]), Err(CopiedTooMany { found: 31, expected: 30 }));
    assert!(stream.finish().is_none());
}

#[test]
fn no_part_is_of_two_chunks() {
    let mut plan = Plan::default();
    plan.bytes(b"head");
    plan.slot(0, 100 << 20);
    let mut stream = Stream::new(&plan);
    stream.next(u64::MAX);
    assert_eq!(stream.next(u64::MAX), Some(Part::Slot { offset: 0, len: (64 << 20) - 4 }));
}

#[test]
fn an_empty_file_has_no_checksum() {
    let plan = Plan::default();
    let mut stream = Stream::new(&plan);
    assert_eq!(stream.next(1), None);
    assert!(stream.finish().unwrap().crc32.is_empty());
}

/// As long as what is hashed once, and longer.
#[test]
fn long_ranges_have_the_same_checksums() {
    let slot: Vec<u8> = (0..200_000_u32).map(|place| (place % 251) as u8).collect();
    let mut plan = Plan::default();
    plan.bytes(b"head");
    let first = plan.mark();
    plan.slot(0, 200_000);
    let end = plan.mark();
    plan.crc(first..end);
    for at_most in [1000, 16 << 10, 100_000, u64::MAX] {
        let (mut file, mut stream) = (Vec::new(), Stream::new(&plan));
        while let Some(part) = stream.next(at_most) {
            match part {
                Part::Bytes(bytes) => file.extend_from_slice(bytes),
                Part::Slot { offset, len } => {
                    let bytes = &slot[offset as usize..][..len as usize];
                    stream.copied(bytes).unwrap();
                    file.extend_from_slice(bytes);
                }
            }
        }
        assert_eq!(file[200_004..], crc32fast::hash(&slot).to_le_bytes());
        assert_eq!(stream.finish().unwrap().crc32, [crc32fast::hash(&file)], "{at_most}");
    }
}

proptest! {
    #[test]
    fn the_parts_change_nothing(at_most in 0..70u64, copied in 1..70usize) {
        prop_assert_eq!(written(&plan(), at_most, copied), written(&plan(), u64::MAX, usize::MAX));
    }
}
