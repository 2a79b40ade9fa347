//! Counts and lists in sentences.

use std::fmt::Display;

/// `1 node`, `2 nodes`: for nouns with a plural in `s`.
#[must_use]
pub fn counted(number: impl Display + PartialEq + From<u8>, noun: &str) -> String {
    let plural = if number == 1.into() { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The first ones of `of` by name: `a, b and 3 more`.
#[must_use]
pub fn named_and_more(named: impl IntoIterator<Item = impl Display>, of: usize) -> String {
    let named: Vec<String> = named.into_iter().map(|name| name.to_string()).collect();
    match of.saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_is_counted() {
        assert_eq!(named_and_more(["a", "b"], 5), "a, b and 3 more");
        assert_eq!(named_and_more([1, 2], 2), "1, 2");
        assert_eq!((named_and_more(["a"], 0), named_and_more([""; 0], 0)), ("a".to_owned(), String::new()));
    }
}
