use super::*;
use crate::format::{
    meta::Meta,
    plan::{Piece, Plan},
};

const DATA_OFF: u64 = 8192;
const SKELETON_OFF: u64 = 4096;

/// The pickle of a meta, as bytes: what stays in the slot is copied from the skeleton.
fn pickled(tensors: &str, node: &str, skeleton: &[u8]) -> Result<(Vec<u8>, Vec<usize>), FormatError> {
    let text = format!(r#"{{"tensors":[{tensors}],"tree":{node}}}"#);
    let meta = Meta::parse(text.as_bytes(), 1 << 20, skeleton.len() as u64).unwrap();
    let source = Source::new(&meta, DATA_OFF, SKELETON_OFF, skeleton).unwrap();
    let pickle = tree(&source, &meta.tree)?;
    Ok((bytes_of(&pickle.plan, skeleton), pickle.storages))
}

fn bytes_of(plan: &Plan, skeleton: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in plan.pieces() {
        match piece {
            Piece::Bytes(part) => bytes.extend_from_slice(part),
            Piece::Slot { offset, len } => {
                let start = (offset - SKELETON_OFF) as usize;
                bytes.extend_from_slice(&skeleton[start..start + *len as usize]);
            }
            Piece::Crc { .. } => panic!("a pickle has no checksum"),
        }
    }
    bytes
}

fn plain(node: &str) -> Vec<u8> {
    pickled("", node, b"").unwrap().0
}

fn framed(opcodes: &[u8]) -> Vec<u8> {
    [b"\x80\x02", opcodes, b"."].concat()
}

#[test]
fn plain_leaves_are_the_opcodes_of_python() {
    let cases: [(&str, &[u8]); 17] = [
        ("null", b"N"),
        ("true", b"\x88"),
        ("false", b"\x89"),
        ("0", b"K\x00"),
        ("255", b"K\xff"),
        ("256", b"M\x00\x01"),
        ("65536", b"J\x00\x00\x01\x00"),
        ("-1", b"J\xff\xff\xff\xff"),
        ("2147483648", b"\x8a\x05\x00\x00\x00\x80\x00"),
        ("-9223372036854775808", b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"),
        (r#"{"i":"18446744073709551616"}"#, b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01"),
        (r#"{"f":"0x1.8p+0"}"#, b"G\x3f\xf8\x00\x00\x00\x00\x00\x00"),
        (r#""é""#, b"X\x02\x00\x00\x00\xc3\xa9"),
        (r#"{"t":[]}"#, b")"),
        (r#"{"t":[1,2]}"#, b"K\x01K\x02\x86"),
        (r#"{"t":[1,2,3,4]}"#, b"(K\x01K\x02K\x03K\x04t"),
        (r#"{"l":[{"l":[]},1]}"#, b"](]K\x01e"),
    ];
    for (node, opcodes) in cases {
        assert_eq!(plain(node), framed(opcodes), "{node}");
    }
}

#[test]
fn integers_of_any_size_have_a_length() {
    let long = plain(&format!(r#"{{"i":"1{}"}}"#, "0".repeat(700)));
    // 10^700 needs 2326 bits.
    assert_eq!(long[2..7], [0x8b, 35, 1, 0, 0]);
    assert_eq!(long.len(), 2 + 5 + 291 + 1);
}

#[test]
fn keys_of_dicts_are_memoised() {
    let dict = plain(r#"{"l":[{"d":[["a",1]]},{"d":[["a",2],[3,"a"]]},{"d":[]}]}"#);
    assert_eq!(dict, framed(b"](}(X\x01\0\0\0aq\x00K\x01u}(h\x00K\x02K\x03X\x01\0\0\0au}e"));
}

#[test]
fn an_ordered_dict_is_built_with_its_attributes() {
    let plain = plain(r#"{"o":[["a",1]],"a":{"d":[["_metadata",{"o":[]}]]}}"#);
    let expected = [
        &b"ccollections\nOrderedDict\nq\x00)R(X\x01\0\0\0aq\x01K\x01u"[..],
        b"}(X\x09\0\0\0_metadataq\x02h\x00)Rub",
    ];
    assert_eq!(plain, framed(&expected.concat()));
}

/// The opcodes of a tensor are those of `torch.save`, but for the places in the memo.
#[test]
fn tensors_are_rebuilt_on_their_storages() {
    let rows =
        r#"["a","float32",[3,4],0,48,0,0,[4,1]],["b","float32",[4,3],0,48,0,0,[1,4]],["c","uint16",[],64,2]"#;
    let (pickle, storages) = pickled(rows, r#"{"l":[{"T":2},{"T":0},{"T":1},{"T":0}]}"#, b"").unwrap();
    let expected = [
        &b"]("[..],
        b"ctorch._utils\n_rebuild_tensor_v3\nq\x00((X\x07\0\0\0storageq\x01ctorch.storage\nUntypedStorage\nq\x02",
        b"X\x01\0\0\x000X\x03\0\0\0cpuq\x03K\x02tQK\x00))\x89ccollections\nOrderedDict\nq\x04)R",
        b"ctorch\nuint16\nq\x05tRq\x06",
        b"ctorch._utils\n_rebuild_tensor_v2\nq\x07((h\x01ctorch\nFloatStorage\nq\x08X\x01\0\0\x001h\x03K\x0ctQ",
        b"K\x00K\x03K\x04\x86K\x04K\x01\x86\x89h\x04)RtRq\x09",
        b"h\x07((h\x01h\x08X\x01\0\0\x001h\x03K\x0ctQK\x00K\x04K\x03\x86K\x01K\x04\x86\x89h\x04)RtRq\x0a",
        // The same object as the second one.
        b"h\x09e",
    ];
    assert_eq!(pickle, framed(&expected.concat()));
    assert_eq!(storages, [1, 0]);
}

#[test]
fn a_storage_of_two_types_is_one_of_bytes() {
    let rows = r#"["a","float32",[1],0,4,0],["b","int32",[1],0,4,0]"#;
    let (pickle, storages) = pickled(rows, r#"{"l":[{"T":0},{"T":1}]}"#, b"").unwrap();
    let text = String::from_utf8_lossy(&pickle);
    assert!(text.contains("UntypedStorage") && !text.contains("FloatStorage"), "{text}");
    assert!(text.contains("ctorch\nfloat32\n") && text.contains("ctorch\nint32\n"), "{text}");
    assert_eq!(storages, [0]);
}

#[test]
fn leaves_are_put_in_below_our_places_of_the_memo() {
    // [[], that list], then a leaf with tensor 0 in a list.
    let skeleton = b"\x80\x02]q\x00(]q\x01h\x01e.\x80\x02]q\x00K\x00Qa.";
    let rows = r#"["a","int8",[1],0,1]"#;
    let node = r#"{"d":[["x",{"p":[0,13]}],["y",{"p":[13,10]}],["x",{"T":0}]]}"#;
    let (pickle, _) = pickled(rows, node, skeleton).unwrap();
    let expected = [
        &b"}(X\x01\0\0\0xq\x02]q\x00(]q\x01h\x01e"[..],
        b"X\x01\0\0\0yq\x03]q\x00",
        b"ctorch._utils\n_rebuild_tensor_v2\nq\x04((X\x07\0\0\0storageq\x05ctorch\nCharStorage\nq\x06X\x01\0\0\x000",
        b"X\x03\0\0\0cpuq\x07K\x01tQK\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\nq\x08)RtRq\x09a",
        b"h\x02h\x09u",
    ];
    assert_eq!(pickle, framed(&expected.concat()));
}

#[test]
fn leaves_of_other_protocols_are_bytes() {
    let skeleton = b"\x80\x04K\x05.\x80\x03K\x06.";
    let (pickle, _) = pickled("", r#"{"l":[{"p":[0,5]},{"p":[5,5]}]}"#, skeleton).unwrap();
    let expected = [
        &b"](cpickle\nloads\nq\x00\x8e\x05\0\0\0\0\0\0\0\x80\x04K\x05.\x85R"[..],
        b"h\x00\x8e\x05\0\0\0\0\0\0\0\x80\x03K\x06.\x85Re",
    ];
    assert_eq!(pickle, framed(&expected.concat()));
}

#[test]
fn room_behind_a_leaf_is_left_out() {
    let (pickle, _) = pickled("", r#"{"l":[{"p":[0,8]},7]}"#, b"\x80\x02N.\0\0\0\0").unwrap();
    assert_eq!(pickle, framed(b"](NK\x07e"));
}

#[test]
fn large_leaves_stay_in_the_slot() {
    let text = [&b"\x80\x02X\x00\x20\0\0"[..], &[b'a'; 0x2000], b"q\0."].concat();
    let meta = format!(r#"{{"tensors":[],"tree":{{"p":[0,{}]}}}}"#, text.len());
    let meta = Meta::parse(meta.as_bytes(), 0, text.len() as u64).unwrap();
    let source = Source::new(&meta, DATA_OFF, SKELETON_OFF, &text).unwrap();
    let plan = tree(&source, &meta.tree).unwrap().plan;
    let slot = Piece::Slot { offset: SKELETON_OFF + 2, len: text.len() as u64 - 3 };
    assert_eq!(plan.pieces(), [Piece::Bytes(b"\x80\x02".to_vec()), slot, Piece::Bytes(b".".to_vec())]);
}

#[test]
fn leaves_that_are_no_pickle_are_refused() {
    let refused = pickled("", r#"{"p":[1,2]}"#, b"\x80\x02N").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the pickle of 2 bytes at byte 1 of the skeleton cannot be used: it does not begin with the opcode PROTO: \
         protocol 2 or later is required"
    );
    let cut = pickled("", r#"{"p":[0,3]}"#, b"\x80\x02N").unwrap_err();
    assert_eq!(cut, FormatError::Leaf { offset: 0, len: 3, error: LeafError::CutOff });
}

#[test]
fn the_memo_grows_beyond_a_byte() {
    let keys: Vec<String> = (0..300).map(|key| format!(r#"["{key:03}",{key}]"#)).collect();
    let pickle = plain(&format!(r#"{{"l":[{{"d":[{0}]}},{{"d":[{0}]}}]}}"#, keys.join(",")));
    let has = |part: &[u8]| pickle.windows(part.len()).any(|window| window == part);
    assert!(has(b"X\x03\0\0\x00255q\xff") && has(b"X\x03\0\0\x00256r\x00\x01\0\0"));
    assert!(has(b"h\xffK\xff") && has(b"j\x00\x01\0\0M\x00\x01"));
}
