//! Pickles of protocol 2, as `torch.save` makes them, written without Python.
//!
//! # Odd leaves
//!
//! What is no plain leaf and no tensor (a Namespace, a random state, a `torch.Size`) the client pickles into
//! the skeleton. For each leaf, with a pickler of its own:
//!
//! ```text
//! class LeafPickler(pickle.Pickler):
//!     def persistent_id(self, obj):
//!         if type(obj) is torch.Tensor: return its index in the table of tensors, an int below 2^31
//! LeafPickler(buffer, protocol=2).dump(leaf)
//! ```
//!
//! - Of protocol 2, its opcodes become a part of `data.pkl`. `torch.load(weights_only=True)` then allows
//!   what it allows of a file of `torch.save`, and the tensors in the leaf are stored as all others. The
//!   memo of the leaf has the lowest places, which the next leaf writes over; ours are above those of all
//!   leaves, so that none clash.
//! - Of another protocol, or with opcodes that CPython's pickler of protocol 2 does not write, it is kept as
//!   bytes and read by `pickle.loads` when the file is loaded. A leaf of protocol 4 numbers its memo by how
//!   many values the *whole* pickle has memoised, so that its opcodes mean something else within another
//!   pickle. Such a file needs `weights_only=False`, and such a leaf can have no tensors with a persistent
//!   id.
//! - Zero bytes may follow a pickle, and belong to its length.
//! - Objects are shared within a leaf, and tensors everywhere; other objects are not shared between leaves.

mod leaf;
mod long;
mod opcode;
mod writer;

use std::collections::BTreeMap;

pub use self::{leaf::LeafError, writer::View};
use self::{
    leaf::{Leaf, Opcodes},
    writer::{Memo, Writer},
};
use super::{FormatError, Source, dtype::Dtype, meta::Tree, plan::Plan};

/// A pickle, and the storages that it names `0`, `1`, ...
#[derive(Debug)]
pub struct Pickle {
    pub plan: Plan,
    /// Places in the list of storages.
    pub storages: Vec<usize>,
}

/// Pickles a tree.
pub fn tree(source: &Source<'_>, tree: &Tree) -> Result<Pickle, FormatError> {
    let mut leaves = Vec::new();
    read_leaves(source, tree, &mut leaves)?;
    let memo = leaves.iter().map(|leaf| if let Leaf::Opcodes(opcodes) = leaf { opcodes.memo } else { 0 });
    let mut writer = Writer::new(memo.max().unwrap_or(0));
    let mut pickler = Pickler {
        source,
        leaves: leaves.into_iter(),
        typed: None,
        numbers: BTreeMap::new(),
        storages: Vec::new(),
    };
    pickler.node(&mut writer, tree)?;
    Ok(Pickle { plan: writer.finish(), storages: pickler.storages })
}

/// Pickles one tensor, whose storage is `0`.
pub fn tensor(view: &View<'_>) -> Plan {
    let mut writer = Writer::new(0);
    writer.view(view, 0);
    writer.finish()
}

