//! A frame as one word of a stack: `func@source`.

use std::{borrow::Cow, fmt::Write};

use crate::model::Frame;

/// The source of a frame that has none, as gdb prints it.
pub const NO_SOURCE: &str = "??";

/// `func@file:line`, or `func@library` without a line; `func@??` without a source.
#[must_use]
pub fn of_frame(frame: &Frame) -> String {
    let mut token = format!("{}@{}", escaped(&frame.function), escaped(&frame.file));
    if let Some(line) = frame.line {
        // Writing to a String does not fail.
        let _ok = write!(token, ":{line}");
    }
    token
}

/// The one-frame stack that every rank has: `State@S (sleeping)`.
#[must_use]
pub fn of_state(state: &str) -> String {
    format!("State@{}", escaped(state))
}

/// The text with what separates frames and lines written as an escape: `;` as `\x3b`, a line feed as `\n`, other
/// control characters as `\u{..}`. Upstream writes them as they are, so that its files cannot be read again where a
/// name contains one. Any other name stays as it is, byte for byte.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|character| character == ';' || character.is_control()) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            ';' => escaped.push_str("\\x3b"),
            character if character.is_control() => escaped.extend(character.escape_default()),
            character => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str, line: Option<u32>) -> Frame {
        Frame { function: function.to_owned(), file: file.to_owned(), line }
    }

    #[test]
    fn usual_frames_are_as_upstream_writes_them() {
        assert_eq!(of_frame(&frame("<module>", "train.py", Some(10))), "<module>@train.py:10");
        assert_eq!(of_frame(&frame("clone", "/usr/lib64/libc.so.6", None)), "clone@/usr/lib64/libc.so.6");
        assert_eq!(of_frame(&frame("main", NO_SOURCE, None)), "main@??");
        assert_eq!(of_frame(&frame("f\\x", "a b.py", Some(0))), "f\\x@a b.py:0");
        assert_eq!(of_state("S (sleeping)"), "State@S (sleeping)");
    }

    #[test]
    fn what_would_break_the_line_is_escaped() {
        let token = of_frame(&frame("array<[u8; 4]>", "a\nb\u{1}.py", Some(1)));
        assert_eq!(token, "array<[u8\\x3b 4]>@a\\nb\\u{1}.py:1");
    }
}
