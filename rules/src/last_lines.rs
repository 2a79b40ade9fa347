//! The end of a worker's output as text for people on other nodes: few lines, without control characters.
//!
//! It is foreign: a worker prints what it likes, and what a terminal would execute must not reach another terminal.

/// The most lines.
pub const MAX_LINES: usize = 20;

/// The most bytes of all lines, each with its line end.
pub const MAX_BYTES: usize = 4096;

/// The most bytes of one line.
pub const MAX_LINE: usize = 1024;

/// The most bytes of an error in one line.
pub const MAX_MESSAGE: usize = 512;

/// Room for the mark of what was cut.
const MARK: usize = 64;

/// Python's first line of a report of an exception.
const TRACEBACK: &str = "Traceback (most recent call last):";

/// How Python begins a frame of it.
const FRAME: &str = "File \"";

/// The lines of an output that are not blank, as a terminal would show them last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    lines: Vec<String>,
    /// `false`: there were earlier lines.
    is_whole: bool,
}

impl Output {
    /// The output that ends with these bytes; `is_whole`: they are all of it.
    #[must_use]
    pub fn new(tail: &[u8], is_whole: bool) -> Self {
        let text = String::from_utf8_lossy(tail);
        let lines = text.split('\n').filter_map(|line| {
            // A carriage return overwrites the line: of a progress bar, the last state is left.
            let mut states = line.rsplit('\r').map(readable);
            states.find(|state| !state.trim().is_empty())
        });
        Self { lines: lines.collect(), is_whole }
    }

    /// The last lines of the output, within [`MAX_LINES`] and [`MAX_BYTES`]; the first says how many are missing,
    /// if any are. The one after it can be read by itself.
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        // Of a line that began before the bytes that are known, there is only the end.
        let broken = usize::from(!self.is_whole && self.lines.len() > 1);
        let all = || self.lines.iter().skip(broken).map(|line| shortened(line, MAX_LINE));
        let bytes = all().map(|line| line.len() + 1).sum::<usize>();
        if broken == 0 && self.lines.len() <= MAX_LINES && bytes <= MAX_BYTES {
            return all().collect();
        }
        let mut left = MAX_BYTES - MARK;
        let mut kept: Vec<String> = all()
            .rev()
            .take(MAX_LINES - 1)
            .take_while(|line| {
                let fits = left.checked_sub(line.len() + 1);
                left = fits.unwrap_or(0);
                fits.is_some()
            })
            .collect();
        kept.reverse();
        kept.drain(..first_readable(&kept));
        let cut = self.lines.len() - kept.len();
        let least = if self.is_whole { "" } else { "at least " };
        let noun = if cut == 1 { "line" } else { "lines" };
        kept.insert(0, format!("[{least}{cut} earlier {noun} left out]"));
        kept
    }

    /// The exception of the last traceback of Python; else the last line. Where that may be a line of standard output
    /// (`is_mixed`), anything may come last: then only a line that looks like an error is one.
    #[must_use]
    pub fn error(&self, is_mixed: bool) -> Option<String> {
        let exception = exception(&self.lines).and_then(|at| self.lines.get(at)).map(|line| unprefixed(line));
        let last = || self.lines.last().map(|line| unprefixed(line));
        let last = || last().filter(|line| !is_mixed || is_error(line));
        exception.or_else(last).map(message)
    }
}

/// The place of the exception of the last traceback of Python.
fn exception(lines: &[String]) -> Option<usize> {
    let begins = lines.iter().rposition(|line| unprefixed(line).trim_start() == TRACEBACK)?;
    let after = lines.iter().enumerate().skip(begins + 1);
    after.into_iter().find(|(_, line)| !is_indented(line)).map(|(at, _)| at)
}

/// At most this many of the lines, where there is little room: the last ones, from one on that can be read by itself; but
/// where the exception of the last traceback is before them, those from the exception on.
#[must_use]
pub fn excerpt(lines: &[String], most: usize) -> &[String] {
    let start = lines.len().saturating_sub(most);
    match exception(lines) {
        Some(at) if at < start => &lines[at..(at + most).min(lines.len())],
        _ => {
            let last = &lines[start..];
            &last[if start > 0 { first_readable(last) } else { 0 }..]
        }
    }
}

