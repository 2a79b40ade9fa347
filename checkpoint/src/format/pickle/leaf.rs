//! A pickle of the client, taken apart far enough to put it into another one.

use super::opcode::{self, Argument, Effect, Opcode};

/// Why a pickle of the client cannot be put into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    #[error("it ends within an opcode")]
    CutOff,
    #[error("byte {at} is not a pickle opcode")]
    Unknown { at: usize },
    #[error("it does not begin with the opcode PROTO: protocol 2 or later is required")]
    NoProtocol,
    #[error("its end is followed by bytes that are not all zero (length: {count})")]
    AfterTheEnd { count: usize },
    #[error("the opcode at byte {at} finds no operand: the pickle is incomplete")]
    Stack { at: usize },
    #[error("it has a persistent id, which is supported in protocol 2 only")]
    PersistentId,
    #[error("the persistent id at byte {at} is not an index into the table of tensors")]
    NoTensor { at: usize },
    #[error("it needs out-of-band buffers, which are not saved")]
    Buffers,
}

/// How a pickle is put into another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Its opcodes become a part of the other pickle.
    Opcodes(Opcodes),
    /// It stays a pickle of its own, in bytes: it is not of protocol 2.
    Whole,
}

/// The opcodes of a pickle of protocol 2 between the first, PROTO, and the last, STOP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opcodes {
    /// It uses the places below this one of the memo.
    pub memo: u32,
    /// The tensors in it, in their order.
    pub tensors: Vec<InnerTensor>,
    /// Where STOP is.
    pub end: usize,
}

/// A tensor in a pickle: the bytes from `start` to `end` of it are to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerTensor {
    pub start: usize,
    pub end: usize,
    /// Place in the table.
    pub tensor: usize,
}

/// Reads a pickle; the table has so many tensors.
pub fn read(pickle: &[u8], tensors: usize) -> Result<Leaf, LeafError> {
    match pickle {
        [opcode::PROTO, 2, ..] => {}
        [opcode::PROTO, ..] => return whole(pickle),
        _ => return Err(LeafError::NoProtocol),
    }
    let mut machine = Machine { tensors, ..Machine::default() };
    let mut at = 2;
    loop {
        let start = at;
        let (opcode, argument) = next(pickle, &mut at)?;
        let Some(effect) = opcode.effect else { return whole(pickle) };
        if effect == Effect::Stop {
            check_rest(pickle, at)?;
            if !machine.has_one_value() {
                return Err(LeafError::Stack { at: start });
            }
            return Ok(Leaf::Opcodes(Opcodes { memo: machine.memo, tensors: machine.inner, end: start }));
        }
        match machine.apply(effect, pickle[start], argument, start, at) {
            Applied::Yes => {}
            Applied::Unusual => return whole(pickle),
            Applied::No(error) => return Err(error),
        }
    }
}

/// Checks a pickle whose opcodes are not taken apart: that it is one, and needs nothing else.
fn whole(pickle: &[u8]) -> Result<Leaf, LeafError> {
    let mut at = 0;
    loop {
        let start = at;
        next(pickle, &mut at)?;
        match pickle[start] {
            opcode::STOP => return check_rest(pickle, at).map(|()| Leaf::Whole),
            opcode::PERSID | opcode::BINPERSID => return Err(LeafError::PersistentId),
            opcode::NEXT_BUFFER => return Err(LeafError::Buffers),
            _ => {}
        }
    }
}

/// A client may keep room behind a pickle, so that one which grows keeps its place.
fn check_rest(pickle: &[u8], end: usize) -> Result<(), LeafError> {
    let rest = &pickle[end..];
    if rest.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(LeafError::AfterTheEnd { count: rest.len() })
}

/// The opcode at `at` and the bytes of its argument; `at` goes behind it.
fn next<'a>(pickle: &'a [u8], at: &mut usize) -> Result<(Opcode, &'a [u8]), LeafError> {
    let byte = *pickle.get(*at).ok_or(LeafError::CutOff)?;
    let opcode = Opcode::of(byte).ok_or(LeafError::Unknown { at: *at })?;
    let rest = &pickle[*at + 1..];
    let len = match opcode.argument {
        Argument::Bytes(count) => count,
        Argument::Lines(count) => {
            let ends = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            ends.map(|(place, _)| place + 1).nth(count - 1).ok_or(LeafError::CutOff)?
        }
        Argument::Counted(count) => {
            let counted = number(rest.get(..count).ok_or(LeafError::CutOff)?);
            usize::try_from(counted).ok().and_then(|len| len.checked_add(count)).ok_or(LeafError::CutOff)?
        }
    };
    let argument = rest.get(..len).ok_or(LeafError::CutOff)?;
    *at += 1 + len;
    Ok((opcode, argument))
}

/// A number of at most 8 bytes, little endian.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

enum Applied {
    Yes,
    /// Python may read it, but its pickler does not write it.
    Unusual,
    No(LeafError),
}

/// The stack and the memo, as numbers: an opcode that reaches below the pickle's own values would break what
/// is around it.
#[derive(Default)]
struct Machine {
    /// Values above the last mark, and above those below it.
    values: usize,
    below: Vec<usize>,
    memo: u32,
    /// The last value, when it is an integer: the place of its opcode.
    integer: Option<(usize, u64)>,
    tensors: usize,
    inner: Vec<InnerTensor>,
}

impl Machine {
    fn has_one_value(&self) -> bool {
        self.values == 1 && self.below.is_empty()
    }

