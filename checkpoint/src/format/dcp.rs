//! A file of a directory of `torch.distributed.checkpoint`, `__<rank>_0.distcp`, which its `FileSystemReader`
//! reads.
//!
//! The client runs the planner, once for each layout; the writer here knows nothing of it. Items lie in the
//! file one after the other, where both sides compute them to be, so that the client of shard 0 can pickle
//! `.metadata` before a save.
//!
//! # What the client gives
//!
//! The tree of the meta is a dict. Order and names of its keys are free:
//!
//! - `items`: a dict, one entry for each `WriteItem` of the rank's plan, in the order of the file. Its keys
//!   are only labels (the name of the tensor, and its offsets where one name has several shards). Its values
//!   are
//!   - a tensor `{"T": index}`, contiguous: what `planner.resolve_data` gives for an item of type TENSOR or
//!     SHARD;
//!   - or a *value*, any other node without tensors in it, for an item of type BYTE_IO. An odd leaf is what
//!     `pickle.dumps(value, 2)` gives, without persistent ids.
//! - `metadata`: null, or on shard 0 an odd leaf: `pickle.dumps(metadata)` in any protocol, the whole
//!   `.metadata`.
//! - `extra`: any node. It is not written; for what only a restore from memory needs.
//!
//! # Where an item is
//!
//! `_StorageInfo(f"__{rank}_0.distcp", offset, length)`; the first item is at 0, and the next one after an
//! item is at the next multiple of 64 bytes. All values of a rank but texts, lists and pickles have the same
//! length whatever they are, so that `.metadata` stays as it is from save to save. A pickle that may grow
//! keeps its place when the client adds zero bytes to it, which count for its weight.
//!
//! ```text
//! length of a tensor = 768 + 64 * max(0, dimensions - 8) + bytes + 388
//! length of a value  = (weight + 384) rounded up to a multiple of 512
//!
//! weight of None, a bool, a float, an int that is plain in the JSON:  16
//! weight of an int in decimal digits {"i"}, a text:                   16 + bytes of the UTF-8
//! weight of a list, a tuple, a dict, an OrderedDict:                  48 + weights of all that is in it,
//!                                                                     keys and attributes too
//! weight of an odd leaf:                                              48 + bytes of its pickle
//! ```
//!
//! # Inside of an item
//!
//! A zip, as `torch.save` makes one of a tensor or a value: the reader calls `torch.load` on it. Lengths are
//! fixed by zero bytes behind the pickle, after its end. The length of a tensor's data is always in the form
//! for 64 bits.

use super::{
    FormatError, MAX_FILE_BYTES, Source,
    meta::{Tensor, Tree},
    pickle::{self, View},
    plan::Plan,
    zip::{Begin, Zip},
};

/// Before the data of a tensor of at most 8 dimensions; behind the data.
const HEAD: u64 = 768;
const HEAD_DIMENSIONS: u64 = 8;
const HEAD_PER_DIMENSION: u64 = 64;
const TAIL: u64 = 388;

/// Of the head, what is no pickle.
const HEAD_OVERHEAD: u64 = 258;

/// Around the pickle of a value: exactly, and as the client counts, which has some bytes for the pickle
/// itself.
const BOX_OVERHEAD: u64 = 346;
const BOX_WEIGHT: u64 = 384;
const BOX_STEP: u64 = 512;

/// Items begin at multiples of it.
const ALIGNMENT: u64 = 64;

/// What decides about the length of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Tensor {
        dimensions: u64,
        bytes: u64,
    },
    /// As [`weight`] counts.
    Value {
        weight: u64,
    },
}

/// Where an item is in the file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

impl Size {
    fn length(self) -> u64 {
        match self {
            Self::Tensor { dimensions, bytes } => head(dimensions) + bytes + TAIL,
            Self::Value { weight } => (weight + BOX_WEIGHT).next_multiple_of(BOX_STEP),
        }
    }
}

fn head(dimensions: u64) -> u64 {
    HEAD + HEAD_PER_DIMENSION * dimensions.saturating_sub(HEAD_DIMENSIONS)
}

/// Returns where the items of a file are. The client computes the same. All of them together must be below
/// 2^63 bytes.
#[must_use]
pub fn extents(sizes: &[Size]) -> Vec<Extent> {
    let mut end: u64 = 0;
    let extent = |size: &Size| {
        let extent = Extent { offset: end.next_multiple_of(ALIGNMENT), length: size.length() };
        end = extent.offset + extent.length;
        extent
    };
    sizes.iter().map(extent).collect()
}

