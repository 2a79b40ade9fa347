//! The files as a shell and a hostile worker use them.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::PathBuf,
    process::Command,
};

use nix::unistd::{Uid, User};

use super::*;

fn text_of(files: &ProgressFiles) -> PathBuf {
    let (name, path) = files.environment(LocalRank(0), false, None).remove(0);
    assert_eq!(name, "DLROVER_PROGRESS_FILE");
    path.into()
}

fn counter_of(files: &ProgressFiles) -> File {
    let (name, path) = files.environment(LocalRank(0), true, None).remove(1);
    assert_eq!(name, "DLROVER_PROGRESS_COUNTER");
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn shell(files: &ProgressFiles, script: &str) {
    quiet(&Worker::new(files, false).run("sh", &["-c", script]));
}

#[test]
fn a_shell_tells_its_steps_and_what_it_is_busy_with() {
    let mut files = ProgressFiles::new(1).unwrap();
    let nothing = Sample { local_rank: LocalRank(0), step: None, changes: 0, busy_with: None };
    assert_eq!(only(&mut files), nothing);
    shell(&files, "echo 12 > $DLROVER_PROGRESS_FILE");
    let told = Sample { step: Some(12), changes: 1, ..nothing };
    assert_eq!(only(&mut files), told);
    // No news.
    assert_eq!(only(&mut files), told);
    shell(&files, "echo 12 > $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 2, ..told.clone() });
    shell(&files, "echo - checkpoint > $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 3, busy_with: Some("checkpoint".into()), ..told.clone() });
    // Emptied, as a writer does first, is a change, and the rest is as it was.
    shell(&files, ": > $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 4, busy_with: Some("checkpoint".into()), ..told.clone() });
    shell(&files, "echo loss is 0.3 > $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 5, ..told.clone() });
    shell(&files, "touch $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 6, ..told.clone() });
    shell(&files, "echo '~' > $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 6, ..told.clone() });
    shell(&files, "echo - > $DLROVER_PROGRESS_FILE");
    assert_eq!(only(&mut files), Sample { changes: 7, ..told });
}

#[test]
fn two_writes_of_one_instant_are_both_seen() {
    let mut files = ProgressFiles::new(1).unwrap();
    for step in 10..99 {
        std::fs::write(text_of(&files), format!("{step}")).unwrap();
        let first = only(&mut files);
        // The clock of the file system has not moved on, and the length is the same.
        std::fs::write(text_of(&files), format!("{}", step + 1)).unwrap();
        let second = only(&mut files);
        assert_eq!((first.step, second.step), (Some(step), Some(step + 1)));
        assert!(second.changes > first.changes);
    }
}

#[test]
fn each_worker_has_its_own_files() {
    let mut files = ProgressFiles::new(3).unwrap();
    let of = |rank| files.environment(LocalRank(rank), true, None);
    assert_eq!(of(3), []);
    assert_ne!(of(1), of(2));
    std::fs::write(&of(1)[0].1, "7").unwrap();
    let steps: Vec<_> = files.sample().into_iter().map(|sample| (sample.local_rank.0, sample.step)).collect();
    assert_eq!(steps, [(0, None), (1, Some(7)), (2, None)]);
}

#[test]
fn a_file_that_only_grows_takes_no_memory() {
    let mut files = ProgressFiles::new(1).unwrap();
    let mut appending = OpenOptions::new().append(true).open(text_of(&files)).unwrap();
    for step in 0..100_000_u32 {
        writeln!(appending, "{step}").unwrap();
    }
    assert_eq!(only(&mut files).step, Some(99_999));
    assert_eq!(appending.metadata().unwrap().blocks(), 0);
    // What the launcher did itself is no progress.
    let changes = only(&mut files).changes;
    assert_eq!(only(&mut files).changes, changes);
    writeln!(appending, "7").unwrap();
    assert_eq!(only(&mut files).step, Some(7));
    // A writer that goes on where it was leaves a hole.
    let hole = OpenOptions::new().write(true).open(text_of(&files)).unwrap();
    hole.write_at(b"8\n", 1 << 40).unwrap();
    assert_eq!(only(&mut files).step, Some(8));
}

#[test]
fn the_counter_is_the_step_where_none_is_written() {
    let mut files = ProgressFiles::new(1).unwrap();
    let counter = counter_of(&files);
    counter.write_at(&5_u64.to_ne_bytes(), 0).unwrap();
    let sample = only(&mut files);
    assert_eq!((sample.step, sample.changes), (Some(5), 1));
    // A mapping of a file that became shorter would be the end of the worker.
    counter.set_len(0).unwrap_err();
    counter.write_at(b"x", 8).unwrap_err();
    // Backwards is a change too, and no reason to stop.
    counter.write_at(&2_u64.to_ne_bytes(), 0).unwrap();
    let sample = only(&mut files);
    assert_eq!((sample.step, sample.changes), (Some(2), 2));
    std::fs::write(text_of(&files), "100").unwrap();
    assert_eq!(only(&mut files).step, Some(100));
}

#[test]
fn an_old_worker_does_not_write_into_new_files() {
    let mut files = ProgressFiles::new(1).unwrap();
    let mut old = Vec::new();
    for _ in 0..4 {
        let (path, counter) = (text_of(&files), counter_of(&files));
        let written = OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::write(&path, "12 checkpoint").unwrap();
        assert_eq!(only(&mut files).step, Some(12));
        old.push((path, written, counter));
        files.reset().unwrap();
        for (path, written, counter) in &old {
            assert!(!path.exists(), "{path:?}");
            written.write_at(b"13", 0).unwrap();
            counter.write_at(&[1; 8], 0).unwrap();
        }
        let nothing = Sample { local_rank: LocalRank(0), step: None, changes: 0, busy_with: None };
        assert_eq!(only(&mut files), nothing);
    }
}

#[test]
fn another_user_can_neither_read_nor_write() {
    let Some(other_user) = Uid::effective().is_root().then(|| User::from_name("nobody").unwrap()).flatten()
    else {
        return;
    };
    let files = ProgressFiles::new(1).unwrap();
    let mut command = Command::new("cat");
    std::os::unix::process::CommandExt::uid(&mut command, other_user.uid.as_raw());
    let output = command.arg(text_of(&files)).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}
