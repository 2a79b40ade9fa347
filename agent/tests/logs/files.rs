//! The directories and files of the logs.

use super::*;

#[test]
fn each_generation_has_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let config = LogConfig {
        redirects: vec![OUT, Streams::NONE],
        tee: vec![Streams::NONE, ERR],
        ..config(&folder, 2)
    };
    let mut logs = logs(config, console);
    let run_dir = logs.run_dir().unwrap().to_owned();
    assert!(run_dir.starts_with(folder.path()));
    for (restart_count, name) in [(0, "attempt_0"), (0, "attempt_0.1"), (1, "attempt_1"), (0, "attempt_0.2")]
    {
        let mut generation = open(&mut logs, restart_count, 2);
        let mut worker = shell(&mut generation, 0, &format!("echo {name}"));
        assert!(worker.wait().unwrap().success());
        drain(&mut generation, LONG_TIMEOUT);
        let attempt = run_dir.join(name);
        assert_eq!(generation.error_file(LocalRank(1)), attempt.join("1/error.json"));
        assert_eq!(generation.log_files(RANK_0), (Some(attempt.join("0/stdout.log")), None));
        assert_eq!(generation.log_files(LocalRank(1)), (None, Some(attempt.join("1/stderr.log"))));
    }
    let expected = ["0", "0/stdout.log", "1", "1/stderr.log"];
    for name in ["attempt_0", "attempt_0.1", "attempt_0.2", "attempt_1"] {
        let attempt = run_dir.join(name);
        assert_eq!(fs::read_to_string(attempt.join("0/stdout.log")).unwrap(), format!("{name}\n"));
        assert_eq!(tree(&attempt), expected.map(|path| attempt.join(path)).into());
    }
}

fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.insert(path);
    }
    found
}

#[test]
fn without_a_log_dir_there_are_no_files_and_output_stays_on_the_console() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, err) = Screen::new().read();
    let config = LogConfig {
        dir: LogDir::Nowhere,
        redirects: vec![BOTH],
        stdout_filters: vec!["x".into()],
        ..tee(&folder, BOTH, 1)
    };
    let mut logs = logs(config, console);
    assert_eq!(logs.run_dir(), None);
    let mut generation = open(&mut logs, 0, 1);
    assert_eq!(generation.error_file(RANK_0), PathBuf::new());
    assert_eq!(generation.log_files(RANK_0), (None, None));
    assert!(shell(&mut generation, 0, "echo seen >&2").wait().unwrap().success());
    drain(&mut generation, LONG_TIMEOUT);
    drop((generation, logs));
    assert_eq!(err.join().unwrap(), b"seen\n");
}

#[test]
fn a_log_dir_that_is_a_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let config = LogConfig { dir: LogDir::At(path.clone()), ..config(&folder, 1) };
    let error = Logs::new(config, "job", "default", Screen::new().console).unwrap_err();
    assert!(matches!(&error, LogError::NotADirectory { path: named } if *named == path));
}

#[test]
fn a_log_file_that_is_emptied_meanwhile_has_no_hole() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let config = LogConfig { redirects: vec![OUT], ..config(&folder, 1) };
    let mut logs = logs(config, console);
    let mut generation = open(&mut logs, 0, 1);
    let file = generation.log_files(RANK_0).0.unwrap();
    let script = r#"
import os, time
os.write(1, b"first\n")
while os.fstat(1).st_size: time.sleep(0.001)
os.write(1, b"second\n")
"#;
    let mut worker = python(&mut generation, 0, script);
    await_length(&file, |length| length == 6);
    File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    assert!(worker.wait().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), b"second\n");
}
