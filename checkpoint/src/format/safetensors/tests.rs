use super::*;
use crate::format::{Format, files, meta::Meta, plan::Piece};

fn meta(tensors: &str, node: &str) -> Meta {
    let text = format!(r#"{{"tensors":[{tensors}],"tree":{node}}}"#);
    Meta::parse(text.as_bytes(), 1000, 0).unwrap()
}

fn planned(tensors: &str, node: &str) -> Result<Files, FormatError> {
    plan(&Source::new(&meta(tensors, node), 8192, 4096, b"").unwrap())
}

const ROWS: &str = r#"["a","bool",[3],0,3],["b","float32",[2,1],64,8],["c","bfloat16",[],128,2]"#;
const ITEMS: &str = r#"["items",{"d":[["a",{"T":0}],["b",{"T":1}],["c",{"T":2}]]}]"#;

#[test]
fn tensors_are_by_the_size_of_their_elements() {
    let files =
        planned(ROWS, &format!(r#"{{"d":[{ITEMS},["offsets",{{"d":[["b",{{"l":[4,0]}}]]}}]]}}"#)).unwrap();
    let expected = concat!(
        r#"{"__metadata__":{"DCP_SHARDING_INFO":"{\"b\":{\"saved_offsets\":[4,0]},\"c\":{\"saved_offsets\":[]},"#,
        r#"\"a\":{\"saved_offsets\":[0]}}","DCP_VERSION":"1.0","format":"pt"},"#,
        r#""b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"c":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"#,
        r#""a":{"dtype":"BOOL","shape":[3],"data_offsets":[10,13]}}"#
    );
    let [Piece::Bytes(header), data @ ..] = files.tensors.pieces() else { panic!("a header comes first") };
    let length = u64::from_le_bytes(header[..8].try_into().unwrap()) as usize;
    assert_eq!((length + 8, header.len() % 64), (header.len(), 0));
    assert_eq!(std::str::from_utf8(&header[8..]).unwrap().trim_end(), expected);
    let slot = |offset, len| Piece::Slot { offset, len };
    assert_eq!(data, [slot(8192 + 64, 8), slot(8192 + 128, 2), slot(8192, 3)]);
    assert!(files.extra.is_none());
}

#[test]
fn names_of_files_have_the_rank() {
    let meta = meta(ROWS, &format!(r#"{{"d":[{ITEMS},["extra",{{"d":[["step",7],["c",{{"T":2}}]]}}]]}}"#));
    let source = Source::new(&meta, 8192, 4096, b"").unwrap();
    let files = files(Format::Safetensors, &source, 11).unwrap();
    let names: Vec<_> = files.iter().map(|file| (file.name.as_deref().unwrap(), file.is_commit)).collect();
    assert_eq!(
        names,
        [("shard-00012-model-00001-of-00001.safetensors", false), ("shard-00012-extra.pt", false)]
    );
}

#[test]
fn what_safetensors_does_not_have_is_refused() {
    let fault = |rows: &str, node: &str| planned(rows, node).unwrap_err().to_string();
    let items = |node: &str| format!(r#"{{"d":[["items",{{"d":[{node}]}}]]}}"#);
    assert_eq!(
        fault("", &items(r#"["step",7]"#)),
        "`step` is not a tensor; a safetensors file has tensors only"
    );
    assert_eq!(
        fault(r#"["w","complex128",[1],0,16]"#, &items(r#"["w",{"T":0}]"#)),
        "`w` is a tensor of complex128, which safetensors does not support"
    );
    assert_eq!(fault(ROWS, &items(r#"["a",{"T":0}],["a",{"T":1}]"#)), "the name `a` occurs twice");
    assert_eq!(fault(ROWS, &items(r#"["__metadata__",{"T":0}]"#)), "the name `__metadata__` occurs twice");
    let offsets = |node: &str| format!(r#"{{"d":[{ITEMS},["offsets",{node}]]}}"#);
    assert_eq!(
        fault(ROWS, &offsets(r#"{"d":[["b",{"l":[4]}]]}"#)),
        "the number of offsets of `b` is 1; expected 2, that of its dimensions"
    );
    let root = |node: &str| matches!(planned(ROWS, node), Err(FormatError::Root { .. }));
    assert!(root("null") && root(&items(r#"[5,{"T":0}]"#)) && root(&offsets("5")));
    assert!(root(&offsets(r#"{"d":[["b",{"l":[-1,0]}]]}"#)) && root(&offsets(r#"{"d":[["b",5]]}"#)));
    let transposed = r#"["w","int8",[2,2],0,4,0,0,[1,2]]"#;
    assert!(fault(transposed, &items(r#"["w",{"T":0}]"#)).contains("is not contiguous"));
}
