//! Scripts that change what their imports see, which happens only in workers and not in the template.

use std::{ffi::OsString, fs, path::Path};

use support::{
    launch::{Launch, Outcome, Running},
    wait_for,
};

use crate::{module, ours};

/// Stands in for torch, with the hooks of its optimizers.
const TORCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/tests/progress/packages");

/// After what the case does, says `SAID`, makes a step, and waits for the second attempt.
const END: &str = r#"
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
out = os.environ["PROBE_OUT"]
path = os.path.join(out, "worker.%s.%s" % (rank, attempt))
with open(path + ".new", "w") as file:
    file.write("%s %s" % ("forked" if was_there else "started", SAID))
os.rename(path + ".new", path)
torch.optim.SGD().step()
if attempt == "0" and WAITS:
    while not os.path.exists(os.path.join(out, "go")):
        time.sleep(0.005)
    if rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"#;

/// A script that runs `text` before its end; with `waits`, the second attempt begins when `go` is there.
fn script(launch: &Launch, text: &str, waits: bool) -> OsString {
    let waits = if waits { "True" } else { "False" };
    let begin = "import sys\nwas_there = 'torch' in sys.modules\nimport os, signal, time\n";
    let text = format!("{begin}WAITS = {waits}\n{text}\nimport torch\n{END}");
    let job = launch.dir().join("job");
    fs::create_dir_all(&job).expect("our own directory");
    fs::write(job.join("train.py"), text).expect("our own directory");
    job.join("train.py").into_os_string()
}

fn launch(text: &str, when: &str, add: impl Fn(&Path)) -> Option<Launch> {
    let launch = Launch::new(ours()?);
    let script = script(&launch, text, when == "restart");
    add(launch.dir());
    let lib = launch.dir().join("lib").display().to_string();
    // So that what is below `lib` is not of the user.
    let job = launch.dir().join("job");
    let launch = launch
        .cwd(job)
        .flags(["--standalone", "-v", "--nproc-per-node=2", "--max-restarts=1"])
        .flags([format!("--warm={when}")])
        .env("PYTHONPATH", format!("{lib}:{TORCH}"))
        .script(script);
    Some(launch)
}

/// What each worker said: the first generation imports what the template is then made of.
fn learned(text: &str, add: impl Fn(&Path)) -> Option<Outcome> {
    decided(launch(text, "restart", add)?)
}

fn decided(launch: Launch) -> Option<Outcome> {
    let run = launch.start();
    let is_decided = |run: &Running| {
        let said = run.stderr();
        said.contains("the template of warm workers is ready") || said.contains("workers are not forked from")
    };
    wait_for("the template is ready, or refused", || is_decided(&run).then_some(()));
    run.touch("go");
    Some(run.finish().expect_code(0))
}

/// The workers of the first start are forked, or the line says why not.
fn at_start(text: &str, add: impl Fn(&Path)) -> Option<Outcome> {
    Some(launch(text, "start", add)?.finish().expect_code(0))
}

/// Each worker of the attempt was started as without a template, and says this.
#[track_caller]
fn expect_started(run: &Outcome, attempt: u32, said: &str, reason: &str) {
    for rank in 0..2 {
        let worker = run.file(&format!("worker.{rank}.{attempt}")).unwrap_or_default();
        assert_eq!(worker, format!("started {said}"), "{run:#?}");
    }
    let begin = "workers are not forked from a template: ";
    let lines: Vec<&str> = run.stderr.lines().filter_map(|line| Some(line.split_once(begin)?.1)).collect();
    assert_eq!(lines, [reason.replace("DIR", &run.dir().display().to_string())], "{run:#?}");
}

#[track_caller]
fn expect_forked(run: &Outcome, attempt: u32, said: &str) {
    for rank in 0..2 {
        let worker = run.file(&format!("worker.{rank}.{attempt}")).unwrap_or_default();
        assert_eq!(worker, format!("forked {said}"), "{run:#?}");
    }
}

/// A library of which the script has a version of its own, beside its directory.
fn two_versions(dir: &Path) {
    module(dir, "picked", "version = 'installed'");
    fs::create_dir_all(dir.join("vendored")).expect("our own directory");
    fs::write(dir.join("vendored/picked.py"), "version = 'vendored'").expect("our own directory");
}

const VENDORED: &str = "sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)) + '/vendored')\n\
                        import picked\nSAID = picked.version";

#[test]
fn a_library_that_workers_import_from_elsewhere() {
    let Some(run) = learned(VENDORED, two_versions) else { return };
    expect_started(
        &run,
        1,
        "vendored",
        "workers import `picked` from DIR/vendored/picked.py, and the template from DIR/lib/picked.py; add the \
         directory of the former to PYTHONPATH",
    );
}

