//! The tree of a state: what is not a tensor, and where the tensors are in it.

use super::{MAX_DEPTH, MAX_DIGITS, MAX_NODES, MetaError, float, json::Cursor};

/// A value of Python, or a place of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    None,
    Bool(bool),
    Int(i64),
    /// Decimal digits, perhaps after a minus.
    Digits(String),
    Float(f64),
    Text(String),
    Dict(Vec<(Tree, Tree)>),
    /// A `collections.OrderedDict`, and its attributes if it has any: a dict with string keys.
    OrderedDict(Vec<(Tree, Tree)>, Option<Box<Tree>>),
    List(Vec<Tree>),
    Tuple(Vec<Tree>),
    /// The tensor with this place in the table.
    Tensor(usize),
    /// A pickle in the skeleton, made by the client.
    Odd {
        offset: u64,
        len: u64,
    },
}

impl Tree {
    /// Returns what a dict has for a text, or nothing.
    #[must_use]
    pub fn get(&self, wanted: &str) -> Option<&Self> {
        let (Self::Dict(pairs) | Self::OrderedDict(pairs, _)) = self else { return None };
        pairs.iter().find(|(key, _)| matches!(key, Self::Text(text) if text == wanted)).map(|(_, node)| node)
    }

    fn can_be_key(&self) -> bool {
        match self {
            Self::Tuple(nodes) => nodes.iter().all(Self::can_be_key),
            Self::Dict(_) | Self::OrderedDict(..) | Self::List(_) | Self::Tensor(_) => false,
            _ => true,
        }
    }

    fn is_attributes(&self) -> bool {
        matches!(self, Self::Dict(pairs) if pairs.iter().all(|(key, _)| matches!(key, Self::Text(_))))
    }
}

/// Reads one tree.
pub struct Reader<'c, 'b> {
    cursor: &'c mut Cursor<'b>,
    tensors: usize,
    skeleton_len: u64,
    /// Bytes of all pickles so far.
    pickled: u64,
    depth: usize,
    nodes: usize,
}

impl<'c, 'b> Reader<'c, 'b> {
    pub fn new(cursor: &'c mut Cursor<'b>, tensors: usize, skeleton_len: u64) -> Self {
        Self { cursor, tensors, skeleton_len, pickled: 0, depth: 0, nodes: 0 }
    }

    pub fn read(&mut self) -> Result<Tree, MetaError> {
        if self.depth > MAX_DEPTH {
            return Err(MetaError::TooDeep { at: self.cursor.at() });
        }
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(MetaError::TooManyNodes { at: self.cursor.at() });
        }
        match self.cursor.peek() {
            Some(b'"') => Ok(Tree::Text(self.cursor.string()?)),
            Some(b'-' | b'0'..=b'9') => Ok(Tree::Int(self.cursor.integer()?)),
            Some(b'{') => {
                self.depth += 1;
                let node = self.tagged()?;
                self.depth -= 1;
                Ok(node)
            }
            _ if self.cursor.word("null") => Ok(Tree::None),
            _ if self.cursor.word("true") => Ok(Tree::Bool(true)),
            _ if self.cursor.word("false") => Ok(Tree::Bool(false)),
            _ => Err(self.cursor.fault("a node of the tree").into()),
        }
    }

    /// `{"tag": value}`
    fn tagged(&mut self) -> Result<Tree, MetaError> {
        self.cursor.expect(b'{', "{")?;
        let tag = self.cursor.string()?;
        self.cursor.expect(b':', ": after a tag")?;
        let mut node = match tag.as_str() {
            "f" => self.float()?,
            "i" => self.digits()?,
            "d" => Tree::Dict(self.pairs()?),
            "o" => Tree::OrderedDict(self.pairs()?, None),
            "l" => Tree::List(self.nodes()?),
            "t" => Tree::Tuple(self.nodes()?),
            "T" => self.tensor()?,
            "p" => self.odd()?,
            _ => return Err(self.cursor.fault("one of the tags d, o, l, t, T, p, f, i").into()),
        };
        if let Tree::OrderedDict(_, attributes) = &mut node
            && self.cursor.take(b',')
        {
            self.cursor.key("a", "\"a\", the attributes of an OrderedDict")?;
            let found = self.read()?;
            if !found.is_attributes() {
                return Err(self.cursor.fault("attributes: a dict with string keys").into());
            }
            *attributes = Some(Box::new(found));
        }
        self.cursor.expect(b'}', "} after the value of a tag")?;
        Ok(node)
    }

    fn nodes(&mut self) -> Result<Vec<Tree>, MetaError> {
        let mut nodes = Vec::new();
        self.cursor.expect(b'[', "[")?;
        if self.cursor.take(b']') {
            return Ok(nodes);
        }
        loop {
            nodes.push(self.read()?);
            if !self.cursor.take(b',') {
                break;
            }
        }
        self.cursor.expect(b']', ", or ]")?;
        Ok(nodes)
    }

    fn pairs(&mut self) -> Result<Vec<(Tree, Tree)>, MetaError> {
        let mut pairs = Vec::new();
        self.cursor.expect(b'[', "[")?;
        if self.cursor.take(b']') {
            return Ok(pairs);
        }
        loop {
            self.cursor.expect(b'[', "[, a key and its node")?;
            let key = self.read()?;
            if !key.can_be_key() {
                return Err(self.cursor.fault("a hashable key").into());
            }
            self.cursor.expect(b',', ", after a key")?;
            pairs.push((key, self.read()?));
            self.cursor.expect(b']', "] after a node of a dict")?;
            if !self.cursor.take(b',') {
                break;
            }
        }
        self.cursor.expect(b']', ", or ]")?;
        Ok(pairs)
    }

    fn float(&mut self) -> Result<Tree, MetaError> {
        match float::read(&self.cursor.string()?) {
            Some(value) => Ok(Tree::Float(value)),
            None => Err(self.cursor.fault("a float in the form of float.hex()").into()),
        }
    }

    fn digits(&mut self) -> Result<Tree, MetaError> {
        let text = self.cursor.string()?;
        let digits = text.strip_prefix('-').unwrap_or(&text);
        if !(1..=MAX_DIGITS).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(self.cursor.fault("an integer of 1 to 4300 decimal digits").into());
        }
        Ok(Tree::Digits(text))
    }

    fn tensor(&mut self) -> Result<Tree, MetaError> {
        let index = self.cursor.count()?;
        match usize::try_from(index) {
            Ok(place) if place < self.tensors => Ok(Tree::Tensor(place)),
            _ => Err(MetaError::NoTensor { index, count: self.tensors }),
        }
    }

    fn odd(&mut self) -> Result<Tree, MetaError> {
        self.cursor.expect(b'[', "[, an offset and a length")?;
        let offset = self.cursor.count()?;
        self.cursor.expect(b',', ", after an offset")?;
        let len = self.cursor.count()?;
        self.cursor.expect(b']', "] after a length")?;
        let skeleton_len = self.skeleton_len;
        // Both are below 2^63.
        if offset + len > skeleton_len {
            return Err(MetaError::OutsideOfSkeleton { offset, len, skeleton_len });
        }
        // What is in a file twice must be in the slot twice, so that no small slot makes a huge file.
        self.pickled = self.pickled.saturating_add(len);
        if self.pickled > skeleton_len {
            return Err(MetaError::PicklesOverlap { skeleton_len });
        }
        Ok(Tree::Odd { offset, len })
    }
}
