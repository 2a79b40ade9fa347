//! The master's log: lines for people.

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
    /// The job hangs. Each node gets the same message.
    Hang(String),
    /// A person may have to act, or workers were lost.
    Warning(String),
    /// Anything else.
    Text(String),
}

impl LogLine {
    /// Whether a person may have to act, or workers were lost.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::Hang(_) | Self::Warning(_))
    }
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending(pending) => f.write_str(&without_controls(pending)),
            Self::Hang(text) | Self::Warning(text) | Self::Text(text) => f.write_str(text),
        }
    }
}

/// A [`Log`] that implements `Debug`.
pub(crate) struct LogTo(pub(crate) Log);

impl std::fmt::Debug for LogTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogTo(..)")
    }
}

/// Pairs of peer and kind that are told apart; further ones are not logged.
const MAX_KEYS: usize = 1024;

/// Logs `line` with control characters replaced, because it may contain text that a node sent. One that begins with
/// `warning: ` is a warning.
pub(crate) fn log_line(log: &Log, line: impl std::fmt::Display) {
    let line = without_controls(line);
    log(if line.starts_with("warning: ") { LogLine::Warning(line) } else { LogLine::Text(line) });
}

/// Logs a warning, in the same way.
pub(crate) fn log_warning(log: &Log, line: impl std::fmt::Display) {
    log(LogLine::Warning(without_controls(line)));
}

/// Logs a hang, in the same way.
pub(crate) fn log_hang(log: &Log, line: impl std::fmt::Display) {
    log(LogLine::Hang(without_controls(line)));
}

fn without_controls(text: impl fmt::Display) -> String {
    let safe = |letter: char| if letter.is_control() && letter != '\n' { '\u{fffd}' } else { letter };
    text.to_string().chars().map(safe).collect()
}

/// Logs a kind of message once for each peer: a peer that sends nonsense sends much of it.
pub(crate) struct OncePerPeer {
    log: Log,
    logged: Mutex<BTreeSet<(IpAddr, &'static str)>>,
}

impl OncePerPeer {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, logged: Mutex::default() }
    }

    /// Logs `text` about `peer`, unless something of this kind was logged about it before.
    pub(crate) fn log(&self, peer: IpAddr, kind: &'static str, text: impl std::fmt::Display) {
        let is_new = {
            let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
            logged.len() < MAX_KEYS && logged.insert((peer, kind))
        };
        if is_new {
            log_warning(&self.log, format_args!("{peer}: {text} (logged once)"));
        }
    }
}

impl std::fmt::Debug for OncePerPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OncePerPeer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected() -> (Log, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&lines);
        (Arc::new(move |line| into.lock().unwrap().push(line.to_string())), lines)
    }

    #[test]
    fn control_characters_are_replaced() {
        let (log, lines) = collected();
        log_line(&log, "round 0\n  rank 0 \x1b[2Jhost\r");
        assert_eq!(*lines.lock().unwrap(), ["round 0\n  rank 0 \u{fffd}[2Jhost\u{fffd}"]);
    }

    #[test]
    fn a_kind_is_logged_once_for_each_peer() {
        let (log, lines) = collected();
        let once = OncePerPeer::new(log);
        let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        once.log(a, "join", "one");
        once.log(a, "join", "two");
        once.log(b, "join", "three");
        once.log(a, "beat", "four");
        let lines = lines.lock().unwrap();
        assert_eq!(
            *lines,
            ["10.0.0.1: one (logged once)", "10.0.0.2: three (logged once)", "10.0.0.1: four (logged once)"]
        );
    }
}
