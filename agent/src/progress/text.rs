//! What a worker wrote into its progress file.

/// Bytes at the end of the file that are read.
pub(super) const TAIL: usize = 256;

/// Characters of the word that suspends the watch; the rest is cut off.
const LONGEST_WORD: usize = 32;

/// One declaration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Declared {
    /// The step, if there is a number.
    pub(super) step: Option<u64>,
    /// What the worker is busy with, if it says so.
    pub(super) busy_with: Option<String>,
    /// It is no progress: a pause has ended that came before the first.
    pub(super) is_none: bool,
}

/// Parses the end of a progress file: of its last line that is not empty, the first word is the step, or `-` without
/// one, and the second what the worker is busy with. `~` alone declares nothing. Anything else declares progress and no
/// more. The file of a worker that is between truncating and writing is empty, and gives nothing.
///
/// `is_whole` tells whether the tail is the whole file: where it is not, a line may have lost its beginning.
pub(super) fn parse(tail: &[u8], is_whole: bool) -> Option<Declared> {
    // A file with a hole has NULs.
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r' | b'\0');
    let mut lines = tail.rsplit(is_break).enumerate().filter(|(_, line)| !line.trim_ascii().is_empty());
    let (at, line) = lines.next()?;
    let is_cut = !is_whole && tail.split(is_break).count() == at + 1;
    if !is_cut && line.trim_ascii() == b"~" {
        return Some(Declared { is_none: true, ..Declared::default() });
    }
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let step = match words.next()? {
        b"-" => None,
        word if !is_cut && word.iter().all(u8::is_ascii_digit) => {
            match str::from_utf8(word).ok().and_then(|word| word.parse().ok()) {
                Some(step) => Some(step),
                None => return Some(Declared::default()),
            }
        }
        _ => return Some(Declared::default()),
    };
    let busy_with = words.next().map(|word| {
        let printable = word.iter().filter(|byte| byte.is_ascii_graphic());
        printable.take(LONGEST_WORD).map(|byte| char::from(*byte)).collect::<String>()
    });
    Some(Declared { step, busy_with: busy_with.filter(|word| !word.is_empty()), is_none: false })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Option<(Option<u64>, Option<String>)> {
        parse(text.as_bytes(), true).map(|declared| (declared.step, declared.busy_with))
    }

    #[test]
    fn a_line_has_a_step_and_what_the_worker_is_busy_with() {
        assert_eq!(parsed("12\n"), Some((Some(12), None)));
        assert_eq!(parsed("  12\t\r\n"), Some((Some(12), None)));
        assert_eq!(parsed("0"), Some((Some(0), None)));
        assert_eq!(parsed("12 checkpoint\n"), Some((Some(12), Some("checkpoint".into()))));
        assert_eq!(parsed("- checkpoint"), Some((None, Some("checkpoint".into()))));
        assert_eq!(parsed("-"), Some((None, None)));
    }

    #[test]
    fn the_end_of_a_pause_alone_is_no_declaration() {
        let is_none = |text: &str, is_whole| parse(text.as_bytes(), is_whole).unwrap().is_none;
        assert!(is_none("~", true) && is_none(" ~ \n", true) && is_none("1\n~\n", false));
        for (text, is_whole) in [("-", true), ("~ x", true), ("~~", true), ("~", false), ("~\n1\n", true)] {
            assert!(!is_none(text, is_whole), "{text}");
        }
    }

    #[test]
    fn the_last_line_counts() {
        assert_eq!(parsed("11 checkpoint\n12\n\n"), Some((Some(12), None)));
        assert_eq!(parsed("\0\0\x0012 eval\n"), Some((Some(12), Some("eval".into()))));
        assert_eq!(parse(b"999\n12\n", false).unwrap().step, Some(12));
    }

    #[test]
    fn garbage_is_progress_without_a_number() {
        for text in ["step 12", "12.5", "-1 checkpoint", "99999999999999999999", "\u{e9}", "+5", "0x10"] {
            assert_eq!(parsed(text), Some((None, None)), "{text}");
        }
        // The end of a longer number.
        assert_eq!(parse(b"999\n\n", false), Some(Declared::default()));
        assert_eq!(parse(b"99 busy", false), Some(Declared::default()));
    }

    #[test]
    fn an_empty_file_is_between_two_declarations() {
        for text in ["", "\n", " \0 \n"] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_word_is_short_and_printable() {
        let long = format!("1 {}\u{1b}[31m\u{e9}", "x".repeat(30));
        assert_eq!(parsed(&long), Some((Some(1), Some(format!("{}[3", "x".repeat(30))))));
        assert_eq!(parsed("1 \u{1b}\u{e9}"), Some((Some(1), None)));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(tail in proptest::collection::vec(any::<u8>(), 0..TAIL), is_whole: bool) {
            if let Some(Declared { busy_with: Some(word), .. }) = parse(&tail, is_whole) {
                prop_assert!((1..=LONGEST_WORD).contains(&word.len()) && word.chars().all(|c| c.is_ascii_graphic()));
            }
        }
    }
}