/// The names of files of users are the names of packages too that others have installed by mistake.
#[test]
fn a_file_of_the_user_and_an_installed_package_of_its_name() {
    let add = |dir: &Path| {
        module(dir, "utils", "version = 'installed'");
        fs::write(dir.join("job/utils.py"), "version = 'own'").expect("our own directory");
        module(dir, "tools", "version = 'installed'");
        fs::create_dir_all(dir.join("job/more/tools")).expect("our own directory");
        fs::write(dir.join("job/more/tools/__init__.py"), "").expect("our own directory");
        fs::write(dir.join("job/more/tools/parts.py"), "version = 'own'").expect("our own directory");
    };
    let text = "import utils\nSAID = utils.version";
    let Some(run) = at_start(text, add) else { return };
    expect_forked(&run, 0, "own");
    let text = "sys.path.insert(0, os.path.dirname(__file__) + '/more')\n\
                import utils, tools.parts\nSAID = utils.version + tools.parts.version";
    let Some(run) = learned(text, add) else { return };
    expect_forked(&run, 1, "ownown");
}

#[test]
fn a_script_that_changes_the_path_before_any_worker_has_run() {
    let Some(run) = at_start(VENDORED, two_versions) else { return };
    expect_started(
        &run,
        0,
        "vendored",
        "line 5 of DIR/job/train.py changes sys.path, so the template may import other files than workers; add the \
         directory to PYTHONPATH, or use --warm=restart",
    );
}

#[test]
fn a_helper_beside_the_script_that_changes_the_path() {
    let add = |dir: &Path| {
        two_versions(dir);
        let text =
            "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.dirname(__file__)) + '/vendored')\n";
        fs::write(dir.join("job/helper.py"), text).expect("our own directory");
    };
    let text = "from helper import os\nimport picked\nSAID = picked.version";
    let Some(run) = at_start(text, add) else { return };
    expect_started(
        &run,
        0,
        "vendored",
        "line 2 of DIR/job/helper.py changes sys.path, so the template may import other files than workers; add the \
         directory to PYTHONPATH, or use --warm=restart",
    );
}

/// What helps a user of `--warm=restart`.
#[test]
fn a_script_that_changes_the_path_where_there_is_no_list() {
    for (flag, step, remedy) in [
        ("--warm-modules=picked", "", "leave out --warm-modules"),
        ("--progress=declared", DECLARE, "use --progress=auto"),
    ] {
        let text = format!("{VENDORED}\n{step}");
        let Some(launch) = launch(&text, "restart", two_versions) else { return };
        let Some(run) = decided(launch.flags([flag])) else { return };
        let reason = format!(
            "line 5 of DIR/job/train.py changes sys.path, so the template may import other files than workers; add the \
             directory to PYTHONPATH, or {remedy}"
        );
        expect_started(&run, 1, "vendored", &reason);
    }
}

/// Declares a step.
const DECLARE: &str = "with open(os.environ['DLROVER_PROGRESS_FILE'], 'w') as file: file.write('1')";

/// A library that does with what it finds.
fn optional(dir: &Path) {
    module(
        dir,
        "chooser",
        "try:\n    import extra\nexcept ImportError:\n    extra = None\nhas = bool(extra)",
    );
    fs::create_dir_all(dir.join("job/vendored")).expect("our own directory");
    fs::write(dir.join("job/vendored/extra.py"), "").expect("our own directory");
}

#[test]
fn an_optional_library_that_only_workers_find() {
    let text = "sys.path.append(os.path.join(os.path.dirname(__file__), 'vendored'))\n\
                import chooser\nSAID = chooser.has";
    let Some(run) = learned(text, optional) else { return };
    expect_started(
        &run,
        1,
        "True",
        "workers import `extra` from DIR/job/vendored/extra.py, and an import in the template does not find it; add its \
         directory to PYTHONPATH",
    );
}

#[test]
fn an_optional_library_beside_the_script() {
    let add = |dir: &Path| {
        optional(dir);
        fs::write(dir.join("job/extra.py"), "").expect("our own directory");
    };
    let text = "import chooser\nSAID = chooser.has";
    let Some(run) = at_start(text, add) else { return };
    for rank in 0..2 {
        assert_eq!(run.file(&format!("worker.{rank}.0")).as_deref(), Some("started True"), "{run:#?}");
    }
    let told = "extra.py is beside the script, and an import in the template does not find it";
    assert!(run.stderr.contains(told), "{run:#?}");
}

