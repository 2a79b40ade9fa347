//! Random states through Python's own zipfile and pickle.

use std::ffi::OsStr;

use crate::{case, python};

/// Any state, written as a client writes it, comes back equal: types, objects that are one object, every bit
/// of tensors.
#[test]
fn states_come_back_as_they_were() {
    for seed in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let script = |verb: &str| {
            let arguments = [verb.as_ref(), folder.path().as_os_str(), seed.as_ref(), OsStr::new("70")];
            python::run("python3".as_ref(), "trees.py", &arguments, &[])
        };
        script("make");
        case::write_all(folder.path());
        assert_eq!(script("check").trim(), "checked 72 states");
    }
}

/// Items of a .distcp file lie where a client computes them to be, from the meta alone, and are zips.
#[test]
fn clients_know_where_items_are() {
    let folder = tempfile::tempdir().unwrap();
    let script = |verb: &str| {
        python::run("python3".as_ref(), "items.py", &[verb.as_ref(), folder.path().as_os_str()], &[])
    };
    script("make");
    case::write_all(folder.path());
    assert_eq!(script("check").trim(), "checked 24 files");
}

/// A storage of more than 4 GiB, and storages behind it.
#[test]
fn other_zip_readers_know_files_beyond_4_gib() {
    let folder = tempfile::tempdir().unwrap();
    let script = |verb: &str| {
        python::run("python3".as_ref(), "large.py", &[verb.as_ref(), folder.path().as_os_str()], &[])
    };
    script("make");
    case::write_all(folder.path());
    assert_eq!(script("check").trim(), "checked");
}
