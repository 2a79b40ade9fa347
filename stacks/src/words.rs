//! Parts of the sentences of a verdict.

use crate::{
    folding::Ranks,
    model::{Frame, RankDump},
    place::Place,
    suspects::Doing,
    token::NO_SOURCE,
};

/// `data_loader.py:41 next_batch`.
pub(crate) fn place(frame: &Frame) -> String {
    let function = printable(&frame.function);
    let file = printable(frame.file.rsplit('/').next().unwrap_or_default());
    match frame.line {
        _ if file.is_empty() || file == NO_SOURCE => function,
        Some(line) => format!("{file}:{line} {function}"),
        None => format!("{file} {function}"),
    }
}

/// `rank 6 is stopped`, `ranks 2-3 are stopped`: one of the two verbs behind the ranks.
pub(crate) fn ranks(ranks: &Ranks, one: &str, many: &str) -> String {
    if ranks.len() == 1 {
        format!("rank {} {one}", ranks.listed())
    } else {
        format!("ranks {} {many}", ranks.listed())
    }
}

/// `0-5,7 wait`, `7 waits`: the peers of ranks that are named before them.
pub(crate) fn peers(ranks: &Ranks) -> String {
    format!("{} {}", ranks.listed(), if ranks.len() == 1 { "waits" } else { "wait" })
}

/// Everything that is known of an odd rank, for the lines below the verdict.
pub(crate) fn detail(dump: &RankDump) -> String {
    let mut text = format!("rank {}", dump.rank);
    if !dump.host.is_empty() {
        text = format!("{text} on {}", printable(&dump.host));
    }
    if let Some(pid) = dump.pid {
        text = format!("{text} (pid {pid})");
    }
    let state = dump.state.as_deref().map(printable).filter(|state| !state.is_empty());
    let doing = Doing::of(dump).words();
    let calls: Vec<String> =
        Place::of(dump).map(|place| place.frames).unwrap_or_default().iter().take(8).map(call).collect();
    let known = [doing.map(str::to_owned), state.map(|state| format!("state {state}"))];
    let known = known.into_iter().flatten().chain((!calls.is_empty()).then(|| calls.join(", called from ")));
    let notes = dump.notes.iter().map(|note| printable(note));
    let all: Vec<String> = known.chain(notes).collect();
    if all.is_empty() { text } else { format!("{text}: {}", all.join("; ")) }
}

fn call(frame: &Frame) -> String {
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("{} ({}{line})", printable(&frame.function), printable(&frame.file))
}

/// Foreign text for a log: short, and without what would change the terminal.
pub(crate) fn printable(text: &str) -> String {
    const MAX: usize = 200;
    let is_plain = |character: char| {
        !character.is_control()
            && !matches!(character, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut plain: String = text.chars().filter(|character| is_plain(*character)).take(MAX).collect();
    if text.chars().nth(MAX).is_some() {
        plain.push_str("...");
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str, line: Option<u32>) -> Frame {
        Frame { function: function.to_owned(), file: file.to_owned(), line }
    }

    #[test]
    fn a_place_is_short() {
        assert_eq!(
            place(&frame("next_batch", "/work/data_loader.py", Some(41))),
            "data_loader.py:41 next_batch"
        );
        assert_eq!(place(&frame("poll", "/lib/libc.so.6", None)), "libc.so.6 poll");
        assert_eq!(place(&frame("poll", "??", None)), "poll");
    }

    #[test]
    fn foreign_text_does_not_reach_the_terminal_as_it_is() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{202e}d"), "a[31mbcd");
        assert_eq!(printable(&"x".repeat(300)).len(), 203);
    }
}
