//! Opcodes, one after the other.

use std::collections::BTreeMap;

use super::{long, opcode};
use crate::format::{dtype::Dtype, plan::Plan};

/// From so many bytes on, a part of a leaf stays in the slot until the file is written.
const LARGE: usize = 4096;

/// A tensor as a pickle has it.
#[derive(Debug)]
pub struct View<'a> {
    pub dtype: Dtype,
    /// Length of the storage, in bytes.
    pub bytes: u64,
    /// Whether the storage has the class of this dtype; else it is one of bytes.
    pub is_typed: bool,
    pub storage_offset: u64,
    pub shape: &'a [u64],
    pub strides: &'a [u64],
}

/// What is in the memo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memo<'a> {
    Global(&'static str, &'static str),
    Word(&'a str),
    Tensor(usize),
}

/// Writes opcodes.
pub struct Writer<'a> {
    plan: Plan,
    memo: BTreeMap<Memo<'a>, u32>,
    /// The next place of the memo.
    next: u32,
}

impl<'a> Writer<'a> {
    pub fn new(next: u32) -> Self {
        let mut plan = Plan::default();
        plan.bytes(&[opcode::PROTO, 2]);
        Self { plan, memo: BTreeMap::new(), next }
    }

    pub fn finish(mut self) -> Plan {
        self.byte(opcode::STOP);
        self.plan
    }

    pub fn byte(&mut self, byte: u8) {
        self.plan.bytes(&[byte]);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.plan.bytes(bytes);
    }

    /// Bytes that are at `slot` of the slot.
    pub fn copy(&mut self, bytes: &[u8], slot: u64) {
        if bytes.len() < LARGE {
            self.plan.bytes(bytes);
        } else {
            self.plan.slot(slot, bytes.len() as u64);
        }
    }

    pub fn integer(&mut self, value: i64) {
        match value {
            0..=0xff => self.bytes(&[opcode::BININT1, value as u8]),
            0x100..=0xffff => {
                self.byte(opcode::BININT2);
                self.bytes(&(value as u16).to_le_bytes());
            }
            _ => match i32::try_from(value) {
                Ok(value) => {
                    self.byte(opcode::BININT);
                    self.bytes(&value.to_le_bytes());
                }
                Err(_) => self.long(&long::from_digits(&value.to_string())),
            },
        }
    }

    /// A count of at most 2^63 - 1.
    fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// An integer in two's complement, little endian; of less than 2^31 bytes.
    pub fn long(&mut self, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(len) => self.bytes(&[opcode::LONG1, len]),
            Err(_) => {
                self.byte(opcode::LONG4);
                self.bytes(&(bytes.len() as u32).to_le_bytes());
            }
        }
        self.bytes(bytes);
    }

    /// A text of less than 4 GiB.
    pub fn text(&mut self, text: &str) {
        self.byte(opcode::BINUNICODE);
        self.bytes(&(text.len() as u32).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    /// A text that comes often.
    pub fn word(&mut self, text: &'a str) {
        if !self.get(Memo::Word(text)) {
            self.text(text);
            self.put(Memo::Word(text));
        }
    }

    pub fn global(&mut self, module: &'static str, name: &'static str) {
        if !self.get(Memo::Global(module, name)) {
            self.byte(opcode::GLOBAL);
            self.bytes(module.as_bytes());
            self.byte(b'\n');
            self.bytes(name.as_bytes());
            self.byte(b'\n');
            self.put(Memo::Global(module, name));
        }
    }

    /// Takes a value from the memo if it is there.
    pub fn get(&mut self, memo: Memo<'a>) -> bool {
        let place = self.memo.get(&memo).copied();
        if let Some(place) = place {
            self.memo_opcode(opcode::BINGET, opcode::LONG_BINGET, place);
        }
        place.is_some()
    }

    /// Puts the last value into the memo.
    pub fn put(&mut self, memo: Memo<'a>) {
        self.memo_opcode(opcode::BINPUT, opcode::LONG_BINPUT, self.next);
        self.memo.insert(memo, self.next);
        self.next += 1;
    }

    fn memo_opcode(&mut self, short: u8, long: u8, place: u32) {
        match u8::try_from(place) {
            Ok(place) => self.bytes(&[short, place]),
            Err(_) => {
                self.byte(long);
                self.bytes(&place.to_le_bytes());
            }
        }
    }

    pub fn begin_tuple(&mut self, len: usize) {
        if len > 3 {
            self.byte(opcode::MARK);
        }
    }

    pub fn end_tuple(&mut self, len: usize) {
        let short = [opcode::EMPTY_TUPLE, opcode::TUPLE1, opcode::TUPLE2, opcode::TUPLE3];
        self.byte(short.get(len).copied().unwrap_or(opcode::TUPLE));
    }

    fn counts(&mut self, counts: &[u64]) {
        self.begin_tuple(counts.len());
        counts.iter().for_each(|count| self.count(*count));
        self.end_tuple(counts.len());
    }

    pub fn ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.byte(opcode::EMPTY_TUPLE);
        self.byte(opcode::REDUCE);
    }

    /// A tensor on the storage of this number: what `Tensor.__reduce_ex__` gives, and the storage's
    /// persistent id.
    pub fn view(&mut self, view: &View<'_>, number: usize) {
        let class = view.dtype.storage_class().filter(|_| view.is_typed);
        self.global(
            "torch._utils",
            if class.is_some() { "_rebuild_tensor_v2" } else { "_rebuild_tensor_v3" },
        );
        self.byte(opcode::MARK);
        self.byte(opcode::MARK);
        self.word("storage");
        match class {
            Some(class) => self.global("torch", class),
            None => self.global("torch.storage", "UntypedStorage"),
        }
        self.text(&number.to_string());
        self.word("cpu");
        self.count(if class.is_some() { view.bytes / view.dtype.size() } else { view.bytes });
        self.byte(opcode::TUPLE);
        self.byte(opcode::BINPERSID);
        self.count(view.storage_offset);
        self.counts(view.shape);
        self.counts(view.strides);
        // A state has values, not leaves of autograd.
        self.byte(opcode::NEWFALSE);
        self.ordered_dict();
        if class.is_none() {
            self.global("torch", view.dtype.name());
        }
        self.byte(opcode::TUPLE);
        self.byte(opcode::REDUCE);
    }
}
