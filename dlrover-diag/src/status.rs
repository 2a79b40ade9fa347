//! `dlrover-diag status` and `dlrover-diag events`: what a running job is doing.

mod events;
mod facts;
mod local;
mod progress;
mod screen;
mod source;

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::{Duration, Instant},
};

use chrono::{Local, SecondsFormat, TimeDelta};
use clap::value_parser;
use rules::job_status::JobStatus;
use tokio::{runtime, time::sleep};

use self::{
    events::{NewEvents, Printed},
    screen::{Style, clean, for_people, for_screen, headline},
    source::{Source, SourceError, Statuses},
};
use super::{line, log_line};
use launcher::{
    environment::Environment,
    failure::{FAILED, SUCCEEDED, USAGE},
};

/// How long a follower waits before it tries again to reach a master that it did not reach.
const RETRY: Duration = Duration::from_secs(1);

/// A screen is drawn again after this time, whether something has changed or not.
const TICK: Duration = Duration::from_secs(1);

/// What both subcommands take.
#[derive(Debug, Clone, clap::Args)]
struct Where {
    /// The job master; without it the job of this node's launcher [env: DLROVER_MASTER_ADDR]
    #[arg(value_name = "HOST:PORT")]
    master: Option<String>,
    /// The job (--rdzv-id), where several run on this node
    #[arg(long, value_name = "ID", conflicts_with = "master")]
    run_id: Option<String>,
    /// The job of the dlrover-run with this process id
    #[arg(long, value_name = "PID", conflicts_with_all = ["master", "run_id"],
          value_parser = value_parser!(u32).range(1..=0x7fff_ffff))]
    pid: Option<u32>,
    /// How long to wait for the first answer
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=600), default_value = "10")]
    timeout: u64,
    /// A file with the job's token [env: DLROVER_JOB_TOKEN, DLROVER_JOB_TOKEN_FILE]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run_id", "pid"])]
    job_token_file: Option<std::path::PathBuf>,
    /// The CA of the job master, PEM [env: DLROVER_TLS_CA]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run_id", "pid"])]
    tls_ca: Option<std::path::PathBuf>,
    /// A client certificate, PEM [env: DLROVER_TLS_CERT]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run_id", "pid"])]
    tls_cert: Option<std::path::PathBuf>,
    /// Its key, PEM [env: DLROVER_TLS_KEY]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run_id", "pid"])]
    tls_key: Option<std::path::PathBuf>,
    /// How long a job master that was reached once, and is away, is waited for: it may be restarted
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(0..=86_400), default_value = "600")]
    reconnect_timeout: u64,
}

/// After Ctrl-C, as a shell reports it: 128 and the signal's number. The end of the job was not seen.
const INTERRUPTED: u8 = 130;

/// Shows what a running job is doing: nodes, rounds, failures, the last check
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without HOST:PORT the launchers of this node are asked; they answer processes of their own user, and of root. Where \
they run several jobs, --pid or --run-id chooses one.

Exit code: 0 when there is a status, 1 when no job master answers, 2 when the command line cannot be used. With \
--watch: 0 when the job has succeeded, 1 when it has failed, 130 after Ctrl-C.")]
pub(super) struct Arguments {
    #[command(flatten)]
    at: Where,
    /// Show it again when it changes, until the job ends: a live screen, or a line for each change where standard
    /// output is no terminal
    #[arg(long, short)]
    watch: bool,
    /// One JSON document (dlrover.job-status/v1); with --watch one line for each change
    #[arg(long)]
    json: bool,
}

/// Follows the events of a running job, a line each, from the last 256 on
#[derive(Debug, clap::Args)]
pub(super) struct EventArguments {
    #[command(flatten)]
    at: Where,
    /// A JSON object for each event: number, time, message
    #[arg(long)]
    json: bool,
    /// Print the events so far, and exit
    #[arg(long)]
    no_follow: bool,
}

pub(super) fn main(arguments: &Arguments, env: Environment<'_>) -> ExitCode {
    let is_colourful = io::stdout().is_terminal() && env.get_filled("NO_COLOR").is_none();
    let away = Duration::from_secs(arguments.at.reconnect_timeout);
    with_source(&arguments.at, env, async |source, timeout| match (arguments.watch, arguments.json) {
        (false, is_json) => {
            let status = source.once(timeout).await?;
            Ok(match is_json {
                true => super::print(&pretty(&status), SUCCEEDED),
                false => {
                    super::print_painted(&for_people(&status, &Style::of_terminal(is_colourful)), SUCCEEDED)
                }
            })
        }
        (true, is_json) => {
            let is_screen = !is_json && io::stdout().is_terminal();
            let mut shown = Shown {
                is_json,
                is_screen,
                is_colourful,
                last: None,
                events: NewEvents::default(),
                drawn: None,
            };
            follow(source, (timeout, away), &mut shown).await
        }
    })
}

