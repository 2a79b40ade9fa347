//! The stacks of the ranks of a job: what an agent writes for each rank, how the stacks of all ranks are merged into
//! one picture, and in words which ranks are elsewhere. This crate has no IO, no clock and no `HashMap`: the same dumps
//! give the same bytes. docs/stacks.md describes the files.
//!
//! Read first: [`model`], what is known of one rank; then [`trie`], the rule by which stacks are merged, which is that
//! of xpu_timer's viewer; then [`verdict`], which names the odd ranks.

pub mod document;
pub mod dump_name;
pub mod files;
pub mod folder;
pub mod folding;
pub mod merged;
pub mod model;
pub mod place;
pub mod saving;
pub mod suspects;
pub mod svg;
pub mod token;
pub mod trie;
pub mod upstream;
pub mod verdict;
mod words;

pub use document::{ReadError, read};
pub use dump_name::DumpName;
pub use files::files;
pub use folder::StackFolder;
pub use folding::Ranks;
pub use merged::Merged;
pub use model::{Frame, RankDump, Thread};
pub use suspects::{Reason, Suspects};
pub use verdict::Verdict;
