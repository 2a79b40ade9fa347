//! `dlrover-master`: the job master as a process of its own.
//!
//! [`dlrover_args`] takes dlrover's own arguments out of argv; [`arguments`] are ours; [`settings`] is what they
//! and the environment ask for; [`mod@listen`] the port.

mod arguments;
mod dlrover_args;
mod listen;
mod settings;

use std::{fmt, future, io, process::ExitCode, sync::Arc};

use agent::{LogFormat, LogStyle};
use clap::FromArgMatches as _;
use master::{MasterConfig, MasterError, Web};
use rules::chain;
use rules::verdict::JobVerdict;
use serde_json::Map;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::TcpListenerStream;
use tracing::Level;

use self::{
    arguments::Arguments,
    listen::{ListenError, listen},
    settings::Settings,
};
use crate::{
    clap_error, completion,
    environment::Environment,
    failure::{FAILED, SIGNAL_BASE, SUCCEEDED, USAGE, print_line},
    open_files, telemetry, token_in_environment,
};

/// The program's name in its messages.
const NAME: &str = "dlrover-master";

/// The master could not serve. The job may be fine. An ElasticJob's operator starts another one, as
/// after any code but 1.
const CANNOT_SERVE: u8 = 3;

/// What keeps the master from serving.
#[derive(Debug, thiserror::Error)]
enum MasterMainError {
    /// The runtime of `dlrover-master` could not be started.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// The port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The server.
    #[error(transparent)]
    Serve(#[from] MasterError),
}

/// How it ended.
enum End {
    Verdict(JobVerdict),
    Signal(i32),
}

/// All arguments, as `clap` knows them.
#[must_use]
pub fn command() -> clap::Command {
    arguments::command()
}

/// `dlrover-master`: serves one job and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = probes::run_if_probe() {
        return code;
    }
    let known = dlrover_args::without_dlrover_args(std::env::args_os());
    let matches = arguments::command().try_get_matches_from(known);
    let arguments = match matches.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => return clap_error::answer("dlrover-master", error),
    };
    if let Some(shell) = arguments.print_completion {
        return completion::answer(shell, command());
    }
    let env: Vec<_> = std::env::vars_os().collect();
    // SAFETY: no thread has been started yet, and the environment was copied.
    unsafe { token_in_environment::forget() };
    #[cfg(debug_assertions)]
    if let Some(words) = Environment(&env).get_filled("DLROVER_MASTER_CRASH_AT") {
        master::crash_at(&words.to_string_lossy());
    }
    let settings = match Settings::read(&arguments, Environment(&env)) {
        Ok(settings) => settings,
        Err(error) => {
            refuse(LogStyle::default(), &error);
            return ExitCode::from(USAGE);
        }
    };
    let style = settings.log.style;
    telemetry::start(print_bytes, &settings.log, &env);
    if let Some(open) = &settings.open {
        log_line(style, Level::WARN, open);
    }
    for notice in &settings.notices {
        log_line(style, Level::WARN, notice);
    }
    let remembers = settings.state_dir.is_some();
    match serve(settings) {
        Ok(End::Verdict(JobVerdict::Succeeded)) => ExitCode::from(SUCCEEDED),
        Ok(End::Verdict(JobVerdict::Failed(_))) => ExitCode::from(FAILED),
        Ok(End::Signal(signal)) => {
            let next = match remembers {
                true => "start the job master again with the same --state-dir to continue the job",
                false => "start the job master again; the nodes then report their state to it",
            };
            let name = if signal == SignalKind::interrupt().as_raw_value() { "SIGINT" } else { "SIGTERM" };
            report(style, Level::WARN, format_args!("stopped by {name} before the job was over; {next}"));
            ExitCode::from(SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or_default()))
        }
        Err(MasterMainError::Serve(MasterError::Tls(error))) => {
            refuse(style, &error);
            ExitCode::from(USAGE)
        }
        Err(error) => {
            refuse(style, &error);
            ExitCode::from(CANNOT_SERVE)
        }
    }
}

/// Logs a message, unless it is not printed.
fn log_line(style: LogStyle, level: Level, words: impl fmt::Display) {
    if let Some(line) = style.message(level, NAME, &words.to_string()) {
        print_line(line);
    }
}

/// Logs how the job ended, or that the master stops.
fn report(style: LogStyle, level: Level, words: impl fmt::Display) {
    if let Some(line) = (LogStyle { is_quiet: false, ..style }).message(level, NAME, &words.to_string()) {
        print_line(line);
    }
}

/// Prints why the master does not serve.
fn refuse(style: LogStyle, error: &dyn std::error::Error) {
    let text = format!("error: {}", chain(error));
    print_line(match style.format {
        LogFormat::Text => format!("{NAME}: {text}"),
        LogFormat::Json => style.report(Level::ERROR, NAME, &text, Map::new()),
    });
}

fn print_bytes(line: &[u8]) {
    print_line(String::from_utf8_lossy(line).trim_end());
}

/// Serves the job; logs the address at the start and the verdict at the end.
fn serve(settings: Settings) -> Result<End, MasterMainError> {
    open_files::raise();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(MasterMainError::Runtime)?;
    let Settings {
        job_name,
        reach,
        policy,
        timeout,
        state_dir,
        topology_file,
        taints,
        stacks,
        http,
        trust,
        log,
        notices: _,
        open: _,
    } = settings;
    let style = log.style;
    let end = runtime.block_on(async {
        // Before the port is announced.
        let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        let listener = listen(&reach)?;
        let page = http.as_ref().and_then(Web::announcement);
        let config = MasterConfig {
            policy,
            timeout,
            state_dir,
            topology_file,
            taints,
            stacks,
            trust,
            http,
            log: Arc::new(move |line| {
                log_line(style, if line.is_warning() { Level::WARN } else { Level::INFO }, line);
            }),
        };
        let master = master::prepare(config)?;
        log_line(style, Level::INFO, format_args!("listening on {}, job \"{job_name}\"", listener.address));
        if let Some(page) = page {
            log_line(style, Level::INFO, page);
        }
        let stopped = async {
            let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return future::pending().await };
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
                _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
            }
        };
        let over = tokio::select! {
            over = master.until_over(TcpListenerStream::new(listener.socket)) => over?,
            signal = stopped => return Ok(End::Signal(signal)),
        };
        // The job is over: no signal changes how. The verdict is logged before the state is removed, and the exit code
        // follows it at once, since a master that is started again without it waits for another job.
        match over.verdict() {
            JobVerdict::Succeeded => report(style, Level::INFO, "the job succeeded"),
            JobVerdict::Failed(failure) => {
                report(style, Level::ERROR, format_args!("the job failed: {failure}"))
            }
        }
        Ok(End::Verdict(over.finish().await))
    });
    // A topology file that hangs does not delay the exit.
    runtime.shutdown_background();
    end
}
