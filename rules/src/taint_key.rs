//! The key of a Kubernetes taint.

use std::fmt;

/// The limit of the part before the `/`, a DNS subdomain.
const LONGEST_PREFIX: usize = 253;

/// The limit of the name itself.
const LONGEST_NAME: usize = 63;

/// A key that Kubernetes takes: `name` or `prefix/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaintKey(String);

impl TaintKey {
    /// The form of a key, as the end of a sentence.
    pub const FORM: &'static str = "the key of a Kubernetes taint is a name of 1 to 63 letters, digits, `-`, `_` and \
                                    `.` that begins and ends with a letter or digit, optionally preceded by a DNS \
        subdomain of at most 253 lowercase letters, digits, `-` and `.` and a `/`, such as example.org/bad-node";

    /// Parses a key; `None` when Kubernetes would not accept it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (prefix, name) = match text.split_once('/') {
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, text),
        };
        let is_fit = prefix.is_none_or(is_dns_subdomain) && is_name(name);
        is_fit.then(|| Self(text.to_owned()))
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TaintKey {
    fn default() -> Self {
        Self("dlrover.io/node-check".to_owned())
    }
}

impl fmt::Display for TaintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn is_name(text: &str) -> bool {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    text.len() <= LONGEST_NAME
        && text.bytes().all(is_allowed)
        && has_ends(text, |c| c.is_ascii_alphanumeric())
}

fn is_dns_subdomain(text: &str) -> bool {
    let is_letter = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label =
        |label: &str| label.bytes().all(|c| is_letter(c) || c == b'-') && has_ends(label, is_letter);
    text.len() <= LONGEST_PREFIX && text.split('.').all(is_label)
}

/// Whether the first and the last byte satisfy `is_fit`; an empty text has neither.
fn has_ends(text: &str, is_fit: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(|end| is_fit(*end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_kubernetes() {
        assert_eq!(TaintKey::parse("dlrover.io/node-check"), Some(TaintKey::default()));
        let (longest, prefix) = ("n".repeat(63), "a.".repeat(126) + "a");
        for key in ["bad", "Bad_node.1", "example.org/bad", &longest, &format!("{prefix}/{longest}")] {
            assert!(TaintKey::parse(key).is_some_and(|parsed| parsed.as_str() == key), "{key}");
        }
        let too_long = ["n".repeat(64), format!("{prefix}.a/n")];
        for key in [
            "",
            "bad key !!",
            "-bad",
            "bad.",
            "/bad",
            "a/",
            "a/b/c",
            "A.org/bad",
            "a..b/bad",
            "a_b/bad",
            "-a/b",
            "é",
            &too_long[0],
            &too_long[1],
        ] {
            assert_eq!(TaintKey::parse(key), None, "{key}");
        }
    }
}
