//! Words that move no cursor. Other nodes' words, error files, names of files: whatever stands in a sentence of
//! ours may hold terminal escapes, so every sentence passes here before a person sees it.

use std::borrow::Cow;

/// `words` with a sign in the place of each control character. Line ends and tabs stay; a carriage return does not,
/// for it writes over the line before it.
#[must_use]
pub fn plain(words: &str) -> Cow<'_, str> {
    let is_safe = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    if words.chars().all(is_safe) {
        return Cow::Borrowed(words);
    }
    Cow::Owned(words.chars().map(|letter| if is_safe(letter) { letter } else { '\u{fffd}' }).collect())
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
        let words = "Überall, 世界:\n\tline 2\n";
        assert!(matches!(plain(words), Cow::Borrowed(same) if same == words));
    }
}
