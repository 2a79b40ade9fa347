//! The file of a report: replaced in one step, within a time limit.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use processes::file_replacement::{PUBLIC, replace_file, temporary_path};

use crate::timed_write::in_time;

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
    in_time(move || {
        let fill = |file: &mut std::fs::File| file.write_all(text.as_bytes());
        replace_file(&target, &temporary_path(&target), PUBLIC, fill, || {}).map(drop)
    })
    .map_err(failed)
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
