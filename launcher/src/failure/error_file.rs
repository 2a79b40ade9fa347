//! The error file of the launcher itself, which its parent reads to learn why it failed.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use agent::Report;
use rules::failure::{Failure, Outcome};
use serde_json::Value;

use super::root::{dated, root_of};
use crate::{environment::Environment, timed_write::in_time};

/// The error file of the launcher itself, which its parent reads to learn why it failed.
pub fn own_error_file(env: &[(OsString, OsString)]) -> Option<PathBuf> {
    Environment(env).get_filled("TORCHELASTIC_ERROR_FILE").map(PathBuf::from)
}

/// When the launcher itself was given an error file, the root cause's is copied there with its exit code, for
/// the scheduler above us (torchrun: the same). `message` is for a failure that is not a worker's.
///
/// # Errors
/// When the copy cannot be written.
pub fn copy_root_cause(report: &Report, message: &str, target: Option<&Path>) -> Result<(), CopyError> {
    let Some(target) = target else { return Ok(()) };
    let group = match &report.outcome {
        Outcome::Succeeded => return Ok(()),
        Outcome::Failed(Failure::Workers(group)) => group,
        Outcome::Failed(_) | Outcome::Interrupted(_) => return record_own(message, Some(target)),
    };
    let failures = dated(group, &report.workers);
    let Some(root) = failures.get(root_of(&failures, &report.workers)) else { return Ok(()) };
    let worker = report.workers.get(&root.local_rank);
    let Some(Ok(file)) = worker.and_then(|worker| worker.error_file.as_ref()) else { return Ok(()) };
    let mut document = file.document.clone();
    if let Some(Value::Object(error)) = document.get_mut("message") {
        error.insert("errorCode".into(), root.cause.python_code().into());
    }
    write(target, document.to_string())
}

/// When the launcher itself was given an error file, a failure of its own is written there, in the form of
/// `@record` (torchrun: the same, with its traceback).
///
/// # Errors
/// When the file cannot be written.
pub fn record_own(message: &str, target: Option<&Path>) -> Result<(), CopyError> {
    let Some(target) = target else { return Ok(()) };
    let message = message.trim_end();
    let now = chrono::Utc::now().timestamp().to_string();
    let document = serde_json::json!({
        "message": {"message": message, "extraInfo": {"py_callstack": message, "timestamp": now}}
    });
    write(target, document.to_string())
}

fn write(target: &Path, text: String) -> Result<(), CopyError> {
    let path = target.to_owned();
    in_time(move || fs::write(path, text)).map_err(|source| CopyError { path: target.to_owned(), source })
}

/// The launcher's own error file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the error file of the launcher itself, TORCHELASTIC_ERROR_FILE={}", path.display())]
pub struct CopyError {
    /// Where to.
    pub path: PathBuf,
    /// The system error.
    #[source]
    pub source: io::Error,
}
