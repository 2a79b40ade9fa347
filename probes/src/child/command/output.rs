//! Reads a check command's output, which may be anything, endless, and without line ends.

use std::{
    io::Read,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::answer;
use crate::{
    child::{Reporter, progress::Progress},
    wire::ProbeMessage,
};

/// A longer line is truncated: no result is as long.
const LONGEST: usize = 64 << 10;

/// The end of its standard error that is kept for the reason.
const TAIL: usize = 4 << 10;

/// Lines of standard error forwarded in each `PER`; the rest is dropped.
const LINES: u32 = 100;
const PER: Duration = Duration::from_millis(500);

/// The last output so far.
#[derive(Debug, Clone, Default)]
pub(super) struct LastOutput(Arc<Mutex<Option<Vec<u8>>>>);

impl LastOutput {
    pub(super) fn get(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, message: Vec<u8>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    fn append(&self, message: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get_or_insert_default();
        kept.extend_from_slice(message);
        let too_many = kept.len().saturating_sub(TAIL);
        kept.drain(..too_many);
    }
}

/// Reads standard output to its end: counts progress and keeps the last other line.
pub(super) fn read_stdout(from: impl Read, last: &LastOutput, progress: &Progress) {
    lines(
        from,
        |_| {},
        |line| match answer::progress(line) {
            Some(partial) => progress.set(partial.bytes, partial.total),
            None => {
                if !line.trim_ascii().is_empty() {
                    last.set(line.trim_ascii().to_vec());
                }
            }
        },
    );
}

/// Reads standard error to its end: keeps the tail and forwards the lines.
pub(super) fn read_stderr(from: impl Read, last: &LastOutput, reporter: &Reporter) {
    let mut window = (Instant::now(), 0);
    let forward = |line: &[u8]| {
        if window.0.elapsed() > PER {
            window = (Instant::now(), 0);
        }
        window.1 += 1;
        if window.1 <= LINES {
            let line = &line[..line.len().min(TAIL)];
            reporter.send(&ProbeMessage::Log(String::from_utf8_lossy(line).into_owned()));
        }
    };
    lines(from, |received| last.append(received), forward);
}

/// Calls `on_bytes` for all input and `on_line` for every line without its line end, including an unterminated last
/// one.
fn lines(mut from: impl Read, mut on_bytes: impl FnMut(&[u8]), mut on_line: impl FnMut(&[u8])) {
    let mut line = Vec::new();
    let mut buffer = [0; 8 << 10];
    loop {
        let received = match from.read(&mut buffer) {
            Ok(length @ 1..) => &buffer[..length],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            _ => break,
        };
        on_bytes(received);
        for piece in received.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = LONGEST.saturating_sub(line.len());
            line.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < piece.len() {
                on_line(&line);
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        on_line(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(output: &[u8]) -> Option<String> {
        let last = LastOutput::default();
        read_stdout(output, &last, &Progress::new(0));
        last.get().map(|line| String::from_utf8(line).unwrap())
    }

    #[test]
    fn the_last_line_that_is_not_progress_is_the_result() {
        assert_eq!(
            last_line(b"one\ntwo\r\n\n  \n{\"progress\":{\"bytes\":1,\"total\":2}}\n").as_deref(),
            Some("two")
        );
        assert_eq!(last_line(b"one\ntwo").as_deref(), Some("two"));
        assert_eq!(last_line(b"\n\n"), None);
    }

    #[test]
    fn an_unterminated_line_is_truncated() {
        assert_eq!(last_line(&vec![b'x'; 10 * LONGEST]).unwrap().len(), LONGEST);
    }

    #[test]
    fn the_tail_of_standard_error_is_kept() {
        let last = LastOutput::default();
        last.append(&vec![b'x'; TAIL]);
        last.append(b"end");
        let kept = last.get().unwrap();
        assert!(kept.len() == TAIL && kept.ends_with(b"xend"));
    }
}
