//! MetaX's own tool: one process per pair, which prints one bandwidth.
//!
//! `TOOL -l GPU -p GPU -t 1 -c -w 1` is how the vendor's launcher calls it. It measures the optical link only, in one
//! direction, so that is the path of its values. Never run on MetaX hardware: the source is the vendor's published
//! launcher.

use std::{ffi::OsString, io, path::Path};

use diagnosis::switchbox::{Answer, Path as Way, Rate, Repetition, SocketPair, Trouble, Wrong};

use super::{
    call::{CallEnd, Spec},
    layout::Sockets,
};
use crate::wire::switchbox::TOOL_VARIABLE;

/// The characters of a tool's output that are shown.
const SHOWN: usize = 200;

/// The text before a bandwidth, and after it.
const BEFORE: &str = "bandwidth:";
const AFTER: &str = "MB/s";

/// How to measure a pair.
///
/// # Errors
/// When a socket has no accelerator.
pub(super) fn call(tool: &Path, sockets: Option<&Sockets>, pair: SocketPair) -> Result<Spec, Wrong> {
    let (one, other) = (gpu(sockets, pair.0)?, gpu(sockets, pair.1)?);
    let arguments = ["-l", &one.to_string(), "-p", &other.to_string(), "-t", "1", "-c", "-w", "1"];
    let arguments = arguments.iter().map(OsString::from).collect();
    Ok(Spec { program: tool.into(), name: None, arguments, environment: Vec::new(), input: Vec::new() })
}

/// The name of the device on a socket.
pub(super) fn device(sockets: Option<&Sockets>, socket: u32) -> String {
    gpu(sockets, socket).map_or_else(|_| "no GPU".to_owned(), |gpu| format!("GPU {gpu}"))
}

fn gpu(sockets: Option<&Sockets>, socket: u32) -> Result<u32, Wrong> {
    let Some(sockets) = sockets else { return Ok(socket) };
    let message = || format!("socket {socket} has no GPU in the driver's layout");
    sockets.get(&socket).copied().ok_or_else(|| Wrong::new(Trouble::NoSuchDevice, message()))
}

/// Why a program could not be started.
pub(super) fn cannot_start(path: &Path, error: &io::Error) -> Wrong {
    let program = path.display();
    match error.kind() {
        io::ErrorKind::NotFound if path.exists() => {
            let message = format!("{program} exists, but its interpreter or loader does not");
            Wrong::new(Trouble::CannotStart, message)
        }
        io::ErrorKind::NotFound => {
            let message = format!("{program} does not exist; set {} to the path of the tool", TOOL_VARIABLE);
            Wrong::new(Trouble::ToolMissing, message)
        }
        io::ErrorKind::PermissionDenied => {
            Wrong::new(Trouble::NoPermission, format!("this user may not execute {program}"))
        }
        _ => Wrong::new(Trouble::CannotStart, format!("{program}: {error}")),
    }
}

/// Reads the output of a tool that has exited.
pub(crate) fn read(end: &CallEnd) -> Answer {
    if let Some(wrong) = end.wrong() {
        // A tool that never ran says nothing about a link.
        let trouble = end.never_ran().unwrap_or(wrong.trouble);
        return Answer::Failed(Wrong { trouble, ..wrong });
    }
    let text = String::from_utf8_lossy(&end.stdout);
    match bandwidth(&text) {
        Some(there) => {
            Answer::Measured { values: vec![Repetition { there, back: None }], path: Way::Metaxlink }
        }
        None => {
            let message = format!("the output has no `{BEFORE}NUMBER{AFTER}`: {}", shown(&text));
            Answer::Failed(Wrong::new(Trouble::NoAnswer, message))
        }
    }
}

/// The beginning of foreign text, on one line.
pub(super) fn shown(text: &str) -> String {
    let text = text.trim();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    match text.char_indices().nth(SHOWN) {
        _ if text.is_empty() => "(empty)".to_owned(),
        None => text.chars().map(plain).collect(),
        Some((end, _)) => text[..end].chars().map(plain).chain("...".chars()).collect(),
    }
}

/// The first `bandwidth:DIGITS.DIGITSMB/s`.
fn bandwidth(text: &str) -> Option<Rate> {
    text.match_indices(BEFORE).find_map(|(at, _)| {
        let rest = &text[at + BEFORE.len()..];
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, after) = rest.split_at(length);
        if after.starts_with(AFTER) { Rate::from_decimal(number) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bandwidth_counts() {
        for (text, expected) in [
            ("bandwidth:50040.12MB/s", Some(50_040_120_000)),
            ("x\n[info] bandwidth:9999.9MB/s, bandwidth:1.0MB/s\n", Some(9_999_900_000)),
            ("bandwidth:n/a bandwidth:7MB/s bandwidth:1.5GB/s bandwidth:0.0MB/s", Some(0)),
            ("bandwidth: 1.0MB/s", None),
            ("bandwidth:1.2.3MB/s", None),
            ("bandwidth:.5MB/s", None),
            ("bandwidth:-1.0MB/s", None),
            ("bandwidth:", None),
            ("", None),
        ] {
            assert_eq!(bandwidth(text), expected.map(Rate), "{text}");
        }
    }

    #[test]
    fn the_vendors_line_is_called() {
        let sockets = Sockets::from([(3, 1), (5, 6)]);
        let spec = call(Path::new("/tool"), Some(&sockets), SocketPair(3, 5)).unwrap();
        assert_eq!(spec.arguments, ["-l", "1", "-p", "6", "-t", "1", "-c", "-w", "1"]);
        let spec = call(Path::new("/tool"), None, SocketPair(3, 5)).unwrap();
        assert_eq!(spec.arguments[..4], ["-l", "3", "-p", "5"]);
        let wrong = call(Path::new("/tool"), Some(&sockets), SocketPair(3, 4)).unwrap_err();
        assert_eq!(wrong.to_string(), "no such device, socket 4 has no GPU in the driver's layout");
        assert_eq!((device(Some(&sockets), 5), device(Some(&sockets), 4)), ("GPU 6".into(), "no GPU".into()));
    }

    #[test]
    fn foreign_text_is_truncated_to_one_line() {
        assert_eq!(shown(" a\nb\x1b[0m "), "a b [0m");
        assert_eq!(shown("\n"), "(empty)");
        assert_eq!(shown(&"é".repeat(1000)), "é".repeat(SHOWN) + "...");
    }
}
