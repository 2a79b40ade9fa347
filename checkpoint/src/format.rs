//! Files of checkpoints, from the bytes of a slot: `.pt`, directories of `torch.distributed.checkpoint`,
//! safetensors.
//!
//! Stock torch reads them, without anything of ours. Nothing here copies a tensor: a file is a
//! [`plan::Plan`] of pieces, most of them ranges of the slot, which the shell writes in one pass through a
//! [`stream::Stream`]. The checksums of zip records and those of the manifest are made in that pass;
//! [`chunks::Summing`] makes the latter again to verify a file.
//!
//! - [`meta`]: the JSON that a client puts into the slot, and its parser.
//! - [`pickle`]: how the client pickles what is no tensor and no plain value.
//! - [`dcp`], [`safetensors`]: what the tree must look like for a directory.
//! - [`pt`]: any tree.

pub mod chunks;
pub mod dcp;
pub mod dtype;
pub mod meta;
pub mod pickle;
pub mod plan;
pub mod pt;
pub mod safetensors;
pub mod stream;
mod zip;

use self::{
    meta::{Meta, Tensor},
    plan::Plan,
};
pub use crate::message::Format;

/// A slot whose header is checked.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    meta: &'a Meta,
    /// Where the tensors begin in the slot, in bytes.
    data_off: u64,
    /// Where the skeleton begins in the slot, in bytes; and the skeleton.
    skeleton_off: u64,
    skeleton: &'a [u8],
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Its name in the directory of the step, or nothing when the path is the client's.
    pub name: Option<String>,
    /// Whether a reader takes the directory for a whole checkpoint when it finds this file, so that it may
    /// appear only when the files of all shards are there: `.metadata`.
    pub is_commit: bool,
    pub plan: Plan,
}

/// Why a slot cannot be written in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error(
        "the tensors begin at byte {data_off} of the slot and the pickles at {skeleton_off}; expected at most \
         {MAX_OFFSET}"
    )]
    Place { data_off: u64, skeleton_off: u64 },
    #[error("a pickle is at byte {offset} of the skeleton, which has {skeleton_len} bytes")]
    Skeleton { offset: u64, skeleton_len: u64 },
    #[error("the pickle of {len} bytes at byte {offset} of the skeleton cannot be used: {error}")]
    Leaf { offset: u64, len: u64, error: pickle::LeafError },
    #[error("the tree does not fit the format; expected {expected}")]
    Root { expected: &'static str },
    #[error("the tensor `{name}` is not contiguous; a directory has contiguous tensors only")]
    NotContiguous { name: String },
    #[error("`{name}` contains tensors; in a directory, each tensor must be an item of its own")]
    TensorInValue { name: String },
    #[error("`{name}` is not a tensor; a safetensors file has tensors only")]
    NotATensor { name: String },
    #[error("`{name}` is a tensor of {dtype}, which safetensors does not support")]
    NotInSafetensors { name: String, dtype: &'static str },
    #[error("the name `{name}` occurs twice")]
    Twice { name: String },
    #[error("the number of offsets of `{name}` is {found}; expected {expected}, that of its dimensions")]
    Offsets { name: String, found: usize, expected: usize },
    #[error("the header has {bytes} bytes (maximum of safetensors: {})", safetensors::MAX_HEADER_BYTES)]
    Header { bytes: usize },
    #[error("an item has the size {found} B; expected {expected} B")]
    Item { found: u64, expected: u64 },
    #[error("the file would have more than {MAX_FILE_BYTES} bytes")]
    TooLong,
}

/// Bytes of a file at most. A tensor that is in a directory twice is written twice, so that the length of the
/// slot is no bound.
const MAX_FILE_BYTES: u64 = 1 << 62;

/// Regions of a slot begin below it, in bytes.
const MAX_OFFSET: u64 = 1 << 60;

impl<'a> Source<'a> {
    /// For a slot whose tensors begin at `data_off` and whose skeleton, all of it, begins at `skeleton_off`.
    /// The meta must have been read with the lengths of both.
    ///
    /// # Errors
    /// When an offset is beyond all slots.
    pub fn new(
        meta: &'a Meta,
        data_off: u64,
        skeleton_off: u64,
        skeleton: &'a [u8],
    ) -> Result<Self, FormatError> {
        if data_off > MAX_OFFSET || skeleton_off > MAX_OFFSET {
            return Err(FormatError::Place { data_off, skeleton_off });
        }
        Ok(Self { meta, data_off, skeleton_off, skeleton })
    }

    fn pickle(&self, offset: u64, len: u64) -> Result<&'a [u8], FormatError> {
        let start = usize::try_from(offset).ok();
        let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok());
        let range = start.zip(end).and_then(|(start, end)| self.skeleton.get(start..end));
        range.ok_or(FormatError::Skeleton { offset, skeleton_len: self.skeleton.len() as u64 })
    }

    /// Where the elements of a contiguous tensor are in the slot, and how many bytes they have.
    fn contiguous(&self, tensor: &Tensor) -> Result<(u64, u64), FormatError> {
        if !tensor.is_contiguous() {
            return Err(FormatError::NotContiguous { name: tensor.key.clone() });
        }
        let (bytes, size) = (tensor.elements() * tensor.dtype.size(), tensor.dtype.size());
        // An empty tensor may begin anywhere.
        let before = if bytes == 0 { 0 } else { tensor.storage_offset * size };
        Ok((self.data_off + self.meta.storages[tensor.storage].offset + before, bytes))
    }
}

/// Returns the files of a shard. The first is the shard's own, whose checksums the manifest has; the others
/// come beside it.
///
/// # Errors
/// When the format cannot hold what the slot has.
pub fn files(format: Format, source: &Source<'_>, rank: u32) -> Result<Vec<PlannedFile>, FormatError> {
    let file = |name: String, plan| PlannedFile { name: Some(name), is_commit: false, plan };
    match format {
        Format::Pt => {
            let plan = pt::plan(source, &source.meta.tree)?;
            Ok(vec![PlannedFile { name: None, is_commit: false, plan }])
        }
        Format::Dcp => {
            let dcp::Files { items, metadata } = dcp::plan(source)?;
            let items = file(format!("__{rank}_0.distcp"), items);
            let metadata =
                metadata.map(|plan| PlannedFile { is_commit: true, ..file(".metadata".to_owned(), plan) });
            Ok([Some(items), metadata].into_iter().flatten().collect())
        }
        Format::Safetensors => {
            let safetensors::Files { tensors, extra } = safetensors::plan(source)?;
            let shard = format!("shard-{:05}", u64::from(rank) + 1);
            let tensors = file(format!("{shard}-model-00001-of-00001.safetensors"), tensors);
            let extra = extra.map(|plan| file(format!("{shard}-extra.pt"), plan));
            Ok([Some(tensors), extra].into_iter().flatten().collect())
        }
    }
}
