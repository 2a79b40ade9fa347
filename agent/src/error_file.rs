//! A worker's own report of its failure: the file at `TORCHELASTIC_ERROR_FILE`, which torch's `@record` writes, and
//! any program may. It is foreign input: read with bounds, never fatal.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use nix::libc;
use serde_json::Value;

/// Largest file that is read. A Python call stack has some KiB.
pub const MAX_BYTES: u64 = 4 << 20;

/// A worker's own report.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorFile {
    pub path: PathBuf,
    /// The call stack if there is one, else the message.
    pub account: String,
    /// The worker's timestamp, in whole seconds since 1970.
    pub unix_secs: Option<i64>,
    pub document: Value,
}

impl ErrorFile {
    /// The worker's words for its failure; for an exception its type and text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        let message = self.document.get("message")?;
        message.as_str().or_else(|| message.get("message")?.as_str())
    }
}

/// Why an error file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ErrorFileError {
    /// The error file of a worker could not be read.
    #[error("cannot read the error file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The error file is a directory, a pipe or another special file.
    #[error("the error file {} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The error file is too large.
    #[error("the error file {} is larger than 4 MiB", path.display())]
    TooLarge { path: PathBuf },
    /// The error file is not JSON.
    #[error("the error file {} is not JSON", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// The error file is JSON, but has no `message`.
    #[error("the error file {} has no \"message\"", path.display())]
    NoMessage { path: PathBuf },
}

/// Reads an error file; `None` if the worker left none.
///
/// # Errors
/// When there is a file that cannot be used.
pub fn read(path: &Path) -> Result<Option<ErrorFile>, ErrorFileError> {
    let at = || path.to_owned();
    // Without O_NONBLOCK, opening a pipe at this path would wait for ever.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ErrorFileError::Read { path: at(), source }),
    };
    let read = |source| ErrorFileError::Read { path: at(), source };
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(ErrorFileError::NotAFile { path: at() });
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ErrorFileError::TooLarge { path: at() });
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let document =
        serde_json::from_slice(&bytes).map_err(|source| ErrorFileError::Json { path: at(), source })?;
    parse(path, document).map(Some)
}

/// The first second after the year 9999.
const END_OF_9999: i64 = 253_402_300_800;

fn parse(path: &Path, document: Value) -> Result<ErrorFile, ErrorFileError> {
    let message = document.get("message").ok_or(ErrorFileError::NoMessage { path: path.to_owned() })?;
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let details = message.get("extraInfo");
    let call_stack = details.and_then(|details| details.get("py_callstack"));
    let account = match (call_stack, message.get("message")) {
        (Some(stack), _) => text(stack),
        (None, Some(inner)) => text(inner),
        (None, None) => text(message),
    };
    let stamp = details.and_then(|details| details.get("timestamp")).or_else(|| document.get("timestamp"));
    let unix_secs = stamp.and_then(|stamp| stamp.as_i64().or_else(|| stamp.as_str()?.trim().parse().ok()));
    // Milliseconds, as other writers of such files have, would be a year of five digits.
    let unix_secs = unix_secs.filter(|seconds| (0..END_OF_9999).contains(seconds));
    Ok(ErrorFile { path: path.to_owned(), account, unix_secs, document })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Option<ErrorFile>, ErrorFileError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.json");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_time_that_is_none_is_left_out() {
        for (stamp, expected) in [
            ("\"1763683244000\"", None),
            ("-1", None),
            ("253402300800", None),
            ("\"x\"", None),
            ("253402300799", Some(253_402_300_799)),
        ] {
            let text = format!(
                "{{\"message\": {{\"message\": \"boom\", \"extraInfo\": {{\"timestamp\": {stamp}}}}}}}"
            );
            assert_eq!(of(&text).unwrap().unwrap().unix_secs, expected, "{stamp}");
        }
    }

    #[test]
    fn both_forms_of_a_record_are_understood() {
        let recorded = r#"{"message": {"message": "ValueError: boom", "extraInfo":
            {"py_callstack": "Traceback\n  x", "timestamp": "1763683200"}}}"#;
        let file = of(recorded).unwrap().unwrap();
        assert_eq!((file.account.as_str(), file.unix_secs), ("Traceback\n  x", Some(1_763_683_200)));
        let file = of(r#"{"message": "text", "timestamp": 123}"#).unwrap().unwrap();
        assert_eq!((file.account.as_str(), file.unix_secs), ("text", Some(123)));
        let file = of(r#"{"message": {"message": "only"}}"#).unwrap().unwrap();
        assert_eq!((file.account.as_str(), file.unix_secs), ("only", None));
    }

    #[test]
    fn a_bad_file_is_named_and_not_fatal() {
        assert!(of("{").unwrap_err().to_string().ends_with("is not JSON"));
        assert!(of("[]").unwrap_err().to_string().ends_with("has no \"message\""));
        assert_eq!(of("").unwrap(), None);
        assert_eq!(read(Path::new("/nowhere/error.json")).unwrap(), None);
        assert!(matches!(read(Path::new("/tmp")), Err(ErrorFileError::NotAFile { .. })));
    }

    #[test]
    fn a_pipe_in_its_place_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&path), Err(ErrorFileError::NotAFile { .. })));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(0u8..=255, 0..200)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("error.json");
            std::fs::write(&path, &bytes).unwrap();
            let _answer = read(&path);
        }

        #[test]
        fn any_json_gives_an_answer(number in 0i64..10, key in "message|timestamp|extraInfo") {
            let text = format!(r#"{{"{key}": {{"message": {number}, "extraInfo": {number}}}}}"#);
            if let Ok(document) = serde_json::from_str(&text) {
                let _answer = parse(Path::new("x"), document);
            }
        }
    }
}
