use super::*;
use crate::format::{meta::Meta, plan::Piece};

fn planned(tensors: &str, node: &str, data_len: u64) -> Plan {
    let text = format!(r#"{{"tensors":[{tensors}],"tree":{node}}}"#);
    let meta = Meta::parse(text.as_bytes(), data_len, 0).unwrap();
    let source = Source::new(&meta, 8192, 4096, b"").unwrap();
    plan(&source, &meta.tree).unwrap()
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
fn storages_are_in_the_order_of_the_pickle() {
    let rows =
        r#"["a","int8",[100],0,100],["b","int8",[7],128,7],["c","int8",[0],192,0],["d","int8",[9],192,9]"#;
    let plan = planned(rows, r#"{"l":[{"T":3},{"T":2},{"T":0},{"T":3}]}"#, 201);
    // `b` is in the table but not in the tree.
    let slots: Vec<_> = ranges(&plan).iter().map(|(_, offset, len)| (*offset, *len)).collect();
    assert_eq!(slots, [(8192 + 192, 9), (8192, 100)]);
}

#[test]
fn data_is_aligned_whatever_its_length() {
    let row = |place: u64| format!(r#"["{place}","int8",[{0}],{1},{0}]"#, place % 130, place * 192);
    let rows: Vec<String> = (0..300).map(row).collect();
    let nodes: Vec<String> = (0..300).map(|place| format!(r#"{{"T":{place}}}"#)).collect();
    let plan = planned(&rows.join(","), &format!(r#"{{"t":[{}]}}"#, nodes.join(",")), 300 * 192);
    let ranges = ranges(&plan);
    assert_eq!(ranges.len(), 297);
    for (at, offset, len) in ranges {
        assert_eq!((at % 64, (offset - 8192) / 192 % 130), (0, len));
    }
}

#[test]
fn data_is_aligned_beyond_4_gib() {
    let gib = 1_u64 << 30;
    let rows = format!(
        r#"["a","uint8",[{0}],0,{0}],["b","float32",[3],{0},12],["c","uint8",[{1}],{2},{1}],["d","int8",[1],{3},1]"#,
        5 * gib,
        100 * gib + 1,
        5 * gib + 64,
        106 * gib
    );
    let plan = planned(&rows, r#"{"l":[{"T":0},{"T":1},{"T":2},{"T":3}]}"#, 107 * gib);
    let ranges = ranges(&plan);
    assert!(ranges.iter().all(|(at, ..)| at % 64 == 0), "{ranges:?}");
    let lengths: Vec<_> = ranges.iter().map(|range| range.2).collect();
    assert_eq!(lengths, [5 * gib, 12, 100 * gib + 1, 1]);
}
