//! The launcher's own log: plain lines on standard error, off but for warnings. `LOGLEVEL` sets the level as
//! for torchrun; `DLROVER_LOG` takes a filter such as `agent=debug`.

use std::ffi::{OsStr, OsString};

use agent::Console;
use tracing::subscriber::set_global_default;
use tracing_subscriber::{EnvFilter, filter::LevelFilter, fmt::MakeWriter};

/// Writes log lines to the launcher's console, which never blocks.
#[derive(Debug, Clone)]
struct ConsoleWriter(Console);

impl std::io::Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.print(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for ConsoleWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Starts logging.
pub fn start(console: &Console, env: &[(OsString, OsString)]) {
    let variable = |name: &str| {
        env.iter().find(|(key, _)| key == OsStr::new(name)).and_then(|(_, value)| value.to_str())
    };
    let level = variable("LOGLEVEL").map(|level| match level.to_ascii_uppercase().as_str() {
        "DEBUG" => LevelFilter::DEBUG,
        "INFO" => LevelFilter::INFO,
        "ERROR" | "CRITICAL" => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    });
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(ConsoleWriter(console.clone()));
    // A second launcher in one process (a test) keeps the first one's log. The filter of many parts is slow to
    // build and so only built on request.
    let _already = match variable("DLROVER_LOG") {
        Some(filter) => {
            let filter = EnvFilter::builder().parse_lossy(filter);
            set_global_default(lines.with_env_filter(filter).finish())
        }
        None => set_global_default(lines.with_max_level(level.unwrap_or(LevelFilter::WARN)).finish()),
    };
}
