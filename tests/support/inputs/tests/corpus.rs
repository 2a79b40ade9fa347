//! Every file of `fuzz/corpus`, to its parser. Needs no fuzzer.

use std::{fs, path::PathBuf};

use dlrover_inputs::{TARGETS, feed};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus")
}

/// Names the file that was being read when something panics.
struct Reading(PathBuf);

#[expect(clippy::print_stderr, reason = "a panicking test has no other way to say it")]
impl Drop for Reading {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("while it was fed {}", self.0.display());
        }
    }
}

fn all_of(target: &str) {
    let files = fs::read_dir(corpus().join(target)).expect("a corpus");
    let mut fed = 0;
    for file in files {
        let reading = Reading(file.expect("an entry").path());
        feed(target, &fs::read(&reading.0).expect("readable"));
        fed += 1;
    }
    assert!(fed > 0, "the corpus of {target} is empty");
    feed(target, &[]);
}

macro_rules! corpora {
    ($($name:ident)*) => {
        $(#[test] fn $name() { all_of(stringify!($name)); })*

        /// Every target has a corpus and a test.
        #[test]
        fn every_target_has_a_corpus_and_a_test() {
            let mut folders: Vec<String> = fs::read_dir(corpus())
                .expect("a corpus")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
                .collect();
            folders.sort();
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(folders, names);
            assert_eq!([$(stringify!($name)),*], names[..]);
        }
    };
}

corpora! {
    check_command ckpt_line ckpt_manifest ckpt_slot error_file gate gpu_topology guard inventory job journal
    journal_header mx_smi nvidia_smi proc_stat ring_meet stack_json stack_upstream store switchbox topology
}