#[test]
fn a_library_that_the_script_hides() {
    let text = "sys.modules['extra'] = None\nimport chooser\nSAID = chooser.has";
    let add = |dir: &Path| {
        optional(dir);
        module(dir, "extra", "");
    };
    let Some(run) = learned(text, add) else { return };
    expect_started(
        &run,
        1,
        "False",
        "an import in the template imports `extra`, which workers do not import",
    );
}

/// A library that reads the environment once.
fn reads(dir: &Path) {
    module(dir, "hub", "import os\nis_offline = os.environ.get('ODD_OFFLINE')");
}

const OFFLINE: &str = "os.environ['ODD_OFFLINE'] = '1'\nimport hub\nSAID = hub.is_offline";

#[test]
fn a_variable_that_the_script_sets_and_an_import_reads() {
    let Some(run) = learned(OFFLINE, reads) else { return };
    expect_started(
        &run,
        1,
        "1",
        "the script changes ODD_OFFLINE, which `hub` reads while it is imported; set it in the environment of the job",
    );
    let text = "import torch\nos.environ['ODD_OFFLINE'] = '1'\nimport hub\nSAID = hub.is_offline";
    let Some(run) = learned(text, reads) else { return };
    assert!(run.stderr.contains("the script changes ODD_OFFLINE, which `hub` reads"), "{run:#?}");
}

#[test]
fn a_variable_that_the_script_sets_before_any_worker_has_run() {
    let Some(run) = at_start(OFFLINE, reads) else { return };
    expect_started(
        &run,
        0,
        "1",
        "the script changes ODD_OFFLINE, which `hub` reads while it is imported; set it in the environment of the job",
    );
    for change in [
        "os.environ.setdefault('ODD_OFFLINE', '1')",
        "os.environ.update(ODD_OFFLINE='1')",
        "os.environ.update({'ODD_OFFLINE': '1'})",
        "from os import environ; environ['ODD_OFFLINE'] = '1'",
        "os.environ |= {'ODD_OFFLINE': '1'}",
    ] {
        let text = format!("{change}\nimport hub\nSAID = hub.is_offline");
        let Some(run) = at_start(&text, reads) else { return };
        assert!(
            run.stderr.contains("the script changes ODD_OFFLINE, which `hub` reads"),
            "{change}: {run:#?}"
        );
    }
    let text = "for name in ['ODD_OFFLINE']: os.environ[name] = '1'\nimport hub\nSAID = hub.is_offline";
    let Some(run) = at_start(text, reads) else { return };
    expect_started(
        &run,
        0,
        "1",
        "line 5 of DIR/job/train.py changes variables of the environment that it does not name; set them in the \
         environment of the job, or use --warm=restart",
    );
}

#[test]
fn a_variable_that_native_libraries_read() {
    let text = "os.environ['OMP_NUM_THREADS'] = '7'\nSAID = 'set'";
    let reason = "the script changes OMP_NUM_THREADS, which libraries read when they are loaded; set it in the \
                  environment of the job";
    let Some(run) = learned(text, reads) else { return };
    expect_started(&run, 1, "set", reason);
    let Some(run) = at_start(text, reads) else { return };
    expect_started(&run, 0, "set", reason);
}

#[test]
fn changes_that_imports_do_not_see() {
    let text = "os.environ['OMP_NUM_THREADS'] = '1'\nos.environ['ODD_OTHER'] = '2'\n\
                os.environ.setdefault('ODD_OFFLINE', '1')\nprint(sys.path, 'torch' in sys.modules)\n\
                import hub\nSAID = hub.is_offline";
    for when in ["start", "restart"] {
        let Some(launch) = launch(text, when, reads) else { return };
        let run = launch.env("OMP_NUM_THREADS", "1").env("ODD_OFFLINE", "0").start();
        if when == "restart" {
            wait_for("the template is ready", || {
                run.stderr().contains("the template of warm workers is ready").then_some(())
            });
            run.touch("go");
        }
        expect_forked(&run.finish().expect_code(0), u32::from(when == "restart"), "0");
    }
    // Added at the end, and no library looks for it; a variable that the import itself sets.
    let text = "sys.path.append(os.path.dirname(os.path.dirname(__file__)) + '/vendored')\nimport picked, own, torch\n\
                os.environ['ODD_OFFLINE'] = '1'\nSAID = picked.version";
    let add = |dir: &Path| {
        two_versions(dir);
        module(dir, "own", "import os\nos.environ['ODD_OWN'] = os.environ.get('ODD_OWN', '1')\nimport hub");
        reads(dir);
    };
    let Some(run) = learned(text, add) else { return };
    expect_forked(&run, 1, "installed");
}

