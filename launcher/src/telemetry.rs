//! The log of the program's insides: lines on standard error, off but for warnings. In order of precedence its level is
//! set by `-q` and `-v`, by `DLROVER_LOG` (a filter such as `agent=debug`), and by `LOGLEVEL`, as for torchrun.

use std::{
    ffi::OsString,
    fmt::{self, Debug},
    io,
};

use agent::LogStyle;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    subscriber::set_global_default,
};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
};

use crate::{environment::Environment, resolve::LogPlan};

/// Writes log lines by this function, which never blocks on a console.
#[derive(Debug, Clone)]
struct Lines<Print>(Print);

impl<Print: Fn(&[u8])> io::Write for Lines<Print> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, Print: Fn(&[u8]) + Clone> MakeWriter<'a> for Lines<Print> {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Makes lines of events, in the form of all log lines.
struct LineFormat(LogStyle);

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let Fields { message, others } = fields;
        writeln!(writer, "{}", self.0.event(*metadata.level(), metadata.target(), &message, others))
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

/// The crates of this project at this level; the others, such as the HTTP/2 library, only warn. `DLROVER_LOG` has them.
fn ours(level: LevelFilter) -> Targets {
    const CRATES: [&str; 9] =
        ["agent", "diagnosis", "dlrover", "launcher", "master", "probes", "processes", "rules", "store"];
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_targets(CRATES.map(|name| (name, level)))
}

/// Starts logging.
pub fn start(
    print: impl Fn(&[u8]) + Clone + Send + Sync + 'static,
    log: &LogPlan,
    env: &[(OsString, OsString)],
) {
    let variable = |name: &str| Environment(env).get(name).and_then(|value| value.to_str());
    let level = variable("LOGLEVEL").map(|level| match level.to_ascii_uppercase().as_str() {
        "DEBUG" => LevelFilter::DEBUG,
        "INFO" => LevelFilter::INFO,
        "ERROR" | "CRITICAL" => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    });
    let lines = tracing_subscriber::fmt().event_format(LineFormat(log.style)).with_writer(Lines(print));
    let filter = variable("DLROVER_LOG").filter(|_| log.level.is_none());
    let parts = filter.map(str::parse::<Targets>);
    // A second launcher in one process (a test) keeps the first one's log.
    let _already = match &parts {
        Some(Ok(parts)) => {
            set_global_default(lines.with_max_level(LevelFilter::TRACE).finish().with(parts.clone()))
        }
        _ => {
            let level = log.level.map(LevelFilter::from_level).or(level).unwrap_or(LevelFilter::WARN);
            set_global_default(lines.with_max_level(level).finish().with(ours(level)))
        }
    };
    if let (Some(filter), Some(Err(error))) = (filter, &parts) {
        tracing::warn!(%error, "`DLROVER_LOG={filter}` is ignored: give a level, or PART=LEVEL, such as agent=debug");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use agent::LogFormat;
    use tracing::subscriber::with_default;

    use super::*;

    #[test]
    fn an_event_is_a_json_object_with_its_fields() {
        let printed = Arc::new(Mutex::new(Vec::new()));
        let print = {
            let printed = Arc::clone(&printed);
            move |bytes: &[u8]| printed.lock().unwrap().extend_from_slice(bytes)
        };
        let style = LogStyle { format: LogFormat::Json, is_quiet: false };
        let lines =
            tracing_subscriber::fmt().event_format(LineFormat(style)).with_writer(Lines(print)).finish();
        with_default(lines, || {
            let error = io::Error::other("no\nroom");
            tracing::warn!(%error, pid = 7, "cannot {}", "start");
        });
        let text = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"WARN".into(), &"cannot start".into()));
        assert_eq!(line["target"], module_path!());
        assert_eq!(line["fields"], serde_json::json!({"error": "no\nroom", "pid": 7}));
    }
}
