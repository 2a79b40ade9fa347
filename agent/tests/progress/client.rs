//! The Python package of the wheel.

use super::*;

/// The directory of the package.
fn python_source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/wheel/python")
}

#[track_caller]
fn told(code: &str) -> Vec<Sample> {
    let tell = |python: PathBuf| {
        let mut files = ProgressFiles::new(1).unwrap();
        let worker = Worker { pythonpath: Some(python_source().into()), ..Worker::new(&files, false) };
        let code = format!("import dlrover_run\n{code}");
        quiet(&worker.run(&python, &["-c", &code]));
        only(&mut files)
    };
    counting_interpreters().into_iter().map(tell).collect()
}

#[track_caller]
fn all(code: &str, step: Option<u64>, busy_with: Option<&str>) {
    for sample in told(code) {
        let changes = u64::from(step.is_some() || busy_with.is_some());
        let expected =
            Sample { local_rank: LocalRank(0), step, changes, busy_with: busy_with.map(String::from) };
        assert_eq!(sample, expected, "{code}");
    }
}

#[test]
fn a_step_is_told() {
    all("dlrover_run.progress(12)", Some(12), None);
    // A shorter number leaves nothing of a longer one.
    all("dlrover_run.progress(1000)\ndlrover_run.progress(7)", Some(7), None);
    all("dlrover_run.progress()\ndlrover_run.progress(3)\ndlrover_run.progress()", Some(3), None);
}

#[test]
fn busy_suspends_the_watch() {
    all("dlrover_run.progress(3)\ndlrover_run.busy('checkpoint').__enter__()", Some(3), Some("checkpoint"));
    all("dlrover_run.progress(3)\nwith dlrover_run.busy('checkpoint'): pass", Some(3), None);
    all(
        "with dlrover_run.busy('a'):\n  with dlrover_run.busy('b'): pass\n  import os; os._exit(0)",
        None,
        Some("a"),
    );
    // In another thread, while training goes on.
    all("dlrover_run.busy('checkpoint').__enter__()\ndlrover_run.progress(4)", Some(4), Some("checkpoint"));
    all(
        "dlrover_run.busy('save to\\nS3\\u00e9' + 'x' * 99).__enter__()",
        None,
        Some(&format!("save_to_S3{}", "x".repeat(22))),
    );
    all(
        "dlrover_run.progress(3)\ntry:\n  with dlrover_run.busy('x'): 1 / 0\nexcept ZeroDivisionError: pass",
        Some(3),
        None,
    );
    all(
        "@dlrover_run.busy('save')\ndef save(): return 5\nassert save() == 5\ndlrover_run.progress(1)",
        Some(1),
        None,
    );
}

/// As a checkpoint that is loaded before the first step, in less time than there is between two samples.
#[test]
fn a_pause_that_has_ended_declares_no_progress() {
    let pause = "with dlrover_run.busy('checkpoint'): pass";
    all(pause, None, None);
    let declared = |code: &str| told(code).into_iter().map(|sample| sample.changes).collect::<Vec<_>>();
    for code in [format!("dlrover_run.progress()\n{pause}"), format!("{pause}\ndlrover_run.progress()")] {
        assert!(declared(&code).iter().all(|changes| *changes == 1), "{code}");
    }
}

#[test]
fn training_goes_on_whatever_is_told() {
    let values = "[None, -1, 'x', 1.5, 10 ** 30, object(), float('nan')]";
    for sample in told(&format!("dlrover_run.progress(2)\nfor step in {values}: dlrover_run.progress(step)"))
    {
        // 1.5 is step 1.
        assert_eq!((sample.step, sample.busy_with), (Some(1), None));
    }
    all("import os\ndel os.environ['DLROVER_PROGRESS_FILE']\ndlrover_run.progress(1)", None, None);
    all(
        "import os\nos.environ['DLROVER_PROGRESS_FILE'] = '/no/such/file'\n\
         dlrover_run.progress(1)\nwith dlrover_run.busy('x'): dlrover_run.progress(2)",
        None,
        None,
    );
    // The descriptor is closed, and its number belongs to another file.
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    let code = format!(
        "import os\ndlrover_run.progress(1)\nos.closerange(3, 99)\n\
         other = open({other:?}, 'w')\nassert other.fileno() == 3\n\
         dlrover_run.progress(2)\nos.closerange(3, 99)\ndlrover_run.progress(3)\ndlrover_run.progress(4)\n\
         assert os.path.getsize({other:?}) == 0"
    );
    all(&code, Some(4), None);
}
