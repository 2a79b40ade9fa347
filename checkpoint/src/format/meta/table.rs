//! The table of tensors, and the storages that they are views of.

use std::collections::BTreeMap;

use super::{MAX_DIMENSIONS, MAX_TENSORS, MetaError, json::Cursor};
use crate::format::dtype::Dtype;

/// A range of bytes of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// From `data_off` of the slot, in bytes.
    pub offset: u64,
    pub bytes: u64,
}

/// A view of a storage. All elements of it lie in the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name by which the client finds it; it need not be unique.
    pub key: String,
    pub dtype: Dtype,
    /// Elements of each dimension; at most 2^63 - 1, as the strides.
    pub shape: Vec<u64>,
    /// Place of the storage in the list of storages.
    pub storage: usize,
    /// The first element, in elements from the begin of the storage.
    pub storage_offset: u64,
    /// Elements between neighbours of each dimension; as many as the shape has.
    pub strides: Vec<u64>,
}

impl Tensor {
    /// Elements of the tensor.
    #[must_use]
    pub fn elements(&self) -> u64 {
        // Strides of 0 make more elements than the storage has.
        self.shape.iter().fold(1, |count: u64, size| count.saturating_mul(*size))
    }

    /// The strides of a contiguous tensor of this shape, as torch has them.
    #[must_use]
    pub fn natural_strides(&self) -> Vec<u64> {
        contiguous(&self.shape)
    }

    /// Whether the elements lie one after the other, the last dimension fastest.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let natural = self.natural_strides();
        self.elements() == 0
            || (0..self.shape.len()).all(|dim| self.shape[dim] == 1 || self.strides[dim] == natural[dim])
    }
}

fn contiguous(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = shape[dim].max(1).saturating_mul(strides[dim]).min(i64::MAX as u64);
    }
    strides
}

/// Reads the list of tensors.
pub fn read(cursor: &mut Cursor<'_>, data_len: u64) -> Result<(Vec<Tensor>, Vec<Storage>), MetaError> {
    let mut storages = Storages { data_len, all: Vec::new(), numbered: BTreeMap::new() };
    let mut count = 0;
    let tensors = cursor.list(|cursor| {
        count += 1;
        if count > MAX_TENSORS {
            return Err(MetaError::TooManyTensors { at: cursor.at() });
        }
        storages.tensor(cursor)
    })?;
    storages.check_overlap()?;
    Ok((tensors, storages.all))
}

struct Storages {
    data_len: u64,
    all: Vec<Storage>,
    /// Those that may be shared, by the client's number.
    numbered: BTreeMap<u64, usize>,
}

impl Storages {
    fn tensor(&mut self, cursor: &mut Cursor<'_>) -> Result<Tensor, MetaError> {
        let comma = |cursor: &mut Cursor<'_>| cursor.expect(b',', ", between the fields of a tensor");
        cursor.expect(b'[', "[, the fields of a tensor")?;
        let key = cursor.string()?;
        comma(cursor)?;
        let dtype = cursor.string()?;
        comma(cursor)?;
        let shape = cursor.list(Cursor::count)?;
        comma(cursor)?;
        let offset = cursor.count()?;
        comma(cursor)?;
        let storage = Storage { offset, bytes: cursor.count()? };
        let mut number = None;
        let mut view = None;
        if cursor.take(b',') {
            number = Some(cursor.count()?);
            if cursor.take(b',') {
                let storage_offset = cursor.count()?;
                comma(cursor)?;
                view = Some((storage_offset, cursor.list(Cursor::count)?));
            }
        }
        cursor.expect(b']', "] after the fields of a tensor")?;

        let Some(dtype) = Dtype::named(&dtype) else { return Err(MetaError::Dtype { key, dtype }) };
        if shape.len() > MAX_DIMENSIONS {
            return Err(MetaError::Dimensions { key, found: shape.len() });
        }
        let (storage_offset, strides) = view.unwrap_or_else(|| (0, contiguous(&shape)));
        if strides.len() != shape.len() {
            return Err(MetaError::Strides { key, shape: shape.len(), strides: strides.len() });
        }
        let place = self.place(&key, storage, number)?;
        let tensor = Tensor { key, dtype, shape, storage: place, storage_offset, strides };
        // A storage of its own has exactly the bytes of its tensor.
        let fits = match number {
            None => extent(&tensor) == Some(storage.bytes),
            Some(_) => extent(&tensor).is_some_and(|extent| extent <= storage.bytes),
        };
        if !fits {
            return Err(MetaError::OutsideOfStorage { key: tensor.key, bytes: storage.bytes });
        }
        Ok(tensor)
    }

    fn place(&mut self, key: &str, storage: Storage, number: Option<u64>) -> Result<usize, MetaError> {
        let Storage { offset, bytes } = storage;
        // Both are below 2^63.
        if offset + bytes > self.data_len {
            return Err(MetaError::OutsideOfSlot {
                key: key.to_owned(),
                offset,
                bytes,
                data_len: self.data_len,
            });
        }
        let next = self.all.len();
        let place = number.map_or(next, |number| *self.numbered.entry(number).or_insert(next));
        match self.all.get(place) {
            None => self.all.push(storage),
            Some(known) if *known == storage => {}
            Some(_) => {
                return Err(MetaError::Shared { key: key.to_owned(), storage: number.unwrap_or_default() });
            }
        }
        Ok(place)
    }

    /// What is in a file twice must be in the slot twice, so that no small slot makes a huge file.
    fn check_overlap(&self) -> Result<(), MetaError> {
        let mut sorted: Vec<Storage> = self.all.iter().copied().filter(|storage| storage.bytes > 0).collect();
        sorted.sort_by_key(|storage| storage.offset);
        match sorted.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
            Some(pair) => Err(MetaError::Overlap { offset: pair[1].offset }),
            None => Ok(()),
        }
    }
}

/// Bytes from the begin of the storage to the end of the last element; nothing when that is no number of 64
/// bits.
fn extent(tensor: &Tensor) -> Option<u64> {
    if tensor.shape.contains(&0) {
        return Some(0);
    }
    let mut last = tensor.storage_offset;
    for (size, stride) in tensor.shape.iter().zip(&tensor.strides) {
        last = last.checked_add((size - 1).checked_mul(*stride)?)?;
    }
    last.checked_add(1)?.checked_mul(tensor.dtype.size())
}
