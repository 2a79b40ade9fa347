//! `dlrover-diag dump` and `dlrover-diag stacks`, with real workers.
#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

const WORKER: &str = "import os, sys, time\n\
                      def all_reduce():\n    time.sleep(1000)\n\
                      def next_batch():\n    time.sleep(1000)\n\
                      def run():\n    next_batch() if os.environ['RANK'] == '1' else all_reduce()\n\
                      print('ready', flush=True)\n\
                      run()\n";

/// A worker that is killed when the test is over.
struct Worker(Child);

impl Worker {
    fn start(folder: &Path, run_id: &str, rank: u32, through_a_shell: bool) -> Self {
        let file = folder.join("train.py");
        fs::write(&file, WORKER).unwrap();
        let mut command = if through_a_shell {
            let mut shell = Command::new("bash");
            // Another command after it, so that the shell does not become the program.
            shell.args(["-c", "python3 $0; true"]);
            shell
        } else {
            Command::new("python3")
        };
        command.arg(&file).envs([
            ("TORCHELASTIC_RUN_ID", run_id),
            ("WORLD_SIZE", "3"),
            ("RANK", &rank.to_string()),
        ]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The program below the shell first: it would be left.
        let pid = i32::try_from(self.0.id()).unwrap();
        for process in processes::tree::below(pid) {
            processes::tree::kill_pass(|| processes::tree::process(process.pid));
        }
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn diag(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dlrover-diag")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Dumps until the workers are where they are going: they have only said that they are about to.
fn dump_until(headline: &str, arguments: &[&str]) -> String {
    let mut last = String::new();
    for _ in 0..100 {
        let (code, stdout, stderr) = text(&diag(arguments));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
        if stdout.contains(headline) {
            return stdout;
        }
        last = stdout;
    }
    panic!("never: {headline}\n{last}");
}

#[test]
fn the_workers_of_a_job_are_found_dumped_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let run_id = format!("dump-{}", std::process::id());
    let workers: Vec<Worker> =
        (0..3).map(|rank| Worker::start(folder.path(), &run_id, rank, rank == 2)).collect();
    let out = folder.path().join("out");
    let path = out.to_str().unwrap();
    let headline = "rank 1 is in train.py:5 next_batch; 0,2 wait in all_reduce";
    let shown = dump_until(headline, &["dump", "--run-id", &run_id, "--path", path]);
    assert!(shown.starts_with(headline), "{shown}");
    let shell = workers[2].0.id();
    assert!(
        shown.contains(&format!(
            "note: rank 2: the worker is process {shell} (bash); the stacks are those of"
        ))
    );
    let mut names: Vec<String> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = [
        "00000-00003.stacktrace",
        "00001-00003.stacktrace",
        "00002-00003.stacktrace",
        "cpp_stack",
        "cpp_stack.svg",
        "py_stack",
        "py_stack.svg",
    ];
    assert_eq!(names, expected);
    let python = fs::read_to_string(out.join("py_stack")).unwrap();
    assert!(python.contains("next_batch@") && python.contains("@1|0/2"), "{python}");
    assert!(fs::read_to_string(out.join("cpp_stack")).unwrap().contains("nanosleep"));

    // The same from the files alone, and as a document.
    let (code, stdout, _) = text(&diag(&["stacks", "--path", path, "--json"]));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, document["headline"].as_str()), (Some(0), Some(headline)));
    assert_eq!(document["suspects"][0]["rank"], 1);

    // By process, of which one is enough.
    let pid = workers[1].0.id().to_string();
    let (code, stdout, _) = text(&diag(&["dump", "--pid", &pid, "--path", path, "--json", "--no-native"]));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &document["ranks"][0]["rank"]), (Some(0), &Value::from(1)));
    assert_eq!(document["ranks"][0]["native"].as_array().unwrap().len(), 0);

    // A job that is not here.
    let (code, stdout, stderr) = text(&diag(&["dump", "--run-id", "none-such", "--path", path]));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(
        stderr.starts_with("dlrover-diag: error: no process of job `none-such` is on this node; jobs here: ")
    );
    assert!(stderr.contains(&format!("`{run_id}` (3 workers)")), "{stderr}");
}

#[test]
fn what_cannot_be_done_is_an_error() {
    let (code, _, stderr) = text(&diag(&["dump", "--pid", "2147483647"]));
    assert_eq!(code, Some(1));
    assert_eq!(stderr, "dlrover-diag: error: there is no process 2147483647 on this node\n");
    let own = std::process::id().to_string();
    let (code, _, stderr) = text(&diag(&["dump", "--pid", &own, "--pid", &own]));
    assert_eq!((code, stderr), (Some(2), format!("dlrover-diag: error: process {own} is named twice\n")));
    let (code, _, stderr) = text(&diag(&["dump", "--pid", &own, "--path", "/proc/self/none"]));
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("dlrover-diag: error: /proc/self/none cannot be created: "), "{stderr}");
}