pub(super) fn events(arguments: &EventArguments, env: Environment<'_>) -> ExitCode {
    let away = Duration::from_secs(arguments.at.reconnect_timeout);
    with_source(&arguments.at, env, async |source, timeout| {
        let mut printed = Printed::new(arguments.json);
        if arguments.no_follow {
            let status = source.once(timeout).await?;
            return Ok(match printed.show(&status) {
                Ok(()) => ExitCode::from(SUCCEEDED),
                Err(error) => cannot_write(&error),
            });
        }
        follow(source, (timeout, away), &mut printed).await
    })
}

/// Runs `show` with the launcher or master that answers, and reports why none does.
fn with_source(
    at: &Where,
    env: Environment<'_>,
    show: impl AsyncFnOnce(Source, Duration) -> Result<ExitCode, SourceError>,
) -> ExitCode {
    let source = match Source::new(at, env) {
        Ok(source) => source,
        Err(error) => {
            log_line(format_args!("error: {}", rules::chain(&error)));
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log_line(format_args!("error: cannot start the runtime: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    let code = runtime.block_on(show(source, Duration::from_secs(at.timeout))).unwrap_or_else(|error| {
        log_line(format_args!("error: {}", rules::chain(&error)));
        ExitCode::from(if error.is_of_usage() { USAGE } else { FAILED })
    });
    runtime.shutdown_background();
    code
}

fn pretty(status: &JobStatus) -> String {
    serde_json::to_string_pretty(status).unwrap_or_default()
}

fn cannot_write(error: &io::Error) -> ExitCode {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return ExitCode::from(SUCCEEDED);
    }
    log_line(format_args!("error: cannot write to standard output: {error}"));
    ExitCode::from(FAILED)
}

/// What shows statuses as they come.
trait Show {
    fn show(&mut self, status: &JobStatus) -> io::Result<()>;
    /// There is no contact with the master.
    fn lost(&mut self, why: &str) -> io::Result<()>;
    /// A second has passed.
    fn tick(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn end(&mut self) {}
}

/// Shows statuses until the job is over. A master that was reached once is waited for, up to `away`.
async fn follow(
    mut source: Source,
    (timeout, away): (Duration, Duration),
    to: &mut impl Show,
) -> Result<ExitCode, SourceError> {
    let mut statuses = source.follow(timeout).await?;
    let mut last: Option<JobStatus> = None;
    // A connection that has just carried a status is opened again at once, others after a pause.
    let mut pause = Duration::ZERO;
    // One for all waits, and the first in each: none is missed in between.
    let ctrl_c = tokio::signal::ctrl_c();
    tokio::pin!(ctrl_c);
    let code = loop {
        let next = tokio::select! {
            biased;
            _ = &mut ctrl_c => break ExitCode::from(INTERRUPTED),
            // A status is read in pieces, and would be lost with a wait that is given up.
            next = next_or_tick(&mut statuses, to) => match next {
                Ok(next) => next,
                Err(error) => break cannot_write(&error),
            },
        };
        let why = match next {
            Ok(Some(status)) => {
                if let Err(error) = to.show(&status) {
                    break cannot_write(&error);
                }
                source.keep_to(&statuses, &status);
                last = Some(status);
                pause = Duration::ZERO;
                continue;
            }
            Ok(None) => "the connection was closed".to_owned(),
            Err(error) => rules::chain(&error).to_string(),
        };
        if let Some(end) = last.as_ref().and_then(|status| status.end.as_ref()) {
            break ExitCode::from(if end.succeeded { SUCCEEDED } else { FAILED });
        }
        if let Err(error) = to.lost(&why) {
            break cannot_write(&error);
        }
        tokio::select! {
            biased;
            _ = &mut ctrl_c => break ExitCode::from(INTERRUPTED),
            again = tokio::time::timeout(away, reconnect(&source, timeout, pause)) => match again {
                Ok(Ok(again)) => {
                    statuses = again;
                    pause = RETRY;
                }
                Ok(Err(error)) => {
                    to.end();
                    return Err(error);
                }
                Err(_) => {
                    to.end();
                    return Err(SourceError::Away { limit: away });
                }
            },
        }
    };
    to.end();
    Ok(code)
}

/// The next status. While there is none, the screen's times go on.
async fn next_or_tick(
    statuses: &mut Statuses,
    to: &mut impl Show,
) -> io::Result<Result<Option<JobStatus>, SourceError>> {
    let next = statuses.next();
    tokio::pin!(next);
    loop {
        tokio::select! {
            next = &mut next => return Ok(next),
            () = sleep(TICK) => to.tick()?,
        }
    }
}

/// Tries until there is a master, or none will come back.
async fn reconnect(source: &Source, timeout: Duration, mut pause: Duration) -> Result<Statuses, SourceError> {
    loop {
        sleep(pause).await;
        pause = RETRY;
        match source.follow(timeout).await {
            Err(error) if !error.is_final() => {}
            result => return result,
        }
    }
}

/// `status --watch`.
struct Shown {
    is_json: bool,
    is_screen: bool,
    is_colourful: bool,
    /// The last line, which is not repeated.
    last: Option<String>,
    events: NewEvents,
    /// What is on the screen, and since when.
    drawn: Option<(JobStatus, Instant)>,
}

impl Show for Shown {
    fn show(&mut self, status: &JobStatus) -> io::Result<()> {
        if self.is_json {
            return line(&serde_json::to_string(status).unwrap_or_default());
        }
        if self.is_screen {
            let style = Style::of_terminal(self.is_colourful);
            self.drawn = Some((status.clone(), Instant::now()));
            return redraw(&for_screen(status, &style));
        }
        let is_first = self.last.is_none();
        let (missed, events) = self.events.of(status);
        // What was before is not a change.
        if !is_first {
            events::lines(missed, events)?;
        }
        let text = headline(status);
        if self.last.as_ref() != Some(&text) {
            line(&format!("{} {text}", now()))?;
            self.last = Some(text);
        }
        Ok(())
    }

    fn lost(&mut self, why: &str) -> io::Result<()> {
        let text = format!("no contact with the job master: {why}; reconnecting");
        if self.is_screen {
            let mut out = io::stdout();
            write!(out, "\r\n{}", clean(&text))?;
            return out.flush();
        }
        log_line(text);
        Ok(())
    }

    fn tick(&mut self) -> io::Result<()> {
        let Some((status, since)) = &self.drawn else { return Ok(()) };
        let style = Style::of_terminal(self.is_colourful);
        redraw(&for_screen(&later(status, since.elapsed()), &style))
    }

    fn end(&mut self) {
        if self.is_screen {
            // The shell's prompt comes below the last screen.
            let _closed = line("");
        }
    }
}

/// The same status some time later: only its times differ. Those of a job that is over stay.
fn later(status: &JobStatus, by: Duration) -> JobStatus {
    let mut status = status.clone();
    let seconds = by.as_secs_f64();
    if status.end.is_none() {
        status.age_seconds += seconds;
        status.phase_seconds += seconds;
        status.nodes.iter_mut().for_each(|node| node.seconds += seconds);
    }
    status.master.seconds += by.as_secs();
    status.events.iter_mut().for_each(|event| event.seconds_ago += seconds);
    status.last_failure.iter_mut().for_each(|failure| failure.seconds_ago += seconds);
    status.check.iter_mut().for_each(|check| check.seconds_ago += seconds);
    if let Some(hang) = &mut status.hang {
        hang.seconds_ago += seconds;
        hang.idle_seconds += if hang.is_over { 0.0 } else { seconds };
    }
    status
}

/// Draws over the last screen, without clearing it first: nothing flickers.
fn redraw(text: &str) -> io::Result<()> {
    let mut screen = String::from("\x1b[H");
    for text in text.lines() {
        screen.push_str(text);
        screen.push_str("\x1b[K\r\n");
    }
    screen.push_str("\x1b[J");
    let mut out = io::stdout();
    out.write_all(screen.as_bytes())?;
    out.flush()
}

/// The time so many seconds ago, by the clock of this host.
fn at(seconds_ago: f64) -> String {
    let ago = TimeDelta::from_std(Duration::try_from_secs_f64(seconds_ago).unwrap_or_default());
    (Local::now() - ago.unwrap_or_default()).to_rfc3339_opts(SecondsFormat::Millis, false)
}

fn now() -> String {
    at(0.0)
}
