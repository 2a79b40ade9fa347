use super::*;
use crate::format::{dtype::Dtype, meta::Meta, plan::Piece};

const SKELETON: &[u8] = b"\x80\x02K\x05.\x80\x04metadata";

fn planned(tensors: &str, node: &str) -> Result<Files, FormatError> {
    let text = format!(r#"{{"tensors":[{tensors}],"tree":{node}}}"#);
    let meta = Meta::parse(text.as_bytes(), 1 << 40, SKELETON.len() as u64).unwrap();
    plan(&Source::new(&meta, 8192, 4096, SKELETON).unwrap())
}

fn items(tensors: &str, nodes: &str) -> Result<Plan, FormatError> {
    Ok(planned(tensors, &format!(r#"{{"d":[["items",{{"d":[{nodes}]}}]]}}"#))?.items)
}

/// Where each range of the slot is in the file.
fn ranges(plan: &Plan) -> Vec<(u64, u64, u64)> {
    let mut at = 0;
    let mut ranges = Vec::new();
    for piece in plan.pieces() {
        if let Piece::Slot { offset, len } = piece {
            ranges.push((at, *offset, *len));
        }
        at += piece.len();
    }
    assert_eq!(at, plan.len());
    ranges
}

#[test]
fn items_are_where_they_are_computed() {
    let rows = r#"["w","float32",[2,3],0,24],["v","float32",[5],64,20]"#;
    let nodes = r#"["w",{"T":0}],["step",7],["v",{"T":1}],["odd",{"p":[0,5]}]"#;
    let plan = items(rows, nodes).unwrap();
    let tensor = |bytes| Size::Tensor { dimensions: 2, bytes };
    let sizes = [tensor(24), Size::Value { weight: 16 }, tensor(20), Size::Value { weight: 53 }];
    let extents = extents(&sizes);
    let extent = |offset, length| Extent { offset, length };
    assert_eq!(extents, [extent(0, 1180), extent(1216, 512), extent(1728, 1176), extent(2944, 512)]);
    assert_eq!(plan.len(), 2944 + 512);
    // Data behind the head.
    assert_eq!(ranges(&plan), [(768, 8192, 24), (1728 + 768, 8192 + 64, 20)]);
}

#[test]
fn lengths_do_not_depend_on_values() {
    let length = |node: &str| items("", &format!(r#"["a",{node}]"#)).unwrap().len();
    for node in [
        "null",
        "true",
        "0",
        "-9223372036854775808",
        r#"{"f":"nan"}"#,
        r#"{"i":"1234567890123456"}"#,
        r#""adam""#,
    ] {
        assert_eq!(length(node), 512, "{node}");
    }
    assert_eq!(length(&format!("\"{}\"", "x".repeat(112))), 512);
    assert_eq!(length(&format!("\"{}\"", "x".repeat(113))), 1024);
}

/// Nothing that can be in a tensor's pickle makes it longer than its head.
#[test]
fn the_largest_pickles_fit() {
    for dtype in Dtype::all() {
        for dimensions in [0, 1, 8, 9, 20, 64] {
            let shape = vec![i64::MAX as u64; dimensions];
            for is_typed in [false, true] {
                let bytes = i64::MAX as u64;
                let view = View { dtype, bytes, is_typed, storage_offset: 0, shape: &shape, strides: &shape };
                let (pickle, head) = (pickle::tensor(&view).len(), head(dimensions as u64));
                assert!(pickle + HEAD_OVERHEAD <= head, "{}: {pickle} of {head}", dtype.name());
            }
        }
    }
}

/// The weight is an upper bound for whatever a value is made of.
#[test]
fn the_weight_bounds_the_pickle() {
    let many = |node: &str| vec![node; 500].join(",");
    for node in [
        format!(r#"{{"l":[{}]}}"#, many(r#"{"o":[]}"#)),
        format!(r#"{{"l":[{}]}}"#, many("-9223372036854775808")),
        format!(r#"{{"l":[{}]}}"#, many(r#"{"o":[],"a":{"d":[["k",1]]}}"#)),
        format!(
            r#"{{"d":[{}]}}"#,
            (0..500).map(|key| format!(r#"["{key}",null]"#)).collect::<Vec<_>>().join(",")
        ),
        format!(r#"{{"i":"-{}"}}"#, "9".repeat(4300)),
        r#"{"i":"9"}"#.to_owned(),
        r#"{"p":[0,5]}"#.to_owned(),
        r#"{"p":[5,0]}"#.to_owned(),
    ] {
        let text = format!(r#"{{"tensors":[],"tree":{node}}}"#);
        let meta = Meta::parse(text.as_bytes(), 0, SKELETON.len() as u64).unwrap();
        let source = Source::new(&meta, 8192, 4096, SKELETON).unwrap();
        let Ok(pickle) = pickle::tree(&source, &meta.tree) else { continue };
        let length = Size::Value { weight: weight(&meta.tree) }.length();
        assert!(pickle.plan.len() + BOX_OVERHEAD <= length, "{} of {length}: {node}", pickle.plan.len());
        assert_eq!(boxed(&source, &Tree::None, &meta.tree, length).unwrap().len(), length);
    }
}

#[test]
fn the_tail_is_as_long_for_every_tensor() {
    for (bytes, dtype) in [(0, "int8"), (1, "uint16"), (5 << 32, "complex128")] {
        let elements = bytes / Dtype::named(dtype).unwrap().size();
        let bytes = elements * Dtype::named(dtype).unwrap().size();
        let plan = items(&format!(r#"["w","{dtype}",[{elements}],0,{bytes}]"#), r#"["w",{"T":0}]"#).unwrap();
        assert_eq!(plan.len(), 768 + bytes + 388, "{dtype}");
    }
}

#[test]
fn a_shared_tensor_is_written_where_it_lies() {
    let rows = r#"["a","int16",[2,3],0,100,1,10,[3,1]],["b","int16",[50],0,100,1]"#;
    let plan = items(rows, r#"["a",{"T":0}],["b",{"T":1}],["c",{"T":0}]"#).unwrap();
    let slots: Vec<_> = ranges(&plan).iter().map(|(_, offset, len)| (*offset, *len)).collect();
    assert_eq!(slots, [(8192 + 20, 12), (8192, 100), (8192 + 20, 12)]);
}

#[test]
fn metadata_is_a_file_as_it_is() {
    let files =
        planned("", r#"{"d":[["metadata",{"p":[5,10]}],["items",{"d":[]}],["extra",{"l":[1]}]]}"#).unwrap();
    assert!(files.items.is_empty());
    assert_eq!(files.metadata.unwrap().pieces(), [Piece::Slot { offset: 4096 + 5, len: 10 }]);
    assert!(planned("", r#"{"d":[["items",{"d":[]}],["metadata",null]]}"#).unwrap().metadata.is_none());
}

#[test]
fn what_no_folder_has_is_refused() {
    let root = |node: &str| matches!(planned("", node), Err(FormatError::Root { .. }));
    assert!(root("null") && root(r#"{"d":[]}"#) && root(r#"{"d":[["items",{"l":[]}]]}"#));
    assert!(root(r#"{"d":[["items",{"d":[]}],["metadata",5]]}"#));
    let transposed = r#"["w","int8",[2,2],0,4,0,0,[1,2]]"#;
    let fault = items(transposed, r#"["w",{"T":0}]"#).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "the tensor `w` is not contiguous; a directory has contiguous tensors only"
    );
    let inside = items(r#"["w","int8",[1],0,1]"#, r#"["w",{"l":[{"T":0}]}]"#).unwrap_err();
    assert_eq!(inside, FormatError::TensorInValue { name: "w".to_owned() });
}

#[test]
fn a_small_slot_makes_no_endless_file() {
    let rows = format!(r#"["w","uint8",[{0}],0,{0}]"#, 1_u64 << 40);
    let nodes = vec![r#"["w",{"T":0}]"#; 1 << 12].join(",");
    assert_eq!(items(&rows, &nodes).unwrap().len() >> 52, 1);
    // A tensor of stride 0 has more elements than bytes.
    let expanded = format!(r#"["w","uint8",[{0},{0},{0}],0,1,0,0,[0,0,0]]"#, i64::MAX);
    assert!(items(&expanded, &nodes).is_err());
}
