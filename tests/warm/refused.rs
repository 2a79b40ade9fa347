//! When workers are not forked: they start without the template, and one line says why.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::Command,
    time::{Duration, SystemTime},
};

use nix::sys::signal::Signal;
use serde_json::Value;
use support::{
    launch::{Launch, Outcome},
    trainer, wait_for,
};

use crate::{facts, is_forked, launch, module, ours, template};

/// The file of `python3`, without the links and scripts that lead there.
fn real_python() -> PathBuf {
    let code = "import os; print(os.readlink('/proc/self/exe'))";
    let found = Command::new("python3").args(["-c", code]).output().expect("python3");
    String::from_utf8(found.stdout).expect("a path").trim().into()
}

/// Whether the module `odd` was there when the script began: the template has imported it.
fn has_odd(facts: &Value) -> bool {
    facts["has_modules"].as_array().expect("a list").iter().any(|name| name == "odd")
}

/// Runs one worker whose template imports the module `odd`, and returns the line about it.
pub(crate) fn reason(text: &str, change: impl Fn(Launch) -> Launch) -> Option<String> {
    let launch = launch(ours()?, "start").flags(["--warm-modules=decimal,odd"]);
    module(launch.dir(), "odd", text);
    let lib = launch.dir().join("lib");
    let run = change(launch.env("PYTHONPATH", lib)).finish().expect_code(0);
    assert!(!is_forked(&facts(&run, 0, 0)), "{run:#?}");
    Some(line(&run))
}

fn line(run: &Outcome) -> String {
    let begin = "workers are not forked from a template: ";
    let lines: Vec<&str> = run.stderr.lines().filter_map(|line| Some(line.split_once(begin)?.1)).collect();
    let [line] = lines[..] else { panic!("one line is expected: {run:#?}") };
    line.to_owned()
}

#[test]
fn an_import_that_fails() {
    let Some(reason) = reason("raise OSError('no such GPU')", |launch| launch) else { return };
    assert_eq!(reason, "importing `odd` failed: OSError: no such GPU");
}

#[test]
fn a_module_that_is_not_there() {
    let Some(reason) = reason("", |launch| launch.flags(["--warm-modules=decimal,nowhere"])) else { return };
    assert_eq!(
        reason,
        "there is no module `nowhere` outside of the directory of the script; check --warm-modules"
    );
}

#[test]
fn an_import_that_starts_a_thread() {
    let text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()";
    let Some(reason) = reason(text, |launch| launch) else { return };
    assert_eq!(reason, "imports started 1 thread, which forked workers would not have");
}

#[test]
fn an_import_that_starts_a_process() {
    let text = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)";
    let Some(reason) = reason(text, |launch| launch) else { return };
    assert_eq!(reason, "an import started a process");
}

#[test]
fn an_import_that_opens_a_socket() {
    let Some(reason) = reason("import socket\nkept = socket.socket()", |launch| launch) else { return };
    assert!(reason.starts_with("an import opened socket:["), "{reason}");
    assert!(reason.ends_with("], which workers would share"), "{reason}");
}

#[test]
fn a_template_that_takes_more_memory_than_it_may() {
    let text = "kept = bytearray(64 << 20)\nfor at in range(0, len(kept), 4096):\n    kept[at] = 1";
    let Some(reason) = reason(text, |launch| launch.flags(["--warm-memory=32"])) else { return };
    assert!(reason.ends_with(" MiB of memory, more than --warm-memory allows (32 MiB)"), "{reason}");
}