/// Returns a bound of the length of a value's pickle, in bytes.
#[must_use]
pub fn weight(node: &Tree) -> u64 {
    let pairs =
        |pairs: &[(Tree, Tree)]| -> u64 { pairs.iter().map(|(key, node)| weight(key) + weight(node)).sum() };
    match node {
        Tree::None | Tree::Bool(_) | Tree::Int(_) | Tree::Float(_) | Tree::Tensor(_) => 16,
        Tree::Digits(text) | Tree::Text(text) => 16 + text.len() as u64,
        Tree::List(nodes) | Tree::Tuple(nodes) => 48 + nodes.iter().map(weight).sum::<u64>(),
        Tree::Dict(all) => 48 + pairs(all),
        Tree::OrderedDict(all, attributes) => 48 + pairs(all) + attributes.as_deref().map_or(0, weight),
        Tree::Odd { len, .. } => 48 + len,
    }
}

/// The file of a rank's items, and `.metadata` where the meta has it.
#[derive(Debug)]
pub struct Files {
    pub items: Plan,
    pub metadata: Option<Plan>,
}

pub fn plan(source: &Source<'_>) -> Result<Files, FormatError> {
    let expected = "a dict with `items`, a dict, and `metadata`, null or a pickle";
    let malformed = || FormatError::Root { expected };
    let root = &source.meta.tree;
    let Some(Tree::Dict(items)) = root.get("items") else { return Err(malformed()) };
    let metadata = match root.get("metadata") {
        None | Some(Tree::None) => None,
        Some(Tree::Odd { offset, len }) => {
            let mut plan = Plan::default();
            plan.slot(source.skeleton_off + offset, *len);
            Some(plan)
        }
        Some(_) => return Err(malformed()),
    };

    let sizes: Vec<Size> = items.iter().map(|(_, node)| size(source, node)).collect();
    let mut bytes = sizes.iter().map(|size| size.length());
    if bytes
        .try_fold(0, |sum: u64, length| sum.checked_add(length).filter(|sum| *sum <= MAX_FILE_BYTES))
        .is_none()
    {
        return Err(FormatError::TooLong);
    }
    let mut file = Plan::default();
    for ((label, node), extent) in items.iter().zip(extents(&sizes)) {
        file.fill(0, extent.offset - file.len());
        let item = item(source, label, node, extent.length)?;
        if item.len() != extent.length {
            return Err(FormatError::Item { found: item.len(), expected: extent.length });
        }
        file.append(item);
    }
    Ok(Files { items: file, metadata })
}

fn size(source: &Source<'_>, node: &Tree) -> Size {
    match node {
        Tree::Tensor(place) => {
            let tensor = &source.meta.tensors[*place];
            let bytes = tensor.elements().saturating_mul(tensor.dtype.size()).min(MAX_FILE_BYTES);
            Size::Tensor { dimensions: tensor.shape.len() as u64, bytes }
        }
        value => Size::Value { weight: weight(value) },
    }
}

fn item(source: &Source<'_>, label: &Tree, node: &Tree, length: u64) -> Result<Plan, FormatError> {
    match node {
        Tree::Tensor(place) => tensor(source, &source.meta.tensors[*place]),
        value => boxed(source, label, value, length),
    }
}

/// A zip whose data begins at `head` and ends `TAIL` bytes before its end.
fn tensor(source: &Source<'_>, tensor: &Tensor) -> Result<Plan, FormatError> {
    let (slot, bytes) = source.contiguous(tensor)?;
    let dtype = tensor.dtype;
    let is_typed = dtype.storage_class().is_some();
    let view = View {
        dtype,
        bytes,
        is_typed,
        storage_offset: 0,
        shape: &tensor.shape,
        strides: &tensor.natural_strides(),
    };
    let mut pickled = pickle::tensor(&view);
    let head = head(tensor.shape.len() as u64);
    pickled.fill(0, (head - HEAD_OVERHEAD).saturating_sub(pickled.len()));
    let mut data = Plan::default();
    data.slot(slot, bytes);

    let mut zip = Zip::default();
    zip.record("archive/data.pkl", pickled, Begin::Tight);
    zip.small("archive/byteorder", b"little", Begin::Tight);
    zip.small("archive/version", b"3\n", Begin::Tight);
    zip.record("archive/data/0", data, Begin::Wide);
    Ok(zip.finish())
}

/// A zip of this length.
fn boxed(source: &Source<'_>, label: &Tree, value: &Tree, length: u64) -> Result<Plan, FormatError> {
    let pickled = pickle::tree(source, value)?;
    if !pickled.storages.is_empty() {
        let name = if let Tree::Text(name) = label { name.clone() } else { "an item".to_owned() };
        return Err(FormatError::TensorInValue { name });
    }
    let mut pickled = pickled.plan;
    pickled.fill(0, (length - BOX_OVERHEAD).saturating_sub(pickled.len()));
    let mut zip = Zip::default();
    zip.record("archive/data.pkl", pickled, Begin::Tight);
    zip.small("archive/version", b"3\n", Begin::Tight);
    Ok(zip.finish())
}

#[cfg(test)]
mod tests;
