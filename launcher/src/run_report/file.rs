//! The file of a report: replaced in one step, within a time limit.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use processes::file_replacement::{PUBLIC, replace_file, temporary_path};

/// How long the write may take: the file may be on a network file system that hangs.
const WRITE: Duration = Duration::from_secs(5);

/// The report could not be written. The exit code stays what it is.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the report {} (--report-json): {error}; the exit code is not affected", path.display())]
pub(crate) struct ReportFileError {
    path: PathBuf,
    error: io::Error,
}

/// Replaces the file.
pub(super) fn write(path: &Path, text: String) -> Result<(), ReportFileError> {
    let failed = |error| ReportFileError { path: path.to_owned(), error };
    let target = path.to_owned();
    let (done, written) = mpsc::channel();
    let replace = move || {
        let fill = |file: &mut std::fs::File| file.write_all(text.as_bytes());
        let replaced = replace_file(&target, &temporary_path(&target), PUBLIC, fill, || {});
        let _late = done.send(replaced.map(drop));
    };
    let writer = thread::Builder::new().name("report".into()).stack_size(256 << 10).spawn(replace);
    writer.map_err(failed)?;
    match written.recv_timeout(WRITE) {
        Ok(result) => result.map_err(failed),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_last_one_and_an_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        for text in ["a longer one\n", "second\n"] {
            write(&path, text.to_owned()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = write(&folder.path().join("gone/run.json"), String::new()).unwrap_err();
        assert!(error.to_string().contains("gone/run.json (--report-json)"), "{error}");
    }
}
