//! Assembles a worker's bytes to whole lines, for the console copy of a tee. Pure: the time is an argument.
//!
//! * `\n` and `\r\n` end a line. It is printed once, whole, after the prefix, with `\n`. Bytes that are not UTF-8
//!   stay as they are.
//! * An unfinished line waits for its end, however long that takes. The log file has its bytes at once, and
//!   [`Lines::finish`] prints it when the stream ends.
//! * A line of more than [`MAX_LINE`] is printed in pieces, with the prefix before the first only.
//! * A `\r` inside a line means a progress bar: what follows replaces what was there. The newest state is printed as
//!   a line at most every [`BAR_INTERVAL`], and the last one always, when the line or the stream ends. States in
//!   between are in the log file only. This is the same on a terminal and in a file: several ranks cannot share one
//!   bar in place.

use std::time::{Duration, Instant};

use memchr::{memchr2, memmem};

/// The longest line that is kept in memory to be printed whole.
pub const MAX_LINE: usize = 1 << 20;

/// How often a progress bar is printed while it moves.
pub const BAR_INTERVAL: Duration = Duration::from_secs(1);

/// A larger buffer is freed when its line has ended.
const KEEP_CAPACITY: usize = 16 << 10;

/// The output of [`Lines`].
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// For the console.
    pub(crate) console: Vec<u8>,
    /// The lines among them that contain one of the filters.
    pub(crate) filtered: Vec<u8>,
}

impl Output {
    pub(crate) fn clear(&mut self) {
        self.console.clear();
        self.filtered.clear();
    }
}

/// The line assembler of one stream.
#[derive(Debug)]
pub(crate) struct Lines {
    prefix: Vec<u8>,
    filters: Vec<memmem::Finder<'static>>,
    /// The line so far; of a bar, its newest state.
    line: Vec<u8>,
    /// A `\r` followed `line`; the next byte decides what it meant.
    returned: bool,
    /// Set if the line is a bar.
    bar: Option<Bar>,
    /// Set if pieces of the line were printed: whether they matched a filter.
    pieces: Option<bool>,
}

#[derive(Debug)]
struct Bar {
    /// When the newest state may be printed.
    due: Instant,
    /// The newest state was printed.
    shown: bool,
}

impl Lines {
    pub(crate) fn new(prefix: Vec<u8>, filters: &[String]) -> Self {
        let filters = filters.iter().map(|text| memmem::Finder::new(text).into_owned()).collect();
        Self { prefix, filters, line: Vec::new(), returned: false, bar: None, pieces: None }
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn push(&mut self, now: Instant, mut bytes: &[u8], out: &mut Output) {
        while let Some(&first) = bytes.first() {
            if self.returned {
                match first {
                    // "\r\n", "\r\r\n": one line end.
                    b'\n' | b'\r' => {}
                    _ => self.start_over(now, out),
                }
            }
            match memchr2(b'\n', b'\r', bytes) {
                None => {
                    self.append(bytes, out);
                    return;
                }
                Some(end) => {
                    if bytes[end] == b'\n' {
                        self.end_line(&bytes[..end], out);
                    } else {
                        self.append(&bytes[..end], out);
                        self.returned = true;
                    }
                    bytes = &bytes[end + 1..];
                }
            }
        }
    }

    /// When [`Self::tick`] has something to print.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let bar = self.bar.as_ref().filter(|bar| !bar.shown)?;
        (!is_blank(&self.line)).then_some(bar.due)
    }

