//! The form of log lines: the launcher's and the job master's own, never what workers print.

use chrono::{SecondsFormat, Utc};
use serde_json::{Map, Value, json};
use tracing::Level;

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// `2026-07-01T12:00:00.000Z dlrover-run: ...`, for people.
    #[default]
    Text,
    /// A JSON object a line: `timestamp`, `level`, `target`, `message`, `fields`.
    Json,
}

/// The form of log lines, and which messages are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogStyle {
    pub format: LogFormat,
    /// Only errors are printed, and the report at the end.
    pub is_quiet: bool,
}

impl LogStyle {
    /// A message for people, such as `waiting for 1 of 2 nodes`; `None` when it is not printed.
    #[must_use]
    pub fn message(self, level: Level, target: &str, text: &str) -> Option<String> {
        self.message_with(level, target, text, Map::new)
    }

    /// The same with fields, which only JSON shows: the text says them.
    pub(crate) fn message_with(
        self,
        level: Level,
        target: &str,
        text: &str,
        fields: impl FnOnce() -> Map<String, Value>,
    ) -> Option<String> {
        if self.is_quiet && level > Level::ERROR {
            return None;
        }
        Some(match self.format {
            LogFormat::Text => format!("{} {target}: {}", now(), text.trim_end()),
            LogFormat::Json => json_line(level, target, text, fields()),
        })
    }

    /// The report at the end of a run, or an error that ends it: text without a timestamp. Only JSON shows the fields.
    #[must_use]
    pub fn report(self, level: Level, target: &str, text: &str, fields: Map<String, Value>) -> String {
        match self.format {
            LogFormat::Text => text.to_owned(),
            LogFormat::Json => json_line(level, target, text, fields),
        }
    }

    /// A line of the log of the program's insides, with its fields.
    #[must_use]
    pub fn event(self, level: Level, target: &str, message: &str, fields: Map<String, Value>) -> String {
        match self.format {
            LogFormat::Json => json_line(level, target, message, fields),
            LogFormat::Text => {
                let fields = fields.iter().map(|(name, value)| match value {
                    Value::String(text) => format!(" {name}={text}"),
                    value => format!(" {name}={value}"),
                });
                format!("{} {level:>5} {target}: {message}{}", now(), fields.collect::<String>())
            }
        }
    }
}

fn json_line(level: Level, target: &str, message: &str, fields: Map<String, Value>) -> String {
    json!({
        "timestamp": now(),
        "level": level.as_str(),
        "target": target,
        "message": message.trim_end(),
        "fields": fields,
    })
    .to_string()
}

/// RFC 3339, in UTC.
fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: LogStyle = LogStyle { format: LogFormat::Text, is_quiet: false };
    const JSON: LogStyle = LogStyle { format: LogFormat::Json, is_quiet: false };

    #[test]
    fn text_begins_with_the_time_and_a_report_does_not() {
        let line = TEXT.message(Level::INFO, "dlrover-run", "1 of 2 nodes joined\n").unwrap();
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(chrono::DateTime::parse_from_rfc3339(time).is_ok(), "{line}");
        assert_eq!(rest, "dlrover-run: 1 of 2 nodes joined");
        assert_eq!(TEXT.report(Level::ERROR, "dlrover-run", "box\n  line\n", Map::new()), "box\n  line\n");
    }

    #[test]
    fn json_is_one_object_a_line_whatever_the_text_is() {
        let text = "two\nlines, a \"quote\" and \u{1b}[2J";
        let fields = Map::from_iter([("pid".to_owned(), json!(7))]);
        for line in [
            JSON.message(Level::WARN, "dlrover-run", text).unwrap(),
            JSON.report(Level::WARN, "dlrover-run", text, Map::new()),
            JSON.event(Level::WARN, "dlrover-run", text, fields.clone()),
        ] {
            assert!(!line.contains(['\n', '\u{1b}']), "{line}");
            let object: Value = serde_json::from_str(&line).unwrap();
            let time = object["timestamp"].as_str().unwrap();
            assert!(chrono::DateTime::parse_from_rfc3339(time).is_ok(), "{line}");
            assert_eq!((&object["level"], &object["target"]), (&json!("WARN"), &json!("dlrover-run")));
            assert_eq!(object["message"], text);
            assert!(object["fields"].is_object());
        }
        assert!(JSON.event(Level::INFO, "t", "m", fields.clone()).contains(r#""fields":{"pid":7}"#));
        assert!(TEXT.event(Level::INFO, "t", "m", fields).ends_with("  INFO t: m pid=7"));
    }

    #[test]
    fn quiet_leaves_errors_and_reports() {
        let quiet = LogStyle { is_quiet: true, ..TEXT };
        assert_eq!(quiet.message(Level::INFO, "t", "x"), None);
        assert_eq!(quiet.message(Level::WARN, "t", "x"), None);
        assert!(quiet.message(Level::ERROR, "t", "x").is_some());
        assert_eq!(quiet.report(Level::INFO, "t", "x", Map::new()), "x");
    }
}
