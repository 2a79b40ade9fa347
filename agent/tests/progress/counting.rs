//! What the prelude counts, with a package that stands in for torch; tests/torch has the real one.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use super::*;

/// Runs a script with every interpreter and returns what was counted.
#[track_caller]
fn counted(code: &str) -> Vec<(PathBuf, Option<u64>)> {
    let count = |python: PathBuf| {
        let mut files = ProgressFiles::new(1).unwrap();
        quiet(&Worker::new(&files, true).run(&python, &["-c", code]));
        let sample = only(&mut files);
        assert_eq!(sample.changes, u64::from(sample.step.is_some()));
        (python, sample.step)
    };
    counting_interpreters().into_iter().map(count).collect()
}

#[track_caller]
fn all(code: &str, expected: Option<u64>) {
    for (python, step) in counted(code) {
        assert_eq!(step, expected, "{python:?}: {code}");
    }
}

#[test]
fn steps_of_every_optimizer_are_counted() {
    all("import torch\nfor _ in range(5): torch.optim.SGD().step()", Some(5));
    all("import torch\na, b = torch.optim.SGD(), torch.optim.SGD()\na.step(); b.step(lambda: 1)", Some(2));
    all("from torch.optim.optimizer import Optimizer\nfrom torch.optim import SGD\nSGD().step()", Some(1));
}

#[test]
fn a_script_without_steps_counts_nothing() {
    all("import json", None);
    all("import torch", None);
}

#[test]
fn the_finder_is_gone_once_torch_is_there() {
    all(
        "import sys\n\
         before = list(sys.meta_path)\n\
         import torch\n\
         assert sys.meta_path == before[1:], sys.meta_path\n\
         assert 'mmap' not in sys.modules\n\
         torch.optim.SGD().step()",
        Some(1),
    );
}

/// A worker that is asked for the list of its modules.
#[track_caller]
fn listed(code: &str, step: Option<u64>) -> Vec<String> {
    let list = |python: PathBuf| {
        let mut files = ProgressFiles::new(1).unwrap();
        let list = tempfile::NamedTempFile::new().unwrap();
        let path = list.path().to_str().unwrap();
        let worker = Worker {
            extra: vec![("DLROVER_WARM_LIST", path), ("ODD_SET", "1")],
            ..Worker::new(&files, true)
        };
        quiet(&worker.run(&python, &["-c", code]));
        assert_eq!(only(&mut files).step, step, "{python:?}: {code}");
        fs::read_to_string(list.path()).unwrap()
    };
    counting_interpreters().into_iter().map(list).collect()
}

#[test]
fn the_list_has_what_the_script_has_changed() {
    for begin in ["import os", "import os\nos.environ = dict(os.environ)"] {
        let code = format!(
            "{begin}\nos.environ['ODD_EARLY'] = '2'\nimport torch\nos.environ['ODD_LATE'] = '3'\n\
             del os.environ['ODD_SET']\ntorch.optim.SGD().step()"
        );
        for list in listed(&code, Some(1)) {
            let changes: Vec<&str> = list.split('\0').filter(|entry| entry.contains("ODD_")).collect();
            assert_eq!(changes, ["early\nODD_EARLY\n2", "late\nODD_SET", "late\nODD_LATE\n3"], "{code}");
            assert!(list.contains("module\ntorch.optim.sgd\n/"), "{list}");
        }
    }
}

#[test]
fn steps_are_counted_whatever_becomes_of_the_list() {
    let odd = "os.environ = type('Odd', (), {'get': dict(os.environ).get})()";
    for code in [format!("import torch\n{odd}"), format!("{odd}\nimport torch")] {
        let lists = listed(&format!("import os\n{code}\ntorch.optim.SGD().step()"), Some(1));
        assert!(lists.iter().all(String::is_empty), "{code}: {lists:?}");
    }
    // A signal whose handler raises while the list is made is the script's.
    listed(
        "import os, sys, torch\n\
         class Odd(dict):\n  \
           def items(self): raise KeyboardInterrupt\n\
         modules, sys.modules = sys.modules, Odd(sys.modules)\n\
         try: torch.optim.SGD().step()\n\
         except KeyboardInterrupt: sys.modules = modules\n\
         else: raise AssertionError\n\
         torch.optim.SGD().step()",
        Some(2),
    );
}

#[test]
fn a_torch_without_hooks_is_left_alone() {
    all(
        "import sys, types\nsys.modules['torch.optim.optimizer'] = types.ModuleType('torch')\nimport json",
        None,
    );
    all("import sys\nsys.modules['torch.optim.optimizer'] = None\nimport json", None);
    all("import sys\nsys.modules['torch.optim.optimizer'] = object()\nimport json", None);
}

#[test]
fn children_do_not_count() {
    let step = "import torch\ntorch.optim.SGD().step()";
    // Forked before and after the counter is there.
    all(
        "import os, torch\n\
         def child():\n  \
           if os.fork() == 0:\n    \
             torch.optim.SGD().step(); torch.optim.SGD().step(); os._exit(0)\n  \
           os.wait()\n\
         child(); torch.optim.SGD().step(); child(); torch.optim.SGD().step()",
        Some(2),
    );
    // Forked before torch is imported.
    all("import os\nif os.fork() == 0:\n  import torch\n  torch.optim.SGD().step()\nelse: os.wait()", None);
    let child =
        format!("import subprocess, sys\nsubprocess.check_call([sys.executable, '-c', {step:?}])\n{step}");
    all(&child, Some(1));
    let dir = tempfile::tempdir().unwrap();
    for method in ["spawn", "forkserver", "fork"] {
        let script = dir.path().join(format!("{method}.py"));
        let code = format!(
            "import multiprocessing as mp, sys\n\
             def child():\n  \
               assert not any('Dlrover' in str(finder) for finder in sys.meta_path), sys.meta_path\n  \
               import torch; torch.optim.SGD().step()\n\
             if __name__ == '__main__':\n  \
               import torch; torch.optim.SGD().step()\n  \
               process = mp.get_context('{method}').Process(target=child)\n  \
               process.start(); process.join(); assert process.exitcode == 0\n"
        );
        fs::write(&script, code).unwrap();
        all(
            &format!("import runpy\nrunpy.run_path({script:?}, run_name='__main__')")
                .replace("runpy.run_path", "import sys; sys.argv = ['']; runpy.run_path"),
            Some(1),
        );
    }
}

#[test]
fn threads_that_import_at_once_count_each_step_once() {
    all(
        "import threading, importlib\n\
         names = ['torch', 'json', 'decimal', 'mmap', 'csv', 'queue', 'torch.optim', 'uuid'] * 4\n\
         threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in names]\n\
         [thread.start() for thread in threads]\n\
         [thread.join() for thread in threads]\n\
         import torch, colorsys\n\
         for _ in range(3): torch.optim.SGD().step()",
        Some(3),
    );
}

#[test]
fn a_worker_of_an_old_generation_does_not_count_in_the_new_one() {
    for python in counting_interpreters() {
        let mut files = ProgressFiles::new(1).unwrap();
        let mut command = Worker::new(&files, true).command(&python);
        let code = "import sys, torch\nprint('imported', flush=True)\nsys.stdin.readline()\n\
                    torch.optim.SGD().step()\nprint('stepped')";
        let mut child =
            command.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "imported");
        files.reset().unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "stepped");
        assert!(child.wait().unwrap().success());
        assert_eq!(only(&mut files).changes, 0);
    }
}
