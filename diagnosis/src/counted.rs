//! Counts in sentences.

use std::fmt::Display;

/// `1 node`, `2 nodes`: for nouns with a plural in `s`.
#[must_use]
pub fn counted(number: impl Display + PartialEq + From<u8>, noun: &str) -> String {
    let plural = if number == 1.into() { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
