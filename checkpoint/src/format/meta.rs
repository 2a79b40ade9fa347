//! The meta of a slot: its table of tensors and the tree of everything else. It is written by a worker and
//! is not trusted.
//!
//! ```text
//! meta    = {"tensors": [tensor, ...], "tree": node}
//! tensor  = [key, dtype, shape, offset, bytes]
//!         | [key, dtype, shape, offset, bytes, storage]
//!         | [key, dtype, shape, offset, bytes, storage, storage_offset, strides]
//! node    = null | true | false | integer | "text"
//!         | {"f": "hex float"} | {"i": "decimal"}
//!         | {"d": [[key, node], ...]} | {"o": [[key, node], ...]} | {"o": [[key, node], ...], "a": node}
//!         | {"l": [node, ...]} | {"t": [node, ...]}
//!         | {"T": index} | {"p": [offset, length]}
//! ```
//!
//! - `tensor`: `offset` is in bytes, from `data_off` of the slot. The first form is a contiguous tensor with
//!   a storage of its own. In the others, `offset` and `bytes` are those of the whole *storage*: tensors
//!   with the same number `storage` share it, and must agree on both. Without strides, the tensor is
//!   contiguous and begins where the storage does. `storage_offset` and `strides` are in elements, as in
//!   torch. Storages do not overlap.
//! - `f` is what `float.hex` gives (`0x1.8000000000000p+1`, `-inf`, `nan`).
//! - `i` is an integer in decimal digits, for those that a JSON reader may round. A plain integer must fit
//!   in 64 bits.
//! - `d` is a dict, `o` an OrderedDict, `l` a list, `t` a tuple. A key is a node without `d`, `o`, `l` and
//!   `T`.
//! - `a` has the attributes of an OrderedDict as a `d` with text keys: `Module.state_dict()` has its
//!   versions in `_metadata`.
//! - `T` is a tensor: its place in the table, from 0. Two with the same index are the same object when
//!   loaded.
//! - `p` is an odd leaf: a pickle in the skeleton, `offset` from its begin. For what it may hold, see
//!   [`pickle`](super::pickle).
//!
//! For the directories (DCP, safetensors) the root of the tree is a dict whose keys are in [`dcp`](super::dcp)
//! and [`safetensors`](super::safetensors).

mod float;
mod json;
mod table;
mod tree;

use self::json::{Cursor, JsonError};
pub use self::{
    table::{Storage, Tensor},
    tree::Tree,
};

/// Size of a meta at most, in bytes.
pub const MAX_BYTES: usize = 64 << 20;

/// Nodes above a node at most. The client pickles what is deeper.
pub const MAX_DEPTH: usize = 200;

/// Nodes of the tree at most, keys too.
pub const MAX_NODES: usize = 1 << 22;

/// Tensors of a state at most.
pub const MAX_TENSORS: usize = 1 << 20;

/// Dimensions of a tensor at most; torch's own limit.
pub const MAX_DIMENSIONS: usize = 64;

/// Digits of an integer at most; Python's own limit for reading one.
pub const MAX_DIGITS: usize = 4300;

/// Tensor data of a slot at most, in bytes. Lengths of files are computed from it, and stay below 2^63.
pub const MAX_DATA_BYTES: u64 = 1 << 60;

/// What a slot holds, as its meta says.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    pub tensors: Vec<Tensor>,
    /// What the tensors are views of; [`Tensor::storage`] is a place in this list.
    pub storages: Vec<Storage>,
    pub tree: Tree,
}

/// Why the metadata of a slot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    #[error("the metadata has {size} bytes (maximum: {MAX_BYTES})")]
    TooLarge { size: usize },
    #[error("the slot has {size} bytes of tensors (maximum: {MAX_DATA_BYTES})")]
    TooMuchData { size: u64 },
    #[error("the metadata cannot be read at byte {at}: expected {expected}")]
    Json { at: usize, expected: &'static str },
    #[error("the metadata is nested more than {MAX_DEPTH} levels deep at byte {at}")]
    TooDeep { at: usize },
    #[error("the metadata has more than {MAX_NODES} nodes at byte {at}")]
    TooManyNodes { at: usize },
    #[error("the metadata has more than {MAX_TENSORS} tensors at byte {at}")]
    TooManyTensors { at: usize },
    #[error("the tensor `{key}` has the unknown dtype `{dtype}`")]
    Dtype { key: String, dtype: String },
    #[error("the tensor `{key}` has {found} dimensions (maximum: {MAX_DIMENSIONS})")]
    Dimensions { key: String, found: usize },
    #[error(
        "the number of strides of the tensor `{key}` is {strides}; expected {shape}, that of its dimensions"
    )]
    Strides { key: String, shape: usize, strides: usize },
    #[error("the tensor `{key}` does not fit into its storage of {bytes} bytes")]
    OutsideOfStorage { key: String, bytes: u64 },
    #[error(
        "the storage of the tensor `{key}` has {bytes} B at byte {offset}; the slot has {data_len} B for tensors"
    )]
    OutsideOfSlot { key: String, offset: u64, bytes: u64, data_len: u64 },
    #[error(
        "the tensor `{key}` and another one give different places for storage {storage}, which they share"
    )]
    Shared { key: String, storage: u64 },
    #[error("two storages overlap at byte {offset} of the tensors")]
    Overlap { offset: u64 },
    #[error("the tree refers to tensor {index}; the number of tensors in the table is {count}")]
    NoTensor { index: u64, count: usize },
    #[error("the tree refers to a pickle of {len} bytes at {offset}; the skeleton has {skeleton_len} bytes")]
    OutsideOfSkeleton { offset: u64, len: u64, skeleton_len: u64 },
    #[error("the pickles of the tree need more than the {skeleton_len} bytes that the skeleton has")]
    PicklesOverlap { skeleton_len: u64 },
}

impl From<JsonError> for MetaError {
    fn from(JsonError { at, expected }: JsonError) -> Self {
        Self::Json { at, expected }
    }
}

impl Meta {
    /// Reads the meta of a slot that has `data_len` bytes of tensors and `skeleton_len` bytes of pickles.
    /// Every offset and length of the result lies in them.
    ///
    /// # Errors
    /// When it is not as above: the first fault, with its place.
    pub fn parse(bytes: &[u8], data_len: u64, skeleton_len: u64) -> Result<Self, MetaError> {
        if bytes.len() > MAX_BYTES {
            return Err(MetaError::TooLarge { size: bytes.len() });
        }
        if data_len > MAX_DATA_BYTES {
            return Err(MetaError::TooMuchData { size: data_len });
        }
        let mut cursor = Cursor::new(bytes);
        // The table first: the tree is checked against it.
        cursor.expect(b'{', "{\"tensors\"")?;
        cursor.key("tensors", "{\"tensors\"")?;
        let (tensors, storages) = table::read(&mut cursor, data_len)?;
        cursor.expect(b',', ",\"tree\"")?;
        cursor.key("tree", "\"tree\"")?;
        let tree = tree::Reader::new(&mut cursor, tensors.len(), skeleton_len).read()?;
        cursor.expect(b'}', "} after the tree")?;
        cursor.end()?;
        Ok(Self { tensors, storages, tree })
    }
}

#[cfg(test)]
mod tests;