    fn apply(&mut self, effect: Effect, opcode: u8, argument: &[u8], start: usize, end: usize) -> Applied {
        let missing = Applied::No(LeafError::Stack { at: start });
        let integer = self.integer.take();
        match effect {
            Effect::Stack(takes, puts) => {
                let Some(left) = self.values.checked_sub(takes) else { return missing };
                self.values = left + puts;
                if matches!(opcode, opcode::BININT | opcode::BININT1 | opcode::BININT2) {
                    self.integer = Some((start, number(argument)));
                }
            }
            Effect::Mark => self.below.push(std::mem::take(&mut self.values)),
            Effect::ToMark(takes, puts) => {
                let left = self.below.pop().and_then(|values| values.checked_sub(takes));
                let Some(left) = left else { return missing };
                self.values = left + puts;
            }
            // A pickler numbers the memo from 0 without a gap. Another number could take any amount of
            // memory to load.
            Effect::Put if self.values == 0 => return missing,
            Effect::Put => match number(argument) {
                place if place > u64::from(self.memo) => return Applied::Unusual,
                place if place == u64::from(self.memo) => self.memo += 1,
                _ => {}
            },
            Effect::Get if number(argument) >= u64::from(self.memo) => return missing,
            Effect::Get => self.values += 1,
            Effect::PersistentId => match integer {
                Some((start, tensor)) if tensor < self.tensors as u64 => {
                    self.inner.push(InnerTensor { start, end, tensor: tensor as usize });
                }
                _ => return Applied::No(LeafError::NoTensor { at: start }),
            },
            Effect::Stop => {}
        }
        Applied::Yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opcodes(memo: u32, end: usize) -> Result<Leaf, LeafError> {
        Ok(Leaf::Opcodes(Opcodes { memo, tensors: Vec::new(), end }))
    }

    #[test]
    fn pickles_of_protocol_2_are_taken_apart() {
        // pickle.dumps(("a", [1.5, {}], "a"), 2)
        let pickle = b"\x80\x02X\x01\0\0\0aq\0]q\x01(G?\xf8\0\0\0\0\0\0}q\x02eh\0\x87q\x03.";
        assert_eq!(read(pickle, 0), opcodes(4, pickle.len() - 1));
        assert_eq!(read(b"\x80\x02ccollections\nOrderedDict\n)R.", 0), opcodes(0, 29));
        // With room behind it.
        assert_eq!(read(b"\x80\x02N.\0\0\0", 0), opcodes(0, 3));
        assert_eq!(read(b"\x80\x04N.\0", 0), Ok(Leaf::Whole));
    }

    #[test]
    fn tensors_are_found_by_their_persistent_id() {
        let leaf = read(b"\x80\x02]q\0(K\x01QM\0\x01Qe.", 257).unwrap();
        let inner = |start, end, tensor| InnerTensor { start, end, tensor };
        let tensors = vec![inner(6, 9, 1), inner(9, 13, 256)];
        assert_eq!(leaf, Leaf::Opcodes(Opcodes { memo: 1, tensors, end: 14 }));
        assert_eq!(read(b"\x80\x02K\x01Q.", 1), Err(LeafError::NoTensor { at: 4 }));
        assert_eq!(read(b"\x80\x02J\xff\xff\xff\xffQ.", 9), Err(LeafError::NoTensor { at: 7 }));
        assert_eq!(read(b"\x80\x02K\x01q\0Q.", 9), Err(LeafError::NoTensor { at: 6 }));
    }

    #[test]
    fn other_protocols_stay_whole() {
        // pickle.dumps(b"ab", 3), pickle.dumps({"a": 1}, 4), a string of Python 2
        for pickle in [
            &b"\x80\x03C\x02abq\0."[..],
            b"\x80\x04\x95\x0a\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s.",
            b"\x80\x02U\x01aq\0.",
            b"\x80\x02]r\xff\xff\0\0.",
        ] {
            assert_eq!(read(pickle, 0), Ok(Leaf::Whole), "{pickle:?}");
        }
        assert_eq!(read(b"\x80\x04K\x01Q.", 9), Err(LeafError::PersistentId));
        assert_eq!(read(b"\x80\x05\x97.", 0), Err(LeafError::Buffers));
    }

    #[test]
    fn what_breaks_its_surroundings_is_refused() {
        let stack = |at| Err(LeafError::Stack { at });
        assert_eq!(read(b"\x80\x02.", 0), stack(2));
        assert_eq!(read(b"\x80\x02NN.", 0), stack(4));
        assert_eq!(read(b"\x80\x02(N.", 0), stack(4));
        assert_eq!(read(b"\x80\x02R.", 0), stack(2));
        assert_eq!(read(b"\x80\x02Nt.", 0), stack(3));
        assert_eq!(read(b"\x80\x02N(Ne0.", 0), stack(7));
        assert_eq!(read(b"\x80\x02Nq\0h\x010.", 0), stack(5));
        assert_eq!(read(b"\x80\x02q\0N.", 0), stack(2));
    }

    #[test]
    fn what_is_no_pickle_is_refused() {
        assert_eq!(read(b"", 0), Err(LeafError::NoProtocol));
        assert_eq!(read(b"N.", 0), Err(LeafError::NoProtocol));
        assert_eq!(read(b"\x80", 0), Err(LeafError::CutOff));
        assert_eq!(read(b"\x80\x02N", 0), Err(LeafError::CutOff));
        assert_eq!(read(b"\x80\x02X\xff\xff\xff\xffa.", 0), Err(LeafError::CutOff));
        assert_eq!(read(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 0), Err(LeafError::CutOff));
        assert_eq!(read(b"\x80\x02cos\n", 0), Err(LeafError::CutOff));
        assert_eq!(read(b"\x80\x02\xff.", 0), Err(LeafError::Unknown { at: 2 }));
        assert_eq!(read(b"\x80\x02N..", 0), Err(LeafError::AfterTheEnd { count: 1 }));
    }
}