/// Set around an import, and as before when the list is made.
#[test]
fn a_variable_that_the_script_changes_for_an_import_only() {
    for (text, line) in [
        ("os.environ['ODD_OFFLINE'] = '1'\nimport hub\ndel os.environ['ODD_OFFLINE']", 5),
        ("os.environ['ODD_OFFLINE'] = '1'\nimport hub\nos.environ.pop('ODD_OFFLINE')", 5),
        (
            "saved = dict(os.environ)\nos.environ.update(ODD_OFFLINE='1')\nimport hub\n\
             os.environ.clear()\nos.environ.update(saved)",
            6,
        ),
    ] {
        let Some(run) = learned(&format!("{text}\nSAID = hub.is_offline"), reads) else { return };
        let reason = format!(
            "line {line} of DIR/job/train.py changes ODD_OFFLINE, which `hub` reads while it is imported, and the script \
             may change it back; set it in the environment of the job"
        );
        expect_started(&run, 1, "1", &reason);
    }
    // Not in this run.
    let text =
        "import hub\nif len(sys.argv) > 1:\n    os.environ['ODD_OFFLINE'] = '1'\nSAID = hub.is_offline";
    let Some(run) = learned(text, reads) else { return };
    expect_forked(&run, 1, "None");
}

/// Python reads its own variables when it starts, and the template has.
#[test]
fn a_seed_for_the_hashes_of_child_processes() {
    let text = "os.environ['PYTHONHASHSEED'] = str(len(sys.argv))\nSAID = 'set'";
    let Some(run) = at_start(text, |_| ()) else { return };
    expect_forked(&run, 0, "set");
    let Some(run) = learned(text, |_| ()) else { return };
    expect_forked(&run, 1, "set");
}

#[test]
fn a_script_with_an_environment_of_its_own() {
    let text =
        "os.environ = dict(os.environ)\nos.environ['ODD_OTHER'] = '1'\nimport hub\nSAID = hub.is_offline";
    let Some(run) = learned(text, reads) else { return };
    expect_forked(&run, 1, "None");
    let text =
        "os.environ = dict(os.environ)\nos.environ['ODD_OFFLINE'] = '1'\nimport hub\nSAID = hub.is_offline";
    let Some(run) = learned(text, reads) else { return };
    expect_started(
        &run,
        1,
        "1",
        "the script changes ODD_OFFLINE, which `hub` reads while it is imported; set it in the environment of the job",
    );
}

/// Which are run by any use of them.
#[test]
fn modules_that_wait_for_their_first_use() {
    let add = |dir: &Path| {
        module(
            dir,
            "waiting",
            "import os\nopen(os.environ['PROBE_OUT'] + '/used', 'w').close()\nraise SystemExit(3)",
        );
    };
    let text = "from importlib import util\nspec = util.find_spec('waiting')\n\
                spec.loader = util.LazyLoader(spec.loader)\n\
                sys.modules['waiting'] = module = util.module_from_spec(spec)\nspec.loader.exec_module(module)\n\
                import types\nclass Odd(types.ModuleType):\n    \
                def __getattribute__(self, name): raise SystemExit(4)\n\
                sys.modules['odd'] = Odd('odd')\nSAID = 'trained'";
    let Some(run) = learned(text, add) else { return };
    expect_forked(&run, 1, "trained");
    assert!(run.file("used").is_none(), "{run:#?}");
}

/// `PYTHONPATH=.`, as where a project is not installed.
#[test]
fn packages_of_the_project_are_not_imported() {
    let text = "import project.parts\nSAID = project.parts.number";
    for when in ["start", "restart"] {
        let add = |dir: &Path| {
            let package = dir.join("job/project");
            fs::create_dir_all(&package).expect("our own directory");
            let note =
                "import os\nwith open(os.environ['PROBE_OUT'] + '/imports', 'a') as file: file.write('x')\n";
            fs::write(package.join("__init__.py"), note).expect("our own directory");
            fs::write(package.join("parts.py"), "number = 7").expect("our own directory");
        };
        let Some(launch) = launch(text, when, add) else { return };
        let run = launch.env("PYTHONPATH", format!(".:{TORCH}")).start();
        if when == "restart" {
            wait_for("the template is ready", || {
                run.stderr().contains("the template of warm workers is ready").then_some(())
            });
            run.touch("go");
        }
        let run = run.finish().expect_code(0);
        let (attempt, imports) = if when == "restart" { (1, "xxxx") } else { (0, "xx") };
        expect_forked(&run, attempt, "7");
        assert_eq!(run.file("imports").as_deref(), Some(imports), "by each worker once: {run:#?}");
    }
}
