//! Text without control characters. Messages may contain foreign text with terminal escapes (of other nodes, error
//! files, file names), so every message is made plain before it is printed.

use std::borrow::Cow;

/// Returns `text` with a visible sign in place of each control character. Line ends and tabs stay; a carriage return
/// does not, since it would overwrite the line.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_safe = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    if text.chars().all(is_safe) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|letter| if is_safe(letter) { letter } else { '\u{fffd}' }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_every_kind_are_shown_and_nothing_else_changes() {
        // CSI by ESC and by its one character, OSC with BEL, backspace, carriage return, DEL.
        assert_eq!(
            plain("a\x1b[2Jb\u{9b}31mc\x1b]0;title\x07d\x08e\rf\x7f"),
            "a\u{fffd}[2Jb\u{fffd}31mc\u{fffd}]0;title\u{fffd}d\u{fffd}e\u{fffd}f\u{fffd}"
        );
        let text = "Überall, 世界:\n\tline 2\n";
        assert!(matches!(plain(text), Cow::Borrowed(same) if same == text));
    }
}