    /// Prints the newest state of a bar when it is due.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut Output) {
        if self.deadline().is_some_and(|due| due <= now) {
            self.emit(&[], true, out);
            self.bar = Some(Bar { due: now + BAR_INTERVAL, shown: true });
        }
    }

    /// The stream has ended: prints an unfinished line with a line end.
    pub(crate) fn finish(&mut self, out: &mut Output) {
        let nothing = match self.bar {
            Some(_) => is_blank(&self.line),
            None => self.line.is_empty() && self.pieces.is_none(),
        };
        if !nothing {
            self.end_line(&[], out);
        }
        self.reset();
    }

    fn append(&mut self, bytes: &[u8], out: &mut Output) {
        if bytes.is_empty() {
            return;
        }
        if let Some(bar) = &mut self.bar {
            bar.shown = false;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() >= MAX_LINE {
            self.emit(&[], false, out);
            self.line.clear();
        }
    }

    fn end_line(&mut self, rest: &[u8], out: &mut Output) {
        let shown = rest.is_empty() && self.bar.as_ref().is_some_and(|bar| bar.shown);
        if !shown {
            self.emit(rest, true, out);
        }
        self.reset();
    }

    /// What follows a `\r` replaces the line.
    fn start_over(&mut self, now: Instant, out: &mut Output) {
        self.returned = false;
        if self.pieces.is_some() {
            // Too long to be a bar, and printed pieces cannot be replaced.
            self.end_line(&[], out);
            return;
        }
        self.line.clear();
        match &mut self.bar {
            Some(bar) => bar.shown = false,
            None => self.bar = Some(Bar { due: now + BAR_INTERVAL, shown: false }),
        }
    }

    /// Prints the line and `rest`, after the prefix unless a piece of the line was printed already.
    fn emit(&mut self, rest: &[u8], ends: bool, out: &mut Output) {
        let prefix: &[u8] = if self.pieces.is_some() { &[] } else { &self.prefix };
        let parts = [prefix, &self.line, rest, if ends { b"\n" } else { b"" }];
        parts.iter().for_each(|part| out.console.extend_from_slice(part));
        let mut matched = false;
        if !self.filters.is_empty() {
            let text =
                &out.console[out.console.len() - parts[1..].iter().map(|part| part.len()).sum::<usize>()..];
            matched = self.pieces.unwrap_or(false) || self.filters.iter().any(|f| f.find(text).is_some());
            if matched {
                parts.iter().for_each(|part| out.filtered.extend_from_slice(part));
            }
        }
        self.pieces = (!ends).then_some(matched);
    }

    fn reset(&mut self) {
        if self.line.capacity() > KEEP_CAPACITY {
            self.line = Vec::new();
        }
        self.line.clear();
        self.returned = false;
        self.bar = None;
        self.pieces = None;
    }
}

