//! The output of workers: to files, to the console, and kept for the failure report.
//!
//! ```text
//! worker fd 1/2 --pipe or pty--> relay thread --+--> log file           (tee: every byte, first)
//!                                               +--> 64 KiB tail        (standard error without a file)
//!                                               +--> bounded queue --> console thread --> the launcher's fd 1/2
//! ```
//!
//! These are plain threads with blocking IO, so the launcher's single-threaded runtime never waits for a file, a pipe
//! or a console. Back pressure is passed on: a stuck console blocks its queue, the queue its relay, the relay its
//! pipe, the pipe the worker. Nothing is lost, and nothing else is blocked.
//!
//! Read first: [`plan`], where each stream goes; then [`GenerationLogs`], the agent's interface, and [`relay`], the
//! threads.

mod console;
mod cut_off;
mod error;
mod generation_logs;
mod lines;
mod log_style;
mod notices;
mod opening;
mod plain;
mod plan;
mod prefix;
mod pty;
mod queues;
mod relay;
mod run_dir;
mod run_logs;
mod stream;
mod tail;

pub use console::Console;
pub use error::LogError;
pub use generation_logs::{Drained, GenerationLogs, WorkerOutput};
pub use log_style::{LogFormat, LogStyle};
pub use plain::plain;
pub(crate) use run_dir::planned_folder;
pub use run_logs::Logs;
pub use stream::Stream;
pub use tail::TAIL_BYTES;
