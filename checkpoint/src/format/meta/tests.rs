use proptest::prelude::*;

use super::*;
use crate::format::dtype::Dtype;

const DATA: u64 = 1 << 20;
const SKELETON: u64 = 1000;

fn parse(text: &str) -> Result<Meta, MetaError> {
    Meta::parse(text.as_bytes(), DATA, SKELETON)
}

fn tree(node: &str) -> Result<Tree, MetaError> {
    parse(&format!(r#"{{"tensors":[["w","float32",[2],0,8],["v","int8",[],64,1]],"tree":{node}}}"#))
        .map(|meta| meta.tree)
}

fn table(rows: &str) -> Result<Meta, MetaError> {
    parse(&format!(r#"{{"tensors":[{rows}],"tree":null}}"#))
}

fn text(text: &str) -> Tree {
    Tree::Text(text.to_owned())
}

#[test]
fn every_node_is_read() {
    let all = r#" {"d": [["a", null], [true, false], [-5, "x\u00e9"],
        [{"f": "0x1.8p+0"}, {"i": "-123456789012345678901"}],
        [{"t": [1, {"t": []}]}, {"l": []}], [{"p": [10, 20]}, {"T": 1}]]} "#;
    let pairs = vec![
        (text("a"), Tree::None),
        (Tree::Bool(true), Tree::Bool(false)),
        (Tree::Int(-5), text("x\u{e9}")),
        (Tree::Float(1.5), Tree::Digits("-123456789012345678901".to_owned())),
        (Tree::Tuple(vec![Tree::Int(1), Tree::Tuple(vec![])]), Tree::List(vec![])),
        (Tree::Odd { offset: 10, len: 20 }, Tree::Tensor(1)),
    ];
    assert_eq!(tree(all), Ok(Tree::Dict(pairs)));
}

#[test]
fn an_ordered_dict_may_have_attributes() {
    let plain = Tree::OrderedDict(vec![(text("a"), Tree::Int(1))], None);
    assert_eq!(tree(r#"{"o":[["a",1]]}"#), Ok(plain));
    let attributes = Box::new(Tree::Dict(vec![(text("_metadata"), Tree::OrderedDict(vec![], None))]));
    let with = Tree::OrderedDict(vec![], Some(attributes));
    assert_eq!(tree(r#"{"o":[],"a":{"d":[["_metadata",{"o":[]}]]}}"#), Ok(with));
    for wrong in [
        r#"{"o":[],"a":{"o":[]}}"#,
        r#"{"o":[],"a":{"d":[[1,1]]}}"#,
        r#"{"o":[],"b":{"d":[]}}"#,
        r#"{"d":[],"a":{"d":[]}}"#,
        r#"{"o":[],}"#,
    ] {
        assert!(matches!(tree(wrong), Err(MetaError::Json { .. })), "{wrong}");
    }
}

#[test]
fn other_nodes_are_refused() {
    for wrong in [
        "[]",
        "{}",
        "1.5",
        "nul",
        "{\"x\":1}",
        "{\"l\":[}",
        "{\"d\":[[1]]}",
        "{\"d\":[[1,2,3]]}",
        "{\"d\":{}}",
        "{\"f\":1.5}",
        "{\"f\":\"1.5\"}",
        "{\"i\":\"\"}",
        "{\"i\":\"-\"}",
        "{\"i\":\"1e5\"}",
        "{\"i\":5}",
        "{\"p\":[1]}",
        "{\"p\":[-1,1]}",
        "{\"T\":-1}",
        "{\"T\":\"0\"}",
        "{\"l\":[]",
        "{\"l\":[],\"l\":[]}",
        "9223372036854775808",
        // Python cannot hash these.
        "{\"d\":[[{\"l\":[]},1]]}",
        "{\"d\":[[{\"t\":[{\"d\":[]}]},1]]}",
        "{\"d\":[[{\"T\":0},1]]}",
    ] {
        assert!(matches!(tree(wrong), Err(MetaError::Json { .. })), "{wrong}: {:?}", tree(wrong));
    }
    let digits = format!("{{\"i\":\"{}\"}}", "9".repeat(MAX_DIGITS));
    assert!(tree(&digits).is_ok() && tree(&digits.replacen('9', "99", 1)).is_err());
}

#[test]
fn places_in_the_tree_exist() {
    assert_eq!(tree(r#"{"T":2}"#), Err(MetaError::NoTensor { index: 2, count: 2 }));
    assert_eq!(tree(r#"{"p":[0,1000]}"#), Ok(Tree::Odd { offset: 0, len: SKELETON }));
    let outside = |offset, len| Err(MetaError::OutsideOfSkeleton { offset, len, skeleton_len: SKELETON });
    assert_eq!(tree(r#"{"p":[1,1000]}"#), outside(1, 1000));
    assert_eq!(
        tree(r#"{"p":[9223372036854775807,9223372036854775807]}"#),
        outside(i64::MAX as u64, i64::MAX as u64)
    );
    // Many leaves at one place would make a large file of a small slot.
    let twice = r#"{"l":[{"p":[0,600]},{"p":[0,600]}]}"#;
    assert_eq!(tree(twice), Err(MetaError::PicklesOverlap { skeleton_len: SKELETON }));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}1{}", "{\"l\":[".repeat(depth), "]}".repeat(depth));
    assert!(tree(&nested(MAX_DEPTH)).is_ok());
    assert!(matches!(tree(&nested(MAX_DEPTH + 1)), Err(MetaError::TooDeep { .. })));
    assert!(matches!(tree(&"{\"d\":[[{\"t\":[".repeat(100_000)), Err(MetaError::TooDeep { .. })));
}

#[test]
fn counts_are_bounded() {
    let nodes = format!("{{\"l\":[{}0]}}", "0,".repeat(MAX_NODES - 1));
    assert!(matches!(tree(&nodes), Err(MetaError::TooManyNodes { .. })));
    let rows = format!("{0}{0}", r#"["","int8",[0],0,0],"#.repeat(MAX_TENSORS / 2));
    assert!(table(rows.trim_end_matches(',')).is_ok());
    assert!(matches!(table(&format!(r#"{rows}["","int8",[0],0,0]"#)), Err(MetaError::TooManyTensors { .. })));
}

#[test]
fn every_form_of_a_tensor_is_read() {
    let rows = r#"["a", "float32", [2, 3], 0, 24], ["b", "bfloat16", [], 64, 2, 7],
        ["c", "int64", [2, 2], 128, 96, 9, 1, [3, 1]], ["d", "int64", [0, 5], 128, 96, 9]"#;
    let meta = table(rows).unwrap();
    let tensor = |key: &str, dtype, shape: &[u64], storage, storage_offset, strides: &[u64]| Tensor {
        key: key.to_owned(),
        dtype: Dtype::named(dtype).unwrap(),
        shape: shape.to_vec(),
        storage,
        storage_offset,
        strides: strides.to_vec(),
    };
    assert_eq!(
        meta.tensors,
        [
            tensor("a", "float32", &[2, 3], 0, 0, &[3, 1]),
            tensor("b", "bfloat16", &[], 1, 0, &[]),
            tensor("c", "int64", &[2, 2], 2, 1, &[3, 1]),
            tensor("d", "int64", &[0, 5], 2, 0, &[5, 1]),
        ]
    );
    let storage = |offset, bytes| Storage { offset, bytes };
    assert_eq!(meta.storages, [storage(0, 24), storage(64, 2), storage(128, 96)]);
    let contiguous: Vec<bool> = meta.tensors.iter().map(Tensor::is_contiguous).collect();
    assert_eq!(contiguous, [true, true, false, true]);
}

#[test]
fn tensors_lie_in_their_storages_and_storages_in_the_slot() {
    let fault = |rows: &str| table(rows).unwrap_err().to_string();
    let outside = "the tensor `a` does not fit into its storage of";
    // A storage of its own has the bytes of its tensor, not more.
    assert_eq!(fault(r#"["a","float32",[2],0,12]"#), format!("{outside} 12 bytes"));
    assert_eq!(fault(r#"["a","float32",[2],0,4]"#), format!("{outside} 4 bytes"));
    assert_eq!(fault(r#"["a","float32",[2],0,4,1]"#), format!("{outside} 4 bytes"));
    assert_eq!(fault(r#"["a","int8",[2,2],0,4,1,1,[2,1]]"#), format!("{outside} 4 bytes"));
    let huge = u64::MAX / 2;
    for row in [
        format!(r#"["a","int8",[{huge},{huge}],0,4]"#),
        format!(r#"["a","int8",[2],0,4,1,0,[{huge}]]"#),
        format!(r#"["a","int8",[2],0,4,1,{huge},[{huge}]]"#),
        format!(r#"["a","complex128",[1],0,4,1,{huge},[1]]"#),
    ] {
        assert_eq!(fault(&row), format!("{outside} 4 bytes"), "{row}");
    }
    assert_eq!(
        fault(r#"["a","int8",[1],1048576,1]"#),
        "the storage of the tensor `a` has 1 B at byte 1048576; the slot has 1048576 B for tensors"
    );
    assert!(table(&format!(r#"["a","int8",[],{huge},{huge}]"#)).is_err());
    assert_eq!(fault(r#"["a","qint8",[1],0,1]"#), "the tensor `a` has the unknown dtype `qint8`");
    assert_eq!(
        fault(r#"["a","int8",[1],0,1,1,0,[]]"#),
        "the number of strides of the tensor `a` is 0; expected 1, that of its dimensions"
    );
    let many = format!(r#"["a","int8",[{}1],0,1]"#, "1,".repeat(MAX_DIMENSIONS));
    assert_eq!(fault(&many), "the tensor `a` has 65 dimensions (maximum: 64)");
}

#[test]
fn storages_are_shared_by_number_only() {
    let fault = |rows: &str| table(rows).unwrap_err();
    let elsewhere = r#"["a","int8",[4],0,4,3],["b","int8",[4],64,4,3]"#;
    assert_eq!(fault(elsewhere), MetaError::Shared { key: "b".to_owned(), storage: 3 });
    assert_eq!(fault(r#"["a","int8",[4],0,4],["b","int8",[4],2,4]"#), MetaError::Overlap { offset: 2 });
    // Empty storages may lie anywhere.
    assert!(table(r#"["a","int8",[4],0,4],["b","int8",[0],2,0],["c","int8",[0],2,0]"#).is_ok());
}

#[test]
fn the_frame_is_strict() {
    for wrong in [
        "",
        "{}",
        "[]",
        r#"{"tree":null,"tensors":[]}"#,
        r#"{"tensors":[]}"#,
        r#"{"tensors":[],"tree":null,"more":1}"#,
        r#"{"tensors":[],"tree":null}x"#,
        r#"{"tensors":[1],"tree":null}"#,
        r#"{"tensors":[["a"]],"tree":null}"#,
        r#"{"tensors":[["a","int8",[1],0,1,1,0]],"tree":null}"#,
    ] {
        assert!(matches!(parse(wrong), Err(MetaError::Json { .. })), "{wrong}");
    }
    assert!(parse("\t{ \"tensors\" :\n[ ] , \"tree\" : null }\r\n").is_ok());
    let large = vec![b' '; MAX_BYTES + 1];
    assert_eq!(Meta::parse(&large, 0, 0), Err(MetaError::TooLarge { size: MAX_BYTES + 1 }));
    let data = MAX_DATA_BYTES + 1;
    assert_eq!(Meta::parse(b"", data, 0), Err(MetaError::TooMuchData { size: data }));
}

#[test]
fn faults_say_where() {
    assert_eq!(
        tree("{\"x\":1}").unwrap_err().to_string(),
        "the metadata cannot be read at byte 70: expected one of the tags d, o, l, t, T, p, f, i"
    );
}

/// A meta with one of everything, for the mutations.
const SEED: &str = r#"{"tensors":[["w","float32",[2,3],0,24,0,0,[3,1]],["v","int8",[],64,1]],
    "tree":{"d":[["a",{"T":0}],[{"t":[1,{"f":"0x1.8p+0"}]},{"o":[["b",{"i":"12345678901234567890"}]],
    "a":{"d":[]}}],["c",{"l":[null,true,{"p":[0,5]}]}]]}}"#;

fn leaf() -> impl Strategy<Value = Tree> {
    prop_oneof![
        Just(Tree::None),
        any::<bool>().prop_map(Tree::Bool),
        any::<i64>().prop_map(Tree::Int),
        any::<f64>().prop_filter("equal to itself", |value| !value.is_nan()).prop_map(Tree::Float),
        "\\PC{0,12}".prop_map(Tree::Text),
        "-?[0-9]{1,40}".prop_map(Tree::Digits),
    ]
}

fn any_tree() -> impl Strategy<Value = Tree> {
    leaf().prop_recursive(6, 64, 6, |inner| {
        let pairs = || proptest::collection::vec((leaf(), inner.clone()), 0..4);
        let items = || proptest::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            pairs().prop_map(Tree::Dict),
            pairs().prop_map(|pairs| Tree::OrderedDict(pairs, None)),
            items().prop_map(Tree::List),
            items().prop_map(Tree::Tuple),
        ]
    })
}

/// What the client would write.
fn json(tree: &Tree) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let items = |items: &[Tree]| items.iter().map(json).collect::<Vec<_>>().join(",");
    let pairs = |pairs: &[(Tree, Tree)]| {
        let pair = |(key, value): &(Tree, Tree)| format!("[{},{}]", json(key), json(value));
        pairs.iter().map(pair).collect::<Vec<_>>().join(",")
    };
    match tree {
        Tree::None => "null".to_owned(),
        Tree::Bool(value) => value.to_string(),
        Tree::Int(value) => value.to_string(),
        Tree::Digits(digits) => format!(r#"{{"i":"{digits}"}}"#),
        Tree::Float(value) => format!(r#"{{"f":"{}"}}"#, float::hex(*value)),
        Tree::Text(text) => quoted(text),
        Tree::Dict(of) => format!(r#"{{"d":[{}]}}"#, pairs(of)),
        Tree::OrderedDict(of, _) => format!(r#"{{"o":[{}]}}"#, pairs(of)),
        Tree::List(of) => format!(r#"{{"l":[{}]}}"#, items(of)),
        Tree::Tuple(of) => format!(r#"{{"t":[{}]}}"#, items(of)),
        Tree::Tensor(index) => format!(r#"{{"T":{index}}}"#),
        Tree::Odd { offset, len } => format!(r#"{{"p":[{offset},{len}]}}"#),
    }
}

proptest! {
    #[test]
    fn every_tree_comes_back(node in any_tree()) {
        prop_assert_eq!(tree(&json(&node)), Ok(node));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _read = Meta::parse(&bytes, DATA, SKELETON);
    }

    #[test]
    fn no_mutation_makes_it_panic(
        edits in proptest::collection::vec((0..SEED.len(), any::<u8>()), 1..4),
        cut in 0..SEED.len(),
    ) {
        let mut bytes = SEED.as_bytes().to_vec();
        for (place, byte) in edits {
            bytes[place] = byte;
        }
        let _read = Meta::parse(&bytes, DATA, SKELETON);
        let _read = Meta::parse(&bytes[..cut], DATA, SKELETON);
        prop_assert!(parse(SEED).is_ok());
    }

    #[test]
    fn what_is_accepted_lies_in_the_slot(
        (offset, bytes) in (0..200u64, 0..200u64),
        (first, size, stride) in (0..40u64, 0..40u64, 0..40u64),
    ) {
        let row = format!(r#"["a","int16",[{size}],{offset},{bytes},1,{first},[{stride}]]"#);
        let read = Meta::parse(format!(r#"{{"tensors":[{row}],"tree":null}}"#).as_bytes(), 100, 0);
        let last = (size > 0).then(|| 2 * (first + (size - 1) * stride + 1));
        let fits = offset + bytes <= 100 && last.is_none_or(|end| end <= bytes);
        prop_assert_eq!(read.is_ok(), fits);
    }
}
