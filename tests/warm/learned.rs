//! `--warm=restart` without a list of modules: the template imports what a worker had after its first optimizer step.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;
use support::{launch::Launch, wait_for};

use crate::{facts, module, ours, template};

/// Stands in for torch, with the hooks of its optimizers.
const TORCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/tests/progress/packages");

/// Says which process imports it, and how that is scheduled.
const OBSERVED: &str = r#"
import os

with open(os.path.join(os.environ["PROBE_OUT"], "imports"), "a") as file:
    file.write("%d %d\n" % (os.getpid(), os.sched_getscheduler(0)))
"#;

/// Of the user, beside the script.
const HELPER: &str = r#"
import os

def note(name, word):
    with open(os.path.join(os.environ["PROBE_OUT"], name), "a") as file:
        file.write("%d %s\n" % (os.getpid(), word))

note("helpers", __name__)
"#;

/// Makes a step; rank 1 of attempt 0 is killed when the test says so.
const SCRIPT: &str = r#"
import sys
before = sorted(sys.modules)
import json, os, signal, time
import observed, torch, helper, edited

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
out = os.environ["PROBE_OUT"]
helper.note("mains", __name__)
path = os.path.join(out, "worker.%s.%s" % (rank, attempt))
with open(path + ".new", "w") as file:
    json.dump({"pid": os.getpid(), "before": before, "scheduler": os.sched_getscheduler(0)}, file)
os.rename(path + ".new", path)
torch.optim.SGD().step()
if attempt == "0":
    while not os.path.exists(os.path.join(out, "go")):
        time.sleep(0.005)
    if rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"#;

fn launch() -> Option<Launch> {
    let launch = Launch::new(ours()?);
    let (job, lib) = (launch.dir().join("job"), launch.dir().join("lib"));
    fs::create_dir_all(&job).expect("our own directory");
    fs::write(job.join("train.py"), SCRIPT).expect("our own directory");
    fs::write(job.join("helper.py"), HELPER).expect("our own directory");
    // Found without the script's directory, which the template does not search, but below it.
    module(&job, "edited", "");
    module(launch.dir(), "observed", OBSERVED);
    let launch = launch
        .flags(["--standalone", "-v", "--nproc-per-node=2", "--max-restarts=1", "--warm=restart"])
        .env("PYTHONPATH", format!("{}:{}:{TORCH}", lib.display(), job.join("lib").display()))
        .script(job.join("train.py"))
        .cwd(job);
    Some(launch)
}

/// Whether a process of this user may leave SCHED_IDLE.
fn can_leave_idle() -> bool {
    let code = "import os\nfor policy in (os.SCHED_IDLE, os.SCHED_OTHER):\n    \
                os.sched_setscheduler(0, policy, os.sched_param(0))";
    Command::new("python3").args(["-c", code]).output().expect("python3").status.success()
}

/// The scheduling policy of a process: 0 is SCHED_OTHER, 5 is SCHED_IDLE.
fn policy(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_name, fields) = stat.rsplit_once(')').expect("its name is in brackets");
    fields.split_ascii_whitespace().nth(38).expect("the policy is the 41st field").to_owned()
}

/// The process ids at the begin of the lines, with what follows.
fn lines(dir: &Path, name: &str) -> Vec<(u64, String)> {
    let text = fs::read_to_string(dir.join(name)).expect("the script has written it");
    let line = |line: &str| {
        let (pid, word) = line.split_once(' ').expect("a number and a word");
        (pid.parse().expect("a process id"), word.to_owned())
    };
    text.lines().map(line).collect()
}

fn has(facts: &Value, name: &str) -> bool {
    facts["before"].as_array().expect("a list").iter().any(|module| module == name)
}