/// Reads all odd leaves, in the order in which they are written.
fn read_leaves(source: &Source<'_>, node: &Tree, leaves: &mut Vec<Leaf>) -> Result<(), FormatError> {
    match node {
        Tree::Odd { offset, len } => {
            let pickle = source.pickle(*offset, *len)?;
            let leaf = leaf::read(pickle, source.meta.tensors.len());
            leaves.push(leaf.map_err(|error| FormatError::Leaf { offset: *offset, len: *len, error })?);
        }
        Tree::List(nodes) | Tree::Tuple(nodes) => {
            for node in nodes {
                read_leaves(source, node, leaves)?;
            }
        }
        Tree::Dict(pairs) | Tree::OrderedDict(pairs, _) => {
            for (key, node) in pairs {
                read_leaves(source, key, leaves)?;
                read_leaves(source, node, leaves)?;
            }
            if let Tree::OrderedDict(_, Some(attributes)) = node {
                read_leaves(source, attributes, leaves)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// For each storage, whether it is one of a type: all its tensors have this type, and it has a class.
/// `torch.save` refuses tensors of two types on one storage; as bytes, they can be kept.
fn typed_storages(source: &Source<'_>) -> Vec<bool> {
    let meta = source.meta;
    let mut dtypes: Vec<Option<Dtype>> = vec![None; meta.storages.len()];
    let mut typed = vec![true; meta.storages.len()];
    for tensor in &meta.tensors {
        let (dtype, bytes) = (tensor.dtype, meta.storages[tensor.storage].bytes);
        let is_the_same = *dtypes[tensor.storage].get_or_insert(dtype) == dtype;
        typed[tensor.storage] &= is_the_same && dtype.storage_class().is_some() && bytes % dtype.size() == 0;
    }
    typed
}

/// Goes through a tree.
struct Pickler<'a> {
    source: &'a Source<'a>,
    leaves: std::vec::IntoIter<Leaf>,
    /// As [`typed_storages`] says; a value of a directory has no tensors and needs none.
    typed: Option<Vec<bool>>,
    /// The number of each storage that is in the pickle, and the storages in the order of these numbers.
    numbers: BTreeMap<usize, usize>,
    storages: Vec<usize>,
}

impl<'a> Pickler<'a> {
    fn node(&mut self, writer: &mut Writer<'a>, node: &'a Tree) -> Result<(), FormatError> {
        match node {
            Tree::None => writer.byte(opcode::NONE),
            Tree::Bool(true) => writer.byte(opcode::NEWTRUE),
            Tree::Bool(false) => writer.byte(opcode::NEWFALSE),
            Tree::Int(value) => writer.integer(*value),
            Tree::Digits(text) => writer.long(&long::from_digits(text)),
            Tree::Float(value) => {
                writer.byte(opcode::BINFLOAT);
                writer.bytes(&value.to_be_bytes());
            }
            Tree::Text(text) => writer.text(text),
            Tree::Dict(pairs) => {
                writer.byte(opcode::EMPTY_DICT);
                self.pairs(writer, pairs)?;
            }
            Tree::OrderedDict(pairs, attributes) => {
                writer.ordered_dict();
                self.pairs(writer, pairs)?;
                if let Some(attributes) = attributes {
                    self.node(writer, attributes)?;
                    writer.byte(opcode::BUILD);
                }
            }
            Tree::List(nodes) => {
                writer.byte(opcode::EMPTY_LIST);
                if !nodes.is_empty() {
                    writer.byte(opcode::MARK);
                    self.nodes(writer, nodes)?;
                    writer.byte(opcode::APPENDS);
                }
            }
            Tree::Tuple(nodes) => {
                writer.begin_tuple(nodes.len());
                self.nodes(writer, nodes)?;
                writer.end_tuple(nodes.len());
            }
            Tree::Tensor(place) => self.tensor(writer, *place),
            Tree::Odd { offset, len } => self.odd(writer, *offset, *len)?,
        }
        Ok(())
    }

    fn nodes(&mut self, writer: &mut Writer<'a>, nodes: &'a [Tree]) -> Result<(), FormatError> {
        nodes.iter().try_for_each(|node| self.node(writer, node))
    }

    fn pairs(&mut self, writer: &mut Writer<'a>, pairs: &'a [(Tree, Tree)]) -> Result<(), FormatError> {
        if pairs.is_empty() {
            return Ok(());
        }
        writer.byte(opcode::MARK);
        for (key, node) in pairs {
            match key {
                // `exp_avg` comes once for each parameter.
                Tree::Text(text) => writer.word(text),
                other => self.node(writer, other)?,
            }
            self.node(writer, node)?;
        }
        writer.byte(opcode::SETITEMS);
        Ok(())
    }

    fn tensor(&mut self, writer: &mut Writer<'a>, place: usize) {
        if writer.get(Memo::Tensor(place)) {
            return;
        }
        let tensor = &self.source.meta.tensors[place];
        let number = *self.numbers.entry(tensor.storage).or_insert_with(|| {
            self.storages.push(tensor.storage);
            self.storages.len() - 1
        });
        let typed = self.typed.get_or_insert_with(|| typed_storages(self.source));
        let view = View {
            dtype: tensor.dtype,
            bytes: self.source.meta.storages[tensor.storage].bytes,
            is_typed: typed[tensor.storage],
            storage_offset: tensor.storage_offset,
            shape: &tensor.shape,
            strides: &tensor.strides,
        };
        writer.view(&view, number);
        writer.put(Memo::Tensor(place));
    }

    fn odd(&mut self, writer: &mut Writer<'a>, offset: u64, len: u64) -> Result<(), FormatError> {
        let pickle = self.source.pickle(offset, len)?;
        let at = self.source.skeleton_off + offset;
        match self.leaves.next() {
            Some(Leaf::Opcodes(Opcodes { tensors, end, .. })) => {
                // Without PROTO and its argument, and without STOP.
                let mut start = 2;
                for inner in tensors {
                    writer.copy(&pickle[start..inner.start], at + start as u64);
                    self.tensor(writer, inner.tensor);
                    start = inner.end;
                }
                writer.copy(&pickle[start..end], at + start as u64);
            }
            _ => {
                writer.global("pickle", "loads");
                writer.byte(opcode::BINBYTES8);
                writer.bytes(&len.to_le_bytes());
                writer.copy(pickle, at);
                writer.byte(opcode::TUPLE1);
                writer.byte(opcode::REDUCE);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
