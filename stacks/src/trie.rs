//! Stacks of many ranks, merged by the rule of xpu_timer's viewer.
//!
//! A stack goes in root first, one for each thread. Every node keeps the ranks that have it, and whether a stack ends
//! there; a stack is cut before a word that contains `lto_priv`. What comes out is a line for each node at which a stack
//! ends, each word of it with the ranks that have it and those that have not: `func@source@0-5/7|6`. Children keep the
//! order in which they came, so the lines are those of upstream, in its order.

use std::fmt::Write;

use crate::folding::Ranks;

/// Words of one stack at most, so that a picture of a runaway recursion can still be opened; then [`DEEPER`] follows.
pub const MAX_DEPTH: usize = 2048;

/// Stands for the words beyond [`MAX_DEPTH`].
pub const DEEPER: &str = "...@deeper";

/// A word that the linker has made up: a stack is cut before it.
const CUT_BEFORE: &str = "lto_priv";

/// The merged stacks of some ranks.
#[derive(Clone, Debug)]
pub struct Trie {
    world_size: u32,
    /// The first one is the root, which has no word.
    nodes: Vec<Node>,
}

/// The place of a node; that of the root is 0.
pub(crate) type NodeId = usize;

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) token: String,
    /// In the order in which they came.
    pub(crate) children: Vec<NodeId>,
    /// The same, in the order of their words, to find one.
    by_token: Vec<NodeId>,
    pub(crate) ranks: Ranks,
    pub(crate) is_end: bool,
}

impl Trie {
    /// An empty trie for ranks `0..world_size`.
    #[must_use]
    pub fn new(world_size: u32) -> Self {
        Self { world_size, nodes: vec![Node::default()] }
    }

    /// Adds a stack of `rank`, root first.
    pub fn insert(&mut self, stack: impl IntoIterator<Item = String>, rank: u32) {
        let mut at = 0;
        for (depth, token) in stack.into_iter().enumerate() {
            if token.contains(CUT_BEFORE) {
                break;
            }
            if depth == MAX_DEPTH {
                at = self.child(at, DEEPER.to_owned());
                self.nodes[at].ranks.insert(rank);
                break;
            }
            at = self.child(at, token);
            self.nodes[at].ranks.insert(rank);
        }
        self.nodes[at].is_end = true;
        self.nodes[at].ranks.insert(rank);
    }

    fn child(&mut self, parent: NodeId, token: String) -> NodeId {
        let found =
            self.nodes[parent].by_token.binary_search_by(|child| self.nodes[*child].token.cmp(&token));
        match found {
            Ok(place) => self.nodes[parent].by_token[place],
            Err(place) => {
                let child = self.nodes.len();
                self.nodes.push(Node { token, ..Node::default() });
                self.nodes[parent].by_token.insert(place, child);
                self.nodes[parent].children.push(child);
                child
            }
        }
    }

    /// Returns whether no stack with a frame is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The file `py_stack` or `cpp_stack`: a line for each node at which a stack ends.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // The nodes above, each with the length of the line up to its own word.
        let mut line = String::new();
        let mut open: Vec<(NodeId, usize)> = Vec::new();
        for (depth, id) in self.walk() {
            open.truncate(depth);
            line.truncate(open.last().map_or(0, |(_, length)| *length));
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&self.word(id));
            open.push((id, line.len()));
            if self.nodes[id].is_end {
                text.push_str(&line);
                text.push_str(" 1\n");
            }
        }
        text
    }

    /// A node's word: `func@source@<ranks that have it>|<ranks that have not>`.
    pub(crate) fn word(&self, id: NodeId) -> String {
        let node = &self.nodes[id];
        let mut word = node.token.clone();
        // Writing to a String does not fail.
        let _ok = write!(word, "@{}|{}", node.ranks.folded(), node.ranks.folded_rest(self.world_size));
        word
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// A node's children, in the order of their words.
    pub(crate) fn sorted_children(&self, id: NodeId) -> &[NodeId] {
        &self.nodes[id].by_token
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.world_size
    }

    /// All nodes but the root, each after its parent, with its depth. Without recursion: a stack may be deep.
    fn walk(&self) -> impl Iterator<Item = (usize, NodeId)> + '_ {
        let mut next: Vec<(usize, NodeId)> = self.nodes[0].children.iter().rev().map(|id| (0, *id)).collect();
        std::iter::from_fn(move || {
            let (depth, id) = next.pop()?;
            next.extend(self.nodes[id].children.iter().rev().map(|child| (depth + 1, *child)));
            Some((depth, id))
        })
    }
}

#[cfg(test)]
mod tests;
