//! Counts in sentences.

/// `1 node`, `2 nodes`: of nouns that take an `s`.
#[must_use]
pub fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
