//! What an import makes that workers forked after it would share, and no two interpreters do.

use std::fs;

use support::launch::{Launch, Outcome};

use crate::{
    module, ours,
    refused::{reason, refusal},
};

#[test]
fn an_import_that_makes_a_lock_for_processes() {
    let text = "import multiprocessing\nkept = multiprocessing.Lock()";
    let Some(reason) = reason(text, |launch| launch) else { return };
    assert!(reason.starts_with("an import made shared memory (/dev/shm/"), "{reason}");
    assert!(reason.ends_with("), which workers would share"), "{reason}");
}

#[test]
fn an_import_that_makes_shared_memory() {
    let Some(reason) = reason("import mmap\nkept = mmap.mmap(-1, 4096)", |launch| launch) else { return };
    assert_eq!(reason, "an import made shared memory (/dev/zero), which workers would share");
}

#[test]
fn an_import_that_makes_a_temporary_directory() {
    let text = "import atexit, shutil, tempfile\nkept = tempfile.mkdtemp()\natexit.register(shutil.rmtree, kept)\n\
                with tempfile.TemporaryDirectory() as gone: pass";
    let Some(reason) = reason(text, |launch| launch) else { return };
    assert!(reason.starts_with("`odd` makes the temporary file or directory /tmp/launch-"), "{reason}");
    assert!(reason.ends_with(" while it is imported, which workers would share"), "{reason}");
}

/// Two forked workers, which import `odd` and run a script of these lines.
fn forked(odd: &str, script: &str) -> Option<Outcome> {
    let launch = Launch::new(ours()?).flags(["--standalone", "-v", "--nproc-per-node=2", "--warm=start"]);
    module(launch.dir(), "odd", odd);
    let begin = "import sys\nassert 'odd' in sys.modules, 'it was not forked'\nimport os, odd\n\
                 def say(what, name='said'):\n    path = os.environ['PROBE_OUT'] + '/%s.%s' % (name, os.environ['RANK'])\n    \
                 with open(path, 'w') as file: file.write(str(what))\n";
    let path = launch.dir().join("train.py");
    fs::write(&path, [begin, script].concat()).expect("our own directory");
    let lib = launch.dir().join("lib");
    let run = launch.env("PYTHONPATH", lib).flags(["--warm-modules=odd"]).script(path);
    Some(run.finish().expect_code(0))
}

#[test]
fn objects_of_imports_are_finalised_at_the_end_of_a_worker() {
    let odd = "import os\n\
               class Cycle:\n    def __init__(self): self.itself = self\n    \
               def __del__(self, path=os.environ['PROBE_OUT'], open=open, getpid=os.getpid):\n        \
               open('%s/ended.%d' % (path, getpid()), 'w').close()\nkept = Cycle()";
    let Some(run) = forked(odd, "say(os.getpid())") else { return };
    for rank in 0..2 {
        let pid = run.file(&format!("said.{rank}")).expect("the worker has written it");
        assert!(run.file(&format!("ended.{pid}")).is_some(), "rank {rank}: {run:#?}");
    }
}

#[test]
fn generators_of_imports_have_seeds_of_their_own() {
    let odd =
        "import random\nown, fixed = random.Random(), random.Random(5)\nlate = random.Random()\nlate.seed(6)";
    let Some(run) = forked(odd, "say([odd.own.random(), odd.fixed.random(), odd.late.random()])") else {
        return;
    };
    let [first, second] =
        [0, 1].map(|rank| run.file(&format!("said.{rank}")).expect("the worker has written it"));
    let [first, second] = [&first, &second].map(|text| text.split(", ").collect::<Vec<_>>());
    assert_ne!(first[0], second[0], "seeded by the system");
    assert_eq!(first[1..], second[1..], "seeded with a number");
    assert!(first[1].starts_with("0.6229016948897019"), "{first:?}");
}

#[test]
fn copies_of_generators_have_the_seeds_of_the_originals() {
    let odd = "import copy, random\nfixed = random.Random(5)\n\
               copies = [copy.copy(fixed), copy.deepcopy(fixed), random.Random()]\n\
               copies[2].setstate(fixed.getstate())\n\
               own = random.Random()\nowns = [own, copy.copy(own), random.Random()]\nowns[2].setstate(random.getstate())";
    let script = "say([one.random() for one in odd.copies + odd.owns])";
    let Some(run) = forked(odd, script) else { return };
    let [first, second] = [0, 1].map(|rank| {
        let text = run.file(&format!("said.{rank}")).expect("the worker has written it");
        let numbers = text.trim_matches(['[', ']']).split(", ").map(str::to_owned);
        numbers.collect::<Vec<_>>()
    });
    for (first, second) in first.iter().zip(&second).skip(3) {
        assert_ne!(first, second, "seeded by the system");
    }
    for numbers in [first, second] {
        assert_eq!(numbers[..3], ["0.6229016948897019"; 3], "seeded with a number");
    }
}

/// numpy, as far as it matters: in its own words, by `TORCH_PYTHON`.
fn numpy(text: &str) -> Option<Outcome> {
    let python = std::env::var_os("TORCH_PYTHON").filter(|python| !python.is_empty())?;
    let launch = Launch::new(ours()?).flags(["--standalone", "-v", "--warm=start", "--warm-modules=odd"]);
    module(launch.dir(), "odd", text);
    let path = launch.dir().join("train.py");
    fs::write(&path, "import sys\nprint('forked:', 'odd' in sys.modules)").expect("our own directory");
    let lib = launch.dir().join("lib");
    let launch = launch.env("PYTHONPATH", lib).env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1");
    Some(launch.script(path).finish().expect_code(0))
}

#[test]
fn an_import_that_draws_numbers_of_numpy() {
    for text in [
        "import numpy\nkept = numpy.random.rand(3)",
        "import numpy\nnumpy.random.default_rng(3)",
        "import numpy\nnumpy.random.set_state(numpy.random.get_state())",
    ] {
        let Some(run) = numpy(text) else { return };
        assert!(run.stdout.contains("forked: True"), "{text}: {run:#?}");
    }
}

#[test]
fn an_import_that_seeds_numpy() {
    for seed in ["3", "[1, 2]"] {
        let Some(run) = numpy(&format!("import numpy\nnumpy.random.seed({seed})")) else { return };
        assert!(run.stdout.contains("forked: False"), "{seed}: {run:#?}");
        let told = "an import calls numpy.random.seed, and forked workers have seeds of their own";
        assert!(run.stderr.contains(told), "{seed}: {run:#?}");
    }
}

#[test]
fn an_import_that_seeds_the_random_numbers_of_the_program() {
    let Some(reason) = reason("import random\nrandom.seed(3)", |launch| launch) else { return };
    assert_eq!(
        reason,
        "`odd` calls random.seed while it is imported, and forked workers have seeds of their own"
    );
}

/// As when packages are installed meanwhile.
#[test]
fn a_module_that_changes_while_it_is_imported() {
    let text = "open(__file__, 'a').close()\nwith open(__file__, 'a') as file: file.write('# x')\n";
    let Some(line) = refusal(text, |launch| launch) else { return };
    assert!(line.ends_with("/lib/odd.py has changed; a later restart may use a new template"), "{line}");
}