fn is_blank(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stream {
        lines: Lines,
        out: Output,
        now: Instant,
    }

    impl Stream {
        fn new() -> Self {
            Self::with_filters(&[])
        }

        fn with_filters(filters: &[&str]) -> Self {
            let filters: Vec<String> = filters.iter().map(|text| (*text).to_owned()).collect();
            Self {
                lines: Lines::new(b"[0]:".to_vec(), &filters),
                out: Output::default(),
                now: Instant::now(),
            }
        }

        fn push(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
            self.lines.push(self.now, bytes.as_ref(), &mut self.out);
            self
        }

        fn later(&mut self, by: Duration) -> &mut Self {
            self.now += by;
            self.lines.tick(self.now, &mut self.out);
            self
        }

        fn end(&mut self) -> &mut Self {
            self.lines.finish(&mut self.out);
            self
        }

        /// Takes the output since the last call.
        fn take_output(&mut self) -> String {
            let text = String::from_utf8_lossy(&self.out.console).into_owned();
            self.out.clear();
            text
        }
    }

    #[test]
    fn every_line_has_one_prefix_however_its_bytes_arrive() {
        let text = b"one\ntwo\r\n\nthree\r\r\nfour";
        let expected = "[0]:one\n[0]:two\n[0]:\n[0]:three\n[0]:four\n";
        for step in 1..=text.len() {
            let mut stream = Stream::new();
            text.chunks(step).for_each(|chunk| {
                stream.push(chunk);
            });
            assert_eq!(stream.end().take_output(), expected, "in steps of {step}");
        }
    }

    #[test]
    fn an_unfinished_line_waits_for_its_end() {
        let mut stream = Stream::new();
        assert_eq!(stream.push("Loading... ").later(Duration::from_secs(60)).take_output(), "");
        assert_eq!(stream.lines.deadline(), None);
        assert_eq!(stream.push("done\n").take_output(), "[0]:Loading... done\n");
        assert_eq!(stream.push("bye").end().take_output(), "[0]:bye\n");
        assert_eq!(stream.end().take_output(), "");
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_untouched() {
        let mut stream = Stream::new();
        stream.push(b"\xff\xfe\xc3\n\x80");
        stream.end();
        assert_eq!(stream.out.console, b"[0]:\xff\xfe\xc3\n[0]:\x80\n");
    }

    #[test]
    fn a_bar_is_shown_once_a_second_and_its_last_state_always() {
        let mut stream = Stream::new();
        let mut seen = String::new();
        for percent in 0..=100 {
            stream.push(format!("\r{percent:3}%"));
            seen += &stream.later(Duration::from_millis(40)).take_output();
        }
        seen += &stream.push("\nnext\n").take_output();
        assert_eq!(seen, "[0]: 24%\n[0]: 49%\n[0]: 74%\n[0]: 99%\n[0]:100%\n[0]:next\n");
    }

    #[test]
    fn a_bar_with_a_final_return_is_printed_the_same() {
        let mut stream = Stream::new();
        stream.push("1/3\r2/3\r3/3\r");
        assert_eq!(stream.take_output(), "");
        assert_eq!(stream.later(BAR_INTERVAL).take_output(), "[0]:3/3\n");
        assert_eq!(stream.push("\n").take_output(), "", "it was shown already");
        assert_eq!(stream.push("1/1\r").end().take_output(), "[0]:1/1\n");
    }

    #[test]
    fn a_bar_that_stalls_is_shown_and_not_repeated() {
        let mut stream = Stream::new();
        stream.push("\r 7%");
        assert_eq!(stream.lines.deadline(), Some(stream.now + BAR_INTERVAL));
        assert_eq!(stream.later(BAR_INTERVAL).take_output(), "[0]: 7%\n");
        assert_eq!(stream.lines.deadline(), None);
        assert_eq!(stream.later(BAR_INTERVAL).end().take_output(), "");
    }

    #[test]
    fn an_erased_bar_leaves_the_text_after_it() {
        let mut stream = Stream::new();
        assert_eq!(stream.push("\r 50%\r     \rsaved\n").take_output(), "[0]:saved\n");
        assert_eq!(stream.push("\r 50%\r     \r").end().take_output(), "");
        assert_eq!(stream.push("\r 50%\r     ").lines.deadline(), None);
    }

    #[test]
    fn a_line_beyond_the_limit_goes_out_in_pieces_under_one_prefix() {
        let mut stream = Stream::new();
        let long = "x".repeat(MAX_LINE + 10);
        for chunk in long.as_bytes().chunks(5000) {
            stream.push(chunk);
        }
        stream.push("\nshort\n");
        assert!(stream.take_output() == format!("[0]:{long}\n[0]:short\n"));
        assert!(stream.lines.line.capacity() <= KEEP_CAPACITY);
    }

    #[test]
    fn a_filter_duplicates_the_lines_that_contain_it() {
        let mut stream = Stream::with_filters(&["loss", "acc"]);
        stream.push("loss=1\nnoise\nmy accuracy\n[0]:\n").push(format!("loss{}", "x".repeat(MAX_LINE)));
        stream.push("rest\nnoise\n");
        let long = format!("loss{}rest", "x".repeat(MAX_LINE));
        let filtered = String::from_utf8(stream.out.filtered.clone()).unwrap();
        assert!(filtered == format!("[0]:loss=1\n[0]:my accuracy\n[0]:{long}\n"));
    }

    #[test]
    fn the_prefix_is_not_searched_by_a_filter() {
        let mut stream = Stream::with_filters(&["[0]"]);
        stream.push("a\n");
        assert_eq!(stream.out.filtered, b"");
    }

    proptest::proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_cuts(
            chunks in proptest::collection::vec("[ab \\r\\n\u{ff}]{0,6}", 0..12),
        ) {
            let (mut cut, mut whole) = (Stream::with_filters(&["ab"]), Stream::with_filters(&["ab"]));
            chunks.iter().for_each(|chunk| {
                cut.push(chunk);
            });
            whole.push(chunks.concat());
            cut.end();
            whole.end();
            proptest::prop_assert_eq!(&cut.out.console, &whole.out.console);
            proptest::prop_assert_eq!(&cut.out.filtered, &whole.out.filtered);
            // Every line of the console is one prefix and a text without line ends.
            for line in cut.out.console.split_inclusive(|byte| *byte == b'\n') {
                proptest::prop_assert!(line.starts_with(b"[0]:") && line.ends_with(b"\n") && !line.contains(&b'\r'));
            }
        }
    }
}
