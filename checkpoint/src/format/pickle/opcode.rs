//! The opcodes of pickles, up to protocol 5.

/// What follows an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    Bytes(usize),
    /// Text up to a line feed, so many times.
    Lines(usize),
    /// A length of so many bytes, little endian, then as many bytes as it says.
    Counted(usize),
}

/// What an opcode that protocol 2 writes does to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Takes so many values and puts so many.
    Stack(usize, usize),
    Mark,
    /// Takes all values down to the mark, and the mark; then takes so many values below it and puts so many.
    ToMark(usize, usize),
    Get,
    Put,
    /// Takes an integer, puts what it stands for.
    PersistentId,
    Stop,
}

/// An opcode: what follows it, and its effect, or none when protocol 2 does not write it.
#[derive(Clone, Copy, Debug)]
pub struct Opcode {
    pub argument: Argument,
    pub effect: Option<Effect>,
}

pub const PROTO: u8 = 0x80;
pub const STOP: u8 = b'.';
pub const PERSID: u8 = b'P';
pub const BINPERSID: u8 = b'Q';
/// Takes bytes that are not in the pickle.
pub const NEXT_BUFFER: u8 = 0x97;

pub const MARK: u8 = b'(';
pub const NONE: u8 = b'N';
pub const NEWTRUE: u8 = 0x88;
pub const NEWFALSE: u8 = 0x89;
pub const BININT: u8 = b'J';
pub const BININT1: u8 = b'K';
pub const BININT2: u8 = b'M';
pub const LONG1: u8 = 0x8a;
pub const LONG4: u8 = 0x8b;
pub const BINFLOAT: u8 = b'G';
pub const BINUNICODE: u8 = b'X';
pub const BINBYTES: u8 = b'B';
pub const BINBYTES8: u8 = 0x8e;
pub const GLOBAL: u8 = b'c';
pub const REDUCE: u8 = b'R';
pub const BUILD: u8 = b'b';
pub const EMPTY_TUPLE: u8 = b')';
pub const TUPLE1: u8 = 0x85;
pub const TUPLE2: u8 = 0x86;
pub const TUPLE3: u8 = 0x87;
pub const TUPLE: u8 = b't';
pub const EMPTY_LIST: u8 = b']';
pub const APPENDS: u8 = b'e';
pub const EMPTY_DICT: u8 = b'}';
pub const SETITEMS: u8 = b'u';
pub const BINGET: u8 = b'h';
pub const LONG_BINGET: u8 = b'j';
pub const BINPUT: u8 = b'q';
pub const LONG_BINPUT: u8 = b'r';

impl Opcode {
    /// Returns the opcode of this byte.
    pub fn of(byte: u8) -> Option<Self> {
        use Argument::{Bytes, Counted, Lines};
        use Effect::{Get, Mark, PersistentId, Put, Stack, Stop, ToMark};
        let new = |argument, effect| Some(Self { argument, effect: Some(effect) });
        let other = |argument| Some(Self { argument, effect: None });
        match byte {
            MARK => new(Bytes(0), Mark),
            STOP => new(Bytes(0), Stop),
            // Takes a mark too; a pickler of CPython writes it for tuples that contain themselves.
            b'1' => new(Bytes(0), ToMark(0, 0)),
            b'0' => new(Bytes(0), Stack(1, 0)),
            BININT | 0x84 => new(Bytes(4), Stack(0, 1)),
            BININT1 | 0x82 => new(Bytes(1), Stack(0, 1)),
            BININT2 | 0x83 => new(Bytes(2), Stack(0, 1)),
            BINFLOAT => new(Bytes(8), Stack(0, 1)),
            LONG1 => new(Counted(1), Stack(0, 1)),
            LONG4 | BINUNICODE => new(Counted(4), Stack(0, 1)),
            NONE | NEWTRUE | NEWFALSE | EMPTY_TUPLE | EMPTY_LIST | EMPTY_DICT => new(Bytes(0), Stack(0, 1)),
            GLOBAL => new(Lines(2), Stack(0, 1)),
            REDUCE | BUILD | b'a' | TUPLE2 | 0x81 => new(Bytes(0), Stack(2, 1)),
            b's' | TUPLE3 => new(Bytes(0), Stack(3, 1)),
            TUPLE1 => new(Bytes(0), Stack(1, 1)),
            TUPLE => new(Bytes(0), ToMark(0, 1)),
            APPENDS | SETITEMS => new(Bytes(0), ToMark(1, 1)),
            BINGET => new(Bytes(1), Get),
            LONG_BINGET => new(Bytes(4), Get),
            BINPUT => new(Bytes(1), Put),
            LONG_BINPUT => new(Bytes(4), Put),
            BINPERSID => new(Bytes(0), PersistentId),
            // Older protocols.
            b'2' | b'd' | b'l' | b'o' => other(Bytes(0)),
            b'F' | b'I' | b'L' | b'S' | b'V' | b'g' | b'p' | PERSID => other(Lines(1)),
            b'i' => other(Lines(2)),
            b'T' => other(Counted(4)),
            b'U' => other(Counted(1)),
            // Protocols 3 to 5.
            PROTO => other(Bytes(1)),
            BINBYTES => other(Counted(4)),
            b'C' | 0x8c => other(Counted(1)),
            0x8d | BINBYTES8 | 0x96 => other(Counted(8)),
            0x8f..=0x94 | NEXT_BUFFER | 0x98 => other(Bytes(0)),
            0x95 => other(Bytes(8)),
            _ => None,
        }
    }
}
