//! A file of a sharded safetensors directory, `shard-<rank + 1>-model-00001-of-00001.safetensors`, which
//! torch's `HuggingFaceStorageReader` and safetensors itself read.
//!
//! # What the client gives
//!
//! The tree of the meta is a dict. Order and names of its keys are free:
//!
//! - `items`: a dict from names to tensors `{"T": index}`, contiguous. A name is there once.
//! - `offsets`: null, or a dict from names to lists of integers: where the first element of this rank's
//!   shard is in the whole tensor, for each dimension. A name that is not there has a shard at 0.
//! - `extra`: any node. safetensors has no place for what is no tensor; unless it is null, it goes into a
//!   `.pt` file beside the shard, `shard-<rank + 1>-extra.pt`. torch's reader does not look at it.
//!
//! torch takes the largest end of a shard for the size of a tensor, so that shards of no elements at the end
//! are lost.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{
    FormatError, MAX_FILE_BYTES, Source,
    meta::{Tensor, Tree},
    plan::Plan,
    pt,
};

/// The longest header that safetensors reads, in bytes.
pub(super) const MAX_HEADER_BYTES: usize = 100_000_000;

/// The header is as long as a multiple of it, so that elements of every type are aligned.
const ALIGNMENT: usize = 64;

/// The entry of a header that is no tensor.
const METADATA: &str = "__metadata__";

/// The file of a rank's tensors, and what goes beside it.
#[derive(Debug)]
pub struct Files {
    pub tensors: Plan,
    pub extra: Option<Plan>,
}

/// A tensor of the file.
struct Item<'a> {
    name: &'a str,
    tensor: &'a Tensor,
    dtype: &'static str,
    slot: u64,
    bytes: u64,
}

pub fn plan(source: &Source<'_>) -> Result<Files, FormatError> {
    let expected =
        "a dict with `items`, a dict with string keys, and `offsets`, null or a dict of lists of integers";
    let malformed = || FormatError::Root { expected };
    let root = &source.meta.tree;
    let Some(Tree::Dict(pairs)) = root.get("items") else { return Err(malformed()) };
    let no_offsets = Tree::Dict(Vec::new());
    let offsets = match root.get("offsets") {
        None | Some(Tree::None) => &no_offsets,
        Some(offsets @ Tree::Dict(_)) => offsets,
        Some(_) => return Err(malformed()),
    };
    let mut items = Vec::with_capacity(pairs.len());
    // A name of the format's own.
    let mut names = BTreeSet::from([METADATA]);
    for (key, node) in pairs {
        let Tree::Text(name) = key else { return Err(malformed()) };
        if !names.insert(name.as_str()) {
            return Err(FormatError::Twice { name: name.clone() });
        }
        items.push(item(source, name, node)?);
    }
    // Types with large elements first: each tensor then begins at a multiple of its elements' size.
    items.sort_by_key(|item| std::cmp::Reverse(item.tensor.dtype.size()));

    let mut file = Plan::default();
    file.bytes(&header(&items, offsets).ok_or_else(malformed)??);
    for item in &items {
        file.slot(item.slot, item.bytes);
    }
    let extra = match root.get("extra") {
        None | Some(Tree::None) => None,
        Some(extra) => Some(pt::plan(source, extra)?),
    };
    Ok(Files { tensors: file, extra })
}

fn item<'a>(source: &Source<'a>, name: &'a str, node: &Tree) -> Result<Item<'a>, FormatError> {
    let Tree::Tensor(place) = node else { return Err(FormatError::NotATensor { name: name.to_owned() }) };
    let tensor = &source.meta.tensors[*place];
    let Some(dtype) = tensor.dtype.safetensors_name() else {
        return Err(FormatError::NotInSafetensors { name: name.to_owned(), dtype: tensor.dtype.name() });
    };
    let (slot, bytes) = source.contiguous(tensor)?;
    Ok(Item { name, tensor, dtype, slot, bytes })
}

/// The length of the header and the header; nothing when the offsets are no lists of integers.
fn header(items: &[Item<'_>], offsets: &Tree) -> Option<Result<Vec<u8>, FormatError>> {
    let mut sharding = Map::new();
    let mut table = Map::new();
    // The first key, as in the files of torch.
    table.insert(METADATA.to_owned(), Value::Null);
    let mut at: u64 = 0;
    for Item { name, tensor, dtype, bytes, .. } in items {
        let saved = match offsets.get(name) {
            None => vec![0; tensor.shape.len()],
            Some(Tree::List(nodes) | Tree::Tuple(nodes)) => integers(nodes)?,
            Some(_) => return None,
        };
        if saved.len() != tensor.shape.len() {
            let (found, expected) = (saved.len(), tensor.shape.len());
            return Some(Err(FormatError::Offsets { name: (*name).to_owned(), found, expected }));
        }
        let end = at.saturating_add(*bytes);
        if end > MAX_FILE_BYTES {
            return Some(Err(FormatError::TooLong));
        }
        sharding.insert((*name).to_owned(), json!({ "saved_offsets": saved }));
        table.insert(
            (*name).to_owned(),
            json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [at, end] }),
        );
        at = end;
    }
    let sharding = Value::Object(sharding).to_string();
    table[METADATA] = json!({ "DCP_SHARDING_INFO": sharding, "DCP_VERSION": "1.0", "format": "pt" });
    let mut header = Value::Object(table).to_string().into_bytes();
    // The 8 bytes of the length come before it.
    header.resize((header.len() + 8).next_multiple_of(ALIGNMENT) - 8, b' ');
    if header.len() > MAX_HEADER_BYTES {
        return Some(Err(FormatError::Header { bytes: header.len() }));
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut header);
    Some(Ok(bytes))
}

fn integers(nodes: &[Tree]) -> Option<Vec<u64>> {
    let integer = |node: &Tree| if let Tree::Int(value) = node { u64::try_from(*value).ok() } else { None };
    nodes.iter().map(integer).collect()
}

#[cfg(test)]
mod tests;