#[test]
fn the_second_generation_is_forked_with_the_modules_of_the_first() {
    let Some(launch) = launch() else { return };
    let run = launch.start();
    wait_for("the template is ready", || {
        run.stderr().contains("the template of warm workers is ready").then_some(())
    });
    let policy_when_ready = policy(template(&run).pid);
    run.touch("go");
    let run = run.finish().expect_code(0);
    let [first, second] = [0, 1].map(|attempt| [0, 1].map(|rank| facts(&run, rank, attempt)));
    for started in &first {
        assert!(!has(started, "observed") && !has(started, "torch"), "{started:#}");
    }
    for forked in &second {
        for name in ["observed", "torch", "torch.optim.sgd"] {
            assert!(has(forked, name), "{name} is missing: {forked:#}\n{run:#?}");
        }
        for name in ["helper", "edited"] {
            assert!(!has(forked, name), "{name} is of the user: {forked:#}");
        }
        // SCHED_OTHER, as any worker.
        assert_eq!(forked["scheduler"], 0, "{forked:#}");
    }
    let pid = |facts: &Value| facts["pid"].as_u64().expect("a process id");
    let workers: BTreeSet<u64> = first.iter().chain(&second).map(pid).collect();
    assert_eq!(workers.len(), 4, "{workers:?}");
    // The template runs neither the script nor what is beside it, and each worker does so once.
    for name in ["mains", "helpers"] {
        let lines = lines(run.dir(), name);
        assert_eq!(lines.len(), 4, "{name}: {lines:?}");
        assert_eq!(lines.into_iter().map(|(pid, _)| pid).collect::<BTreeSet<_>>(), workers, "{name}");
    }
    let imports = lines(run.dir(), "imports");
    let of_template: Vec<_> = imports.iter().filter(|(pid, _)| !workers.contains(pid)).collect();
    assert_eq!((imports.len(), of_template.len()), (3, 1), "{imports:?}");
    let idle = if can_leave_idle() { "5" } else { "0" };
    assert_eq!(of_template[0].1, idle, "the policy of the template while it imports");
    // SCHED_OTHER, so that the forks of a restart do not wait for a CPU that is idle.
    assert_eq!(policy_when_ready, "0", "the policy of the template that is ready");
}

/// More than the buffer of a socket, for an interpreter that reads it when it has started.
#[test]
fn a_long_list_and_an_interpreter_that_starts_slowly() {
    let Some(launch) = launch() else { return };
    let script = launch.dir().join("job/train.py");
    let before = "import types\nfor number in range(5000):\n    \
                  one = types.ModuleType('made_%d' % number)\n    \
                  one.__file__ = '/nowhere/' + 'x' * 200\n    sys.modules[one.__name__] = one\n\
                  torch.optim.SGD().step()\n";
    let after = "elif rank == '0':\n    open(os.path.join(out, 'second'), 'w').close()\n    \
                 while not os.path.exists(os.path.join(out, 'done')):\n        time.sleep(0.005)\n";
    let text = SCRIPT.replace("torch.optim.SGD().step()\n", before);
    fs::write(&script, [&text, after].concat()).expect("our own directory");
    let python = launch.dir().join("python3");
    // Other shells leave out variables that they cannot name, as cargo sets.
    let wrapper = "#!/bin/bash\ncase \"$DLROVER_WARM_TEMPLATE\" in\n    ''|probe) ;;\n    *) \
                   echo > \"$PROBE_OUT/slow\"; until [ -e \"$PROBE_OUT/fast\" ]; do sleep 0.01; done\nesac\n\
                   exec python3 \"$@\"\n";
    fs::write(&python, wrapper).expect("our own directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&python, mode).expect("our own file");
    let run = launch.env("PYTHON_EXEC", python).start();
    run.await_file("slow");
    // The death of a worker is noticed meanwhile.
    run.touch("go");
    run.await_file("second");
    run.touch("fast");
    wait_for("the template is ready, or refused", || {
        let said = run.stderr();
        let is_decided =
            said.contains("the template of warm workers is ready") || said.contains("workers are not forked");
        is_decided.then_some(())
    });
    run.touch("done");
    let run = run.finish().expect_code(0);
    assert!(run.stderr.contains("the template of warm workers is ready"), "{run:#?}");
}

/// Only the prelude takes the variable out of the environment.
#[test]
fn a_worker_without_the_prelude_is_not_asked_for_its_modules() {
    let Some(launcher) = ours() else { return };
    let run = Launch::new(launcher)
        .flags(["--standalone", "--warm=restart", "--progress=declared"])
        .steps(&["dump"])
        .finish()
        .expect_code(0);
    let worker = run.dump(0, 0);
    assert!(worker.env.contains_key("DLROVER_PROGRESS_FILE"), "{:?}", worker.env);
    assert!(!worker.env.contains_key("DLROVER_WARM_LIST"), "{:?}", worker.env);
}