#[test]
fn an_interpreter_that_ignores_the_prelude() {
    let run = |launch: Launch| {
        let python = launch.dir().join("python3");
        fs::write(&python, "#!/bin/sh\nexec python3 -I \"$@\"\n").expect("our own directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&python, mode).expect("our own file");
        launch.env("PYTHON_EXEC", python)
    };
    let Some(reason) = reason("", run) else { return };
    assert_eq!(
        reason,
        "the interpreter does not import the launcher's sitecustomize (it is started with -E, -I or -S, or by a wrapper)"
    );
}

#[test]
fn a_wrapper_that_changes_the_environment() {
    let run = |launch: Launch| {
        let python = launch.dir().join("python3");
        let text = format!("#!/bin/sh\nBOUND_TO=$LOCAL_RANK exec {} \"$@\"\n", real_python().display());
        fs::write(&python, text).expect("our own directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&python, mode).expect("our own file");
        launch.env("PYTHON_EXEC", python)
    };
    let Some(reason) = reason("", run) else { return };
    assert_eq!(reason, "a wrapper of the interpreter, a .pth file or sitecustomize changes BOUND_TO");
}

/// As pyenv's, with a variable that is set to nothing.
#[test]
fn a_wrapper_that_chooses_the_interpreter_is_no_reason() {
    let Some(launcher) = ours() else { return };
    let launch = launch(launcher, "start");
    let python = launch.dir().join("python3");
    // Other shells leave out variables that they cannot name, as cargo sets.
    let text = format!("#!/bin/bash\nPYENV_HOOK_PATH= exec {} \"$@\"\n", real_python().display());
    fs::write(&python, text).expect("our own directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&python, mode).expect("our own file");
    let run = launch.env("PYTHON_EXEC", python).finish().expect_code(0);
    let facts = facts(&run, 0, 0);
    assert!(is_forked(&facts), "{run:#?}");
    assert_eq!(facts["environ"]["PYENV_HOOK_PATH"], "", "{facts:#}");
}

/// Two ranks, a restart, and what `odd` says; returns the line of the refusal.
pub(crate) fn refusal(text: &str, change: impl Fn(Launch) -> Launch) -> Option<String> {
    let launch = launch(ours()?, "start").flags(["--warm-modules=decimal,odd", "--nproc-per-node=2"]);
    module(launch.dir(), "odd", text);
    let lib = launch.dir().join("lib");
    let run = change(launch.env("PYTHONPATH", lib)).finish().expect_code(0);
    let begin = "workers are no longer forked from the template: ";
    let line = run.stderr.lines().find_map(|line| Some(line.split_once(begin)?.1.to_owned()));
    Some(line.unwrap_or_else(|| panic!("no refusal: {run:#?}")))
}

#[test]
fn an_import_that_reads_a_variable_that_differs_between_rounds() {
    let text = "import os\nkept = os.environ['TORCHELASTIC_RESTART_COUNT']";
    let Some(line) = refusal(text, |launch| launch.args(["--restarts=1"])) else { return };
    assert_eq!(
        line,
        "TORCHELASTIC_RESTART_COUNT differs from its value in the template, and an import has read it; a later restart may \
         use a new template"
    );
}

/// As Lightning does. What else is imported stays in the template.
#[test]
fn a_package_that_reads_a_variable_that_differs_between_ranks_is_left_out() {
    let Some(launcher) = ours() else { return };
    // `outer` imports it in the next template, which was started without it.
    let launch = launch(launcher, "start").flags(["--warm-modules=odd,outer,decimal", "--nproc-per-node=2"]);
    module(launch.dir(), "outer", "def load():\n    import odd\nload()\n");
    let package = launch.dir().join("lib/odd");
    fs::create_dir_all(&package).expect("our own directory");
    let reads = "import os\nfrom decimal import Decimal\nkept = os.environ.get('LOCAL_RANK')\n";
    fs::write(package.join("__init__.py"), "from . import rank\n").expect("our own directory");
    fs::write(package.join("rank.py"), reads).expect("our own directory");
    let lib = launch.dir().join("lib");
    let run = launch.env("PYTHONPATH", lib).args(["--restarts=1"]).finish().expect_code(0);
    for (rank, attempt) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let facts = facts(&run, rank, attempt);
        assert!(is_forked(&facts), "{facts:#}\n{run:#?}");
        assert!(!has_odd(&facts), "{facts:#}");
    }
    for package in ["odd", "outer"] {
        let told = format!("does not import `{package}`, which reads LOCAL_RANK while it is imported");
        assert_eq!(run.stderr.matches(&told).count(), 1, "{run:#?}");
    }
}

#[test]
fn a_package_that_reads_such_a_variable_and_changes_the_process() {
    let text = "import os\nif os.environ['LOCAL_RANK']: os.chdir('/')";
    let Some(reason) = reason(text, |launch| launch.flags(["--nproc-per-node=2"])) else { return };
    assert_eq!(reason, "an import changed the working directory, CPUs, limits or signals of the process");
}

#[test]
fn an_import_that_looks_for_names_of_its_own_is_no_reason() {
    let Some(launcher) = ours() else { return };
    let launch = launch(launcher, "start").flags(["--warm-modules=decimal,odd", "--nproc-per-node=2"]);
    let text = "import os\n\
                mine = {name: value for name, value in os.environ.items() if name.startswith('ODD_')}";
    module(launch.dir(), "odd", text);
    let lib = launch.dir().join("lib");
    let run = launch.env("PYTHONPATH", lib).finish().expect_code(0);
    for rank in 0..2 {
        let facts = facts(&run, rank, 0);
        assert!(is_forked(&facts) && has_odd(&facts), "{facts:#}\n{run:#?}");
    }
    assert!(!run.stderr.contains("does not import"), "{run:#?}");
}

/// Where the template reads RANK, workers of two ranks are not forked with what it has read.
#[test]
fn an_import_that_keeps_the_environment_or_reads_a_copy_of_it() {
    for text in [
        "import os\nkept = dict(os.environ)",
        "import os\nkept = os.environ.copy()",
        "import os\nkept = os.environ.copy()['LOCAL_RANK']",
        "import os\nkept = os.environb[b'LOCAL_RANK']",
        "import os\nclass Settings:\n    env = {**os.environ}",
    ] {
        let Some(launcher) = ours() else { return };
        let launch = launch(launcher, "start").flags(["--warm-modules=decimal,odd", "--nproc-per-node=2"]);
        module(launch.dir(), "odd", text);
        let lib = launch.dir().join("lib");
        let run = launch.env("PYTHONPATH", lib).finish().expect_code(0);
        for rank in 0..2 {
            let facts = facts(&run, rank, 0);
            assert!(is_forked(&facts) && !has_odd(&facts), "{text}: {facts:#}\n{run:#?}");
        }
        assert!(run.stderr.contains("does not import `odd`, which reads "), "{run:#?}");
    }
}

#[test]
fn a_sitecustomize_that_reads_a_variable_that_differs_between_ranks() {
    let run = |launch: Launch| {
        module(launch.dir(), "sitecustomize", "import os\nkept = os.environ.get('LOCAL_RANK')");
        launch.flags(["--nproc-per-node=2"])
    };
    let Some(reason) = reason("", run) else { return };
    assert_eq!(reason, "sitecustomize reads LOCAL_RANK, whose value differs between workers");
}

/// Libraries count CPUs when they are imported: OpenMP does, for its threads.
#[test]
fn a_worker_that_has_fewer_cpus() {
    let Some(launcher) = ours() else { return };
    if std::thread::available_parallelism().expect("a number").get() < 2 {
        return;
    }
    let launch = launch(launcher, "start");
    // The workers that come next have those of the guard.
    let text = "import os, sys\n\
                attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n\
                with open(os.environ['PROBE_OUT'] + '/worker.' + attempt, 'w') as file:\n    \
                file.write('%s %d' % ('decimal' in sys.modules, len(os.sched_getaffinity(0))))\n\
                if attempt == '0':\n    \
                os.sched_setaffinity(os.getppid(), [min(os.sched_getaffinity(0))])\n    \
                sys.exit(3)";
    let script = launch.dir().join("train.py");
    fs::write(&script, text).expect("our own directory");
    let run = launch.script(script).finish().expect_code(0);
    assert!(run.file("worker.0").is_some_and(|said| said.starts_with("True ")), "{run:#?}");
    assert_eq!(run.file("worker.1").as_deref(), Some("False 1"), "{run:#?}");
    let told = "forked from the template: a worker has 1 CPU, and the template has imported with ";
    assert!(run.stderr.contains(told), "{run:#?}");
}

/// As in many containers: Python then sets LC_CTYPE by itself.
#[test]
fn a_locale_that_is_not_set_is_no_reason() {
    let Some(launcher) = ours() else { return };
    let run = launch(launcher, "start").env("LANG", "C").env("LC_ALL", "").env("LC_CTYPE", "C").finish();
    let run = run.expect_code(0);
    let facts = facts(&run, 0, 0);
    assert!(is_forked(&facts), "{run:#?}");
    assert_eq!(facts["environ"]["LC_CTYPE"], "C.UTF-8", "{facts:#}");
}

#[test]
fn a_module_that_has_changed() {
    let run = |launch: Launch| {
        let odd = launch.dir().join("lib/odd.py");
        launch.args(["--restarts=1".into(), "--touch".into(), odd.into_os_string()])
    };
    let Some(line) = refusal("", run) else { return };
    assert!(line.ends_with("/lib/odd.py has changed; a later restart may use a new template"), "{line}");
}

/// As after the clock was set back, or from an archive of a host whose clock is ahead.
#[test]
fn a_module_that_is_dated_in_the_future_is_no_reason() {
    let Some(launcher) = ours() else { return };
    let launch = launch(launcher, "start").flags(["--warm-modules=decimal,odd"]);
    module(launch.dir(), "odd", "");
    let odd = fs::File::options().write(true).open(launch.dir().join("lib/odd.py")).expect("our own file");
    odd.set_modified(SystemTime::now() + Duration::from_secs(86_400)).expect("our own file");
    let lib = launch.dir().join("lib");
    let run = launch.env("PYTHONPATH", lib).finish().expect_code(0);
    assert!(is_forked(&facts(&run, 0, 0)), "{run:#?}");
}

#[test]
fn an_interpreter_that_has_changed() {
    // As a virtual environment whose interpreter is another one after an upgrade.
    let run = |is_link: bool| {
        move |launch: Launch| {
            let bin = launch.dir().join("venv/bin");
            let real = real_python();
            let home = real.parent().expect("a directory").display();
            fs::create_dir_all(&bin).expect("our own directory");
            fs::write(launch.dir().join("venv/pyvenv.cfg"), format!("home = {home}\n"))
                .expect("our own directory");
            let python = bin.join("python3");
            if is_link {
                symlink(&real, &python).expect("our own directory");
            } else {
                let _bytes = fs::copy(&real, &python).expect("our own directory");
            }
            let _bytes = fs::copy(&real, bin.join("python3.new")).expect("our own directory");
            let args = ["--restarts=1".into(), "--replace".into(), python.clone().into_os_string()];
            launch.env("PYTHON_EXEC", python).args(args)
        }
    };
    for is_link in [true, false] {
        let Some(line) = refusal("", run(is_link)) else { return };
        let end = "/venv/bin/python3 has changed; a later restart may use a new template";
        assert!(line.starts_with("the interpreter /") && line.ends_with(end), "link: {is_link}: {line}");
    }
}

#[test]
fn a_file_beside_the_script_that_hides_a_module() {
    let run = |launch: Launch| {
        let script = launch.dir().join("warm.py");
        fs::copy(trainer("warm.py"), &script).expect("our own directory");
        let hiding = launch.dir().join("decimal.py");
        launch.script(script).args(["--restarts=1".into(), "--touch".into(), hiding.into_os_string()])
    };
    let Some(line) = refusal("", run) else { return };
    assert_eq!(
        line,
        "decimal.py is beside the script and shadows an imported module; a later restart may use a new template"
    );
}

#[test]
fn a_template_that_is_killed() {
    let Some(launcher) = ours() else { return };
    let launch = launch(launcher, "start");
    let text = "import sys\nassert 'decimal' in sys.modules, 'it was not forked'\nimport os, time\n\
                out = os.environ['PROBE_OUT']\nopen(out + '/ready', 'w').close()\n\
                while not os.path.exists(out + '/go'): time.sleep(0.005)";
    let script = launch.dir().join("train.py");
    fs::write(&script, text).expect("our own directory");
    let run = launch.script(script).start();
    run.await_file("ready");
    template(&run).signal(Signal::SIGKILL);
    wait_for("the launcher says so", || run.stderr().contains("the template has exited").then_some(()));
    run.touch("go");
    let _run = run.finish().expect_code(0);
}

#[test]
fn a_template_that_hangs() {
    let Some(launcher) = ours() else { return };
    let launch = launch(launcher, "start").flags(["--max-restarts=1"]);
    let text = "import sys\nforked = 'decimal' in sys.modules\nimport os, time\n\
                out, attempt = os.environ['PROBE_OUT'], os.environ['TORCHELASTIC_RESTART_COUNT']\n\
                print('attempt', attempt, 'forked', forked, flush=True)\n\
                if attempt == '0':\n    open(out + '/ready', 'w').close()\n    \
                while not os.path.exists(out + '/go'): time.sleep(0.005)\n    sys.exit(3)";
    let script = launch.dir().join("train.py");
    fs::write(&script, text).expect("our own directory");
    let run = launch.script(script).start();
    run.await_file("ready");
    template(&run).signal(Signal::SIGSTOP);
    run.touch("go");
    let run = run.finish().expect_code(0);
    let told = "workers are no longer forked from the template: the template forked no worker in time";
    assert_eq!(run.stderr.matches(told).count(), 1, "{run:#?}");
    assert!(run.stdout.contains("attempt 0 forked True"), "{run:#?}");
    assert!(run.stdout.contains("attempt 1 forked False"), "{run:#?}");
}

#[test]
fn workers_that_are_no_python_programs() {
    let Some(launcher) = ours() else { return };
    let launch = Launch::new(launcher).flags(["--standalone", "--warm=start", "--no-python"]).script("true");
    let run = launch.finish().expect_code(0);
    assert!(
        run.stderr.contains("`--warm=start` is ignored: the workers are not started with Python"),
        "{run:#?}"
    );
}
