//! What a script sees of the prelude: nothing.

use nix::unistd::{Uid, User};

use super::*;

/// What the prelude leaves until torch is imported.
const FINDER: &str = "DlroverRunProgress";

/// Without the line that names the finder.
fn without_finder(dump: &[u8]) -> String {
    let text = String::from_utf8(dump.to_vec()).unwrap();
    text.split_inclusive('\n').filter(|line| !line.contains(FINDER)).collect()
}

/// Runs the same with and without the prelude: what both print is the same. Returns how often the finder was there.
#[track_caller]
fn same(worker: Worker<'_>, python: &Path, arguments: &[&str]) -> usize {
    let with = worker.run(python, arguments);
    let without = Worker { auto: false, ..worker }.run(python, arguments);
    // The path of the progress file is in the environment of both.
    let (seen, expected) = (without_finder(&with.stdout), String::from_utf8_lossy(&without.stdout));
    let differs = seen.lines().zip(expected.lines()).find(|(one, other)| one != other);
    assert!(seen == expected, "{python:?} {arguments:?}: {differs:#?}");
    let errors = |stderr: &[u8]| String::from_utf8_lossy(stderr).into_owned();
    assert_eq!(errors(&with.stderr), errors(&without.stderr), "{python:?} {arguments:?}");
    assert_eq!(with.status, without.status);
    String::from_utf8_lossy(&with.stdout).matches(FINDER).count()
}

#[test]
fn the_interpreter_is_as_it_would_be() {
    let files = ProgressFiles::new(1).unwrap();
    let dump = packages().join("dump.py");
    let dump = dump.to_str().unwrap();
    let counting = counting_interpreters();
    for python in interpreters() {
        let finders = usize::from(counting.contains(&python));
        let paths =
            ["", ":", "/nowhere", "/nowhere:", ":/nowhere", packages().to_str().unwrap()].map(OsString::from);
        for pythonpath in [None].into_iter().chain(paths.into_iter().map(Some)) {
            // An empty entry is the current directory, for Python 2 also where the variable has nothing else.
            let has_empty = |path: &OsString| path.is_empty() || path.to_string_lossy().contains(':');
            if finders == 0 && pythonpath.as_ref().is_some_and(has_empty) {
                continue;
            }
            let worker = Worker { pythonpath, ..Worker::new(&files, true) };
            assert_eq!(same(worker, &python, &[dump, "--steps=3"]), finders, "{python:?}");
        }
        let code = format!("exec(open({dump:?}).read())");
        for arguments in
            [&["-m", "dump", "--steps=3"][..], &["-u", dump], &["-OO", "-W", "error", dump], &["-c", &code]]
        {
            assert_eq!(same(Worker::new(&files, true), &python, arguments), finders, "{python:?}");
        }
    }
    for python in counting {
        assert_eq!(same(Worker::new(&files, true), &python, &["-X", "dev", "-m", "dump"]), 1, "{python:?}");
    }
}

#[test]
fn options_that_ignore_the_path_leave_no_prelude() {
    let files = ProgressFiles::new(1).unwrap();
    let code = format!("import sys; print([f for f in sys.meta_path if '{FINDER}' in str(f)])");
    for python in counting_interpreters() {
        for option in ["-E", "-I", "-S"] {
            let output = Worker::new(&files, true).run(&python, &[option, "-c", &code]);
            quiet(&output);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "[]\n", "{python:?} {option}");
        }
    }
}

#[test]
fn a_sitecustomize_is_loaded_as_it_would_be() {
    let files = ProgressFiles::new(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pythonpath = Some(std::env::join_paths([dir.path(), &packages()]).unwrap());
    let cases = [
        "import sys; sys.path.append('/added'); print(__name__, __file__, sorted(sys.modules)[-3:], len(sys.meta_path))",
        "raise ValueError('wrong')",
        "import no_such_module",
        "raise ImportError('wrong', name='sitecustomize') if str is not bytes else ImportError",
        "syntax error",
        "import sys; sys.modules[__name__] = sys",
    ];
    for python in interpreters() {
        for case in cases {
            fs::write(dir.path().join("sitecustomize.py"), case).unwrap();
            let worker = Worker { pythonpath: pythonpath.clone(), ..Worker::new(&files, true) };
            same(worker, &python, &["-m", "dump"]);
        }
    }
}

#[test]
fn an_entry_that_cannot_be_read_does_no_harm() {
    let dump = packages().join("dump.py");
    for python in interpreters() {
        let files = ProgressFiles::new(1).unwrap();
        let mut command = Worker::new(&files, true).command(&python);
        command.args(["-c", "print('trained')"]);
        // As if the launcher had been killed.
        drop(files);
        let output = command.output().unwrap();
        quiet(&output);
        assert_eq!(output.stdout, b"trained\n");
    }
    let Some(other_user) = Uid::effective().is_root().then(|| User::from_name("nobody").unwrap()).flatten()
    else {
        return;
    };
    let files = ProgressFiles::new(1).unwrap();
    // Interpreters of root's home are closed to others.
    for python in interpreters().into_iter().filter(|python| python.starts_with("/usr/bin")) {
        let mut command = Worker::new(&files, true).command(&python);
        std::os::unix::process::CommandExt::uid(&mut command, other_user.uid.as_raw());
        std::os::unix::process::CommandExt::gid(&mut command, other_user.gid.as_raw());
        let output = command.args(["-c", "print('trained')"]).current_dir("/").output().unwrap();
        quiet(&output);
        assert_eq!(output.stdout, b"trained\n", "{dump:?}");
    }
}

#[test]
fn errors_of_a_script_have_no_line_of_the_prelude() {
    let files = ProgressFiles::new(1).unwrap();
    let cases = [
        ("raise ValueError('wrong')", None),
        ("import no_such_module", None),
        ("import torch", Some("before")),
        ("import torch", Some("after")),
        ("import torch\nimport no_such_module", None),
        ("import torch\ntorch.optim.SGD().step(lambda: 1 / 0)", None),
        ("import torch\ntorch.optim.SGD().step()\ntorch.optim.SGD().step(lambda: 1 / 0)", None),
    ];
    for python in counting_interpreters() {
        for (code, broken) in cases {
            let extra = broken.map(|when| ("TORCH_IS_BROKEN", when)).into_iter().collect();
            let worker = Worker { extra, ..Worker::new(&files, true) };
            let output = worker.run(&python, &["-c", code]);
            assert!(!output.status.success(), "{output:?}");
            same(worker, &python, &["-c", code]);
        }
    }
}