/// The first of the lines that is not the rest of an indented block, such as the code below a frame of a traceback; the
/// first of all where each is.
fn first_readable(lines: &[String]) -> usize {
    let is_frame = |line: &str| unprefixed(line).trim_start().starts_with(FRAME);
    lines.iter().position(|line| !is_indented(line) || is_frame(line)).unwrap_or(0)
}

/// As the frames of a traceback are.
fn is_indented(line: &str) -> bool {
    unprefixed(line).starts_with([' ', '\t'])
}

/// torch's processes of a group begin their lines with `[rank3]: `.
fn unprefixed(line: &str) -> &str {
    let behind = || {
        let (rank, rest) = line.strip_prefix("[rank")?.split_once("]:")?;
        let is_rank = !rank.is_empty() && rank.bytes().all(|digit| digit.is_ascii_digit());
        is_rank.then(|| rest.strip_prefix(' ').unwrap_or(rest))
    };
    behind().unwrap_or(line)
}

/// Whether a line is how Python, or a program's options, report an error: `a.b.SomeError: text`,
/// `/usr/bin/python3: text`, `train.py: error: text`.
pub(crate) fn is_error(line: &str) -> bool {
    let Some((subject, text)) = line.split_once(':') else { return false };
    if text.trim().is_empty() {
        return false;
    }
    let is_name = subject
        .split('.')
        .all(|part| !part.is_empty() && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_'));
    let is_exception = is_name && (subject.ends_with("Error") || subject.ends_with("Exception"));
    let program = subject.rsplit('/').next().unwrap_or(subject);
    let version = program.strip_prefix("python");
    let is_python =
        version.is_some_and(|it| it.bytes().all(|letter| letter.is_ascii_digit() || letter == b'.'));
    is_exception || is_python || subject == "error" || line.contains(": error: ")
}

/// An error in one line of at most [`MAX_MESSAGE`] bytes: the first that is not blank.
#[must_use]
pub fn message(text: &str) -> String {
    let lines = text.split(['\n', '\r']).map(readable);
    let first = lines.map(|line| line.trim().to_owned()).find(|line| !line.is_empty());
    shortened(&first.unwrap_or_default(), MAX_MESSAGE)
}

/// A line without escape sequences and control characters; only tabs stay. Neither do characters stay that change the
/// direction of the text around them, which would show it in another order than it has.
#[must_use]
pub fn readable(line: &str) -> String {
    let mut rest = line.chars().peekable();
    let mut text = String::with_capacity(line.len());
    while let Some(letter) = rest.next() {
        match letter {
            '\u{1b}' => match rest.next() {
                Some('[') => skip_csi(&mut rest),
                Some(']' | 'P' | 'X' | '^' | '_') => skip_string(&mut rest),
                // Two or three characters, such as the choice of a character set.
                Some(' '..='/') => while rest.next().is_some_and(|it| (' '..='/').contains(&it)) {},
                Some(_) | None => {}
            },
            '\u{9b}' => skip_csi(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_string(&mut rest),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            letter if letter.is_control() && letter != '\t' => {}
            letter => text.push(letter),
        }
    }
    text
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Parameters, and the letter that ends them.
fn skip_csi(rest: &mut Rest<'_>) {
    while rest.next_if(|letter| (' '..='?').contains(letter)).is_some() {}
    rest.next_if(|letter| ('@'..='~').contains(letter));
}

/// A title, a link or the like, up to its terminator, or to the end of the line.
fn skip_string(rest: &mut Rest<'_>) {
    while let Some(letter) = rest.next() {
        match letter {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                rest.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

/// A line that is too long: its first bytes, and how many are missing.
fn shortened(line: &str, max: usize) -> String {
    if line.len() <= max {
        return line.to_owned();
    }
    let end = line.floor_char_boundary(max - MARK);
    format!("{} [{} more bytes left out]", &line[..end], line.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(text: &str) -> Output {
        Output::new(text.as_bytes(), true)
    }

    #[test]
    fn a_short_output_is_whole_and_blank_lines_are_left_out() {
        assert_eq!(output("a\n\n b\r\n \nc").last(), ["a", " b", "c"]);
        assert_eq!(output("").last(), Vec::<String>::new());
        assert_eq!(output("10 %\r20 %\r30 %\r\ndone").last(), ["30 %", "done"], "as a terminal shows it");
    }

    #[test]
    fn of_many_lines_the_last_are_kept_and_the_first_says_how_many_are_missing() {
        let text: String = (0..50).map(|line| format!("line {line}\n")).collect();
        let last = output(&text).last();
        assert_eq!(
            (last.len(), last[0].as_str(), last[1].as_str()),
            (20, "[31 earlier lines left out]", "line 31")
        );
        assert_eq!(last[19], "line 49");
        assert_eq!(Output::new(text.as_bytes(), false).last()[0], "[at least 31 earlier lines left out]");
    }

    /// A traceback of so many frames, each of three lines, after other output.
    fn traceback(frames: usize) -> String {
        let frames =
            (0..frames).map(|frame| format!("  File \"f{frame}.py\", line 1\n    call()\n    ^^^^^^\n"));
        format!("step 1\n{TRACEBACK}\n{}ValueError: boom\n", frames.collect::<String>())
    }

    #[test]
    fn what_is_kept_of_a_long_traceback_begins_with_a_frame() {
        let last = output(&traceback(7)).last();
        assert_eq!((last.len(), &*last[0]), (20, "[5 earlier lines left out]"), "{last:#?}");
        assert_eq!((&*last[1], &*last[19]), ("  File \"f1.py\", line 1", "ValueError: boom"), "{last:#?}");
        let longer = format!("{}bye\n", traceback(7));
        let last = output(&longer).last();
        assert_eq!((last.len(), &*last[0]), (18, "[8 earlier lines left out]"), "{last:#?}");
        assert_eq!(&*last[1], "  File \"f2.py\", line 1", "{last:#?}");
    }

    #[test]
    fn the_end_of_a_line_whose_start_is_not_known_is_left_out() {
        let last = Output::new(b"nd of a line\nValueError: boom\n", false).last();
        assert_eq!(last, ["[at least 1 earlier line left out]", "ValueError: boom"]);
        assert_eq!(Output::new(b"nd of the only line", false).last(), ["nd of the only line"]);
    }

    #[test]
    fn an_excerpt_begins_where_it_can_be_read() {
        let of = |text: &str, most| excerpt(&output(text).last(), most).to_vec();
        assert_eq!(of(&traceback(2), 3), ["ValueError: boom"]);
        assert_eq!(of(&traceback(2), 5)[0], "  File \"f1.py\", line 1");
        let ranked = traceback(2).replace("\n", "\n[rank3]: ");
        assert_eq!(of(ranked.trim_end_matches("[rank3]: "), 3), ["[rank3]: ValueError: boom"]);
        // What a library prints after the exception.
        let followed = format!("{}frame #0: a\nframe #1: b\nframe #2: c\n", traceback(2));
        assert_eq!(of(&followed, 3), ["ValueError: boom", "frame #0: a", "frame #1: b"]);
        assert_eq!(
            of("usage: train.py [-h]\n     [--lr LR]\ntrain.py: error: no --x\n", 2),
            ["train.py: error: no --x"]
        );
        assert_eq!(of("  a\n  b\n  c\n", 2), ["  b", "  c"], "all are indented");
        assert_eq!(of("  a\nb\n", 2), ["  a", "b"], "all of it");
        assert_eq!(of("", 3), Vec::<String>::new());
    }

    #[test]
    fn long_lines_are_cut_and_all_together_are_bounded() {
        let text: String = (0..9).map(|line| format!("{line}{}\n", "é".repeat(2000))).collect();
        let last = output(&text).last();
        assert_eq!(last[0], "[5 earlier lines left out]");
        assert!(last[1].starts_with("5éé") && last[1].ends_with("é [3042 more bytes left out]"), "{last:?}");
        assert!(last.iter().map(|line| line.len() + 1).sum::<usize>() <= MAX_BYTES, "{last:?}");
    }

    #[test]
    fn what_a_terminal_would_execute_is_left_out() {
        for (line, text) in [
            ("a\x1b[31;1mred\x1b[0m b", "ared b"),
            ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link", "alink"),
            ("\x1b(Ba\x1b7b\u{9b}2Jc\u{9d}t\u{9c}d", "abcd"),
            ("a\x08b\x7fc\td\u{202e}e\u{2066}f", "abc\tdef"),
            ("\x1b", ""),
            ("a\x1b[", "a"),
            ("\x1b]0;never ended", ""),
            ("\x1b[31\u{e9}", "\u{e9}"),
        ] {
            assert_eq!(readable(line), text, "{line:?}");
        }
        assert_eq!(Output::new(b"a\xffb\n", true).last(), ["a\u{fffd}b"]);
    }

    #[test]
    fn the_error_is_the_exception_of_the_last_traceback() {
        let chained = "Traceback (most recent call last):\n  File \"a\"\nKeyError: 1\n\nDuring handling\n\nTraceback \
                       (most recent call last):\n  File \"b\"\n    f()\nValueError: boom\nof two lines\nbye";
        assert_eq!(output(chained).error(true).as_deref(), Some("ValueError: boom"));
        let ranked =
            "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a\"\n[rank3]: OSError: x";
        assert_eq!(output(ranked).error(true).as_deref(), Some("OSError: x"));
        assert_eq!(output("[rank]: a\n").error(false).as_deref(), Some("[rank]: a"));
        assert_eq!(output("[rank3]: a\n").error(false).as_deref(), Some("a"));
        assert_eq!(output("cannot open x\n").error(false).as_deref(), Some("cannot open x"));
        assert_eq!(output("step 100\n").error(true), None);
        assert_eq!(output("Traceback (most recent call last):\n  File").error(true), None);
    }

    /// On a terminal standard output and standard error are one stream.
    #[test]
    fn a_last_line_of_mixed_output_is_an_error_when_it_looks_like_one() {
        for line in [
            "SyntaxError: invalid syntax",
            "torch.cuda.OutOfMemoryError: CUDA out of memory",
            "a.b_c.Some2Exception: x",
            "/usr/bin/python3: can't open file '/x.py': [Errno 2] No such file or directory",
            "python3.12: No module named nothing",
            "train.py: error: unrecognized arguments: --lr",
            "error: no GPU",
        ] {
            let text = format!("step 1\n{line}\n");
            assert_eq!(output(&text).error(true).as_deref(), Some(line));
            let ranked = format!("step 1\n[rank3]: {line}\n");
            assert_eq!(output(&ranked).error(true).as_deref(), Some(line));
        }
        for line in
            ["loss: 0.3", "no GPU for me", "Error: ", "the last Error: 3", "pythonic: yes", "KeyError:"]
        {
            assert_eq!(output(&format!("{line}\n")).error(true), None, "{line}");
        }
    }

    #[test]
    fn a_message_is_one_bounded_line() {
        assert_eq!(message("\n  boom\x1b[0m \nmore"), "boom");
        let long = message(&"x".repeat(9000));
        assert!(long.len() <= MAX_MESSAGE && long.ends_with("x [8552 more bytes left out]"), "{long}");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_bounded_and_plain(
            bytes in proptest::collection::vec(0u8..=255, 0..9000),
            is_whole in proptest::bool::ANY,
        ) {
            let output = Output::new(&bytes, is_whole);
            let last = output.last();
            assert!(last.len() <= MAX_LINES);
            assert!(last.iter().map(|line| line.len() + 1).sum::<usize>() <= MAX_BYTES);
            for line in last.iter().chain(&output.error(false)) {
                assert!(line.chars().all(|letter| !letter.is_control() || letter == '\t'));
                assert_eq!(&readable(line), line);
            }
        }
    }
}
