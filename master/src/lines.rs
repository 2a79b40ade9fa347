//! Lines for people.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use rules::pending::Pending;

/// Receives the lines of the master's log.
pub type Log = Arc<dyn Fn(LogLine) + Send + Sync>;

/// A line of the master's log, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLine {
    /// Why nodes wait. Each of them gets the same message.
    Pending(Pending),
    /// Anything else.
    Text(String),
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending(pending) => f.write_str(&without_controls(pending)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// A [`Log`] in something that can be shown.
pub(crate) struct LogTo(pub(crate) Log);

impl std::fmt::Debug for LogTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogTo(..)")
    }
}

/// Kinds and senders that are told apart. More than that are too many to read.
const TOLD: usize = 1024;

/// Says `words`, in which names and sentences of nodes may stand: what would move a cursor is shown instead.
pub(crate) fn say(log: &Log, words: impl std::fmt::Display) {
    log(LogLine::Text(without_controls(words)));
}

fn without_controls(text: impl fmt::Display) -> String {
    let safe = |letter: char| if letter.is_control() && letter != '\n' { '\u{fffd}' } else { letter };
    text.to_string().chars().map(safe).collect()
}

/// Says a thing once for each sender and kind: a peer that sends nonsense sends much of it.
pub(crate) struct Once {
    log: Log,
    told: Mutex<BTreeSet<(IpAddr, &'static str)>>,
}

impl Once {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, told: Mutex::default() }
    }

    /// Says `words` about `peer`, unless something of this kind was said about it before.
    pub(crate) fn say(&self, peer: IpAddr, kind: &'static str, words: impl std::fmt::Display) {
        let is_new = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.len() < TOLD && told.insert((peer, kind))
        };
        if is_new {
            say(&self.log, format_args!("{peer}: {words} (said once)"));
        }
    }
}

impl std::fmt::Debug for Once {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered() -> (Log, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&lines);
        (Arc::new(move |line| into.lock().unwrap().push(line.to_string())), lines)
    }

    #[test]
    fn a_line_moves_no_cursor() {
        let (log, lines) = gathered();
        say(&log, "round 0\n  rank 0 \x1b[2Jhost\r");
        assert_eq!(*lines.lock().unwrap(), ["round 0\n  rank 0 \u{fffd}[2Jhost\u{fffd}"]);
    }

    #[test]
    fn a_kind_is_said_once_for_each_sender() {
        let (log, lines) = gathered();
        let once = Once::new(log);
        let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        once.say(a, "join", "one");
        once.say(a, "join", "two");
        once.say(b, "join", "three");
        once.say(a, "beat", "four");
        let lines = lines.lock().unwrap();
        assert_eq!(
            *lines,
            ["10.0.0.1: one (said once)", "10.0.0.2: three (said once)", "10.0.0.1: four (said once)"]
        );
    }
}
