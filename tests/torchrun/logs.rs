//! Where the workers' output goes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::launch::{Launch, Outcome};

use crate::differs::torchrun_differs;
use crate::launch;

/// A run that logs to `logs` in its own directory.
fn logged() -> Launch {
    let run = launch();
    let flag = format!("--log-dir={}", run.dir().join("deep/logs").display());
    run.flags(["--standalone".to_owned(), flag])
}

/// The one run directory in the log dir.
#[track_caller]
fn run_dir(run: &Outcome) -> PathBuf {
    let dirs: Vec<_> =
        fs::read_dir(run.dir().join("deep/logs")).expect("the log dir is made").flatten().collect();
    assert_eq!(dirs.len(), 1, "{dirs:?}");
    dirs[0].path()
}

/// All files below, with their text.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).expect("it was just listed").flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(dir).expect("below it").display().to_string();
                found.insert(
                    name,
                    String::from_utf8_lossy(&fs::read(entry.path()).expect("a file")).into_owned(),
                );
            }
        }
    }
    found
}

fn table(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

const SPEAK: &[&str] = &["dump", "0 out out 0\\n", "0 err err 0\\n", "1 out out 1\\n", "1 err err 1\\n"];

#[test]
fn a_missing_temporary_folder_is_skipped() {
    let run = launch().flags(["--standalone"]).env("TMPDIR", "/no/such/folder").finish().expect_code(0);
    let error_file = run.dump(0, 0).var("TORCHELASTIC_ERROR_FILE").to_owned();
    assert!(!error_file.is_empty() && !error_file.starts_with("/no/such/folder"), "{error_file}");
    let folder = std::path::Path::new(&error_file).ancestors().nth(4).expect("torchelastic_<random>");
    std::fs::remove_dir_all(folder).expect("a directory of this run");
}

#[test]
fn without_a_flag_output_is_inherited() {
    let run = launch().flags(["--standalone", "--nproc-per-node=2"]).steps(SPEAK).finish().expect_code(0);
    assert_eq!(sorted(&run.stdout), ["out 0", "out 1"]);
    assert!(run.stderr.lines().any(|line| line == "err 0"), "{run:#?}");
    let error_file = run.dump(1, 0).var("TORCHELASTIC_ERROR_FILE").to_owned();
    let default = run.dir().join("torchelastic_").display().to_string();
    assert!(error_file.starts_with(&default), "{error_file} is not in TMPDIR");
}

#[test]
fn without_a_flag_output_is_passed_byte_for_byte() {
    let run =
        launch().flags(["--standalone"]).steps(&["out a\\r\\xff\\0b", "err \\x1b[31mc\\rd\\n\\ne"]).finish();
    let run = run.expect_code(0);
    assert_eq!(run.stdout_bytes, b"a\r\xff\0b");
    assert!(run.stderr.contains("\x1b[31mc\rd\n\ne"), "{run:#?}");
}

#[test]
fn redirected_output_is_in_files_only() {
    let run = logged().flags(["--nproc-per-node=2", "-r", "3"]).steps(SPEAK).finish().expect_code(0);
    assert_eq!(run.stdout, "");
    assert!(!run.stderr.contains("err 0"), "{run:#?}");
    let dir = run_dir(&run);
    assert_eq!(
        files(&dir),
        table(&[
            ("attempt_0/0/stdout.log", "out 0\n"),
            ("attempt_0/0/stderr.log", "err 0\n"),
            ("attempt_0/1/stdout.log", "out 1\n"),
            ("attempt_0/1/stderr.log", "err 1\n"),
        ])
    );
    let worker = run.dump(1, 0);
    let name = dir.file_name().and_then(|name| name.to_str()).expect("a plain name");
    // The random part may hold a `_` of its own.
    let random = name.strip_prefix(worker.var("TORCHELASTIC_RUN_ID")).and_then(|rest| rest.strip_prefix('_'));
    assert_eq!(random.map(str::len), Some(8), "{name}");
    assert_eq!(Path::new(worker.var("TORCHELASTIC_ERROR_FILE")), dir.join("attempt_0/1/error.json"));
    let mode = fs::metadata(&dir).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn each_rank_may_have_its_own_redirect_and_tee() {
    let run = logged()
        // Ranks beyond the workers are ignored; those not named are not redirected.
        .flags(["--nproc-per-node=3", "-r", "0:1,1:2,7:3", "--tee=1:1"])
        .steps(&["0 out o0\\n", "0 err e0\\n", "1 out o1\\n", "1 err e1\\n", "2 out o2\\n", "2 err e2\\n"])
        .finish()
        .expect_code(0);
    assert_eq!(sorted(&run.stdout), ["[default1]:o1", "o2"]);
    let shown = |line: &str| run.stderr.lines().any(|l| l == line);
    assert!(shown("e0") && !run.stderr.contains("e1") && shown("e2"), "{run:#?}");
    assert_eq!(
        files(&run_dir(&run)),
        table(&[
            ("attempt_0/0/stdout.log", "o0\n"),
            ("attempt_0/1/stdout.log", "o1\n"),
            ("attempt_0/1/stderr.log", "e1\n"),
        ])
    );
}

#[test]
fn tee_shows_whole_lines_with_a_prefix_and_keeps_the_file() {
    let run = logged()
        .flags(["--nproc-per-node=2", "-t3", "--role=trainer"])
        .steps(&["0 out one\\ntwo\\n", "0 err bad\\n", "1 out three\\n"])
        .finish()
        .expect_code(0);
    assert_eq!(sorted(&run.stdout), ["[trainer0]:one", "[trainer0]:two", "[trainer1]:three"]);
    assert!(run.stderr.lines().any(|line| line == "[trainer0]:bad"), "{run:#?}");
    let files = files(&run_dir(&run));
    assert_eq!(files["attempt_0/0/stdout.log"], "one\ntwo\n");
    assert_eq!(files["attempt_0/0/stderr.log"], "bad\n");
    assert_eq!(files["attempt_0/1/stdout.log"], "three\n");
}

#[test]
fn the_prefix_follows_the_template() {
    let template = "<${role_name}|${rank}|${local_rank}|${zzz}> ";
    let flag = format!("--log-line-prefix-template={template}");
    let run = launch().flags(["--standalone", "-t1", "--role=r", &flag]);
    let run = run.steps(&["out x\\n"]).env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "unused ").finish();
    assert_eq!(run.expect_code(0).stdout, "<r|0|0|${zzz}> x\n");

    let run = launch().flags(["--standalone", "-t1"]).steps(&["out x\\n"]);
    let run = run.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "at ${hostname}: ").finish().expect_code(0);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux");
    assert_eq!(run.stdout, format!("at {}: x\n", host.trim_end()));
}

#[test]
fn the_rank_filter_silences_the_console_and_not_the_files() {
    let run = logged().flags(["--nproc-per-node=2", "-t3", "--local-ranks-filter=1"]).steps(SPEAK);
    let run = run.finish().expect_code(0);
    assert_eq!(run.stdout, "[default1]:out 1\n");
    assert!(!run.stderr.contains("err 0") && run.stderr.contains("[default1]:err 1\n"), "{run:#?}");
    let files = files(&run_dir(&run));
    assert_eq!(files["attempt_0/0/stdout.log"], "out 0\n");
    assert_eq!(files["attempt_0/1/stderr.log"], "err 1\n");

    let run =
        launch().flags(["--standalone", "--nproc-per-node=2", "--local_ranks_filter", "0"]).steps(SPEAK);
    let run = run.finish().expect_code(0);
    assert_eq!(run.stdout, "out 0\n");
    assert!(!run.stderr.contains("err 1"), "{run:#?}");
}

#[test]
fn chosen_lines_are_written_to_a_second_file() {
    let run = logged()
        .flags(["--nproc-per-node=2", "-t3", "--duplicate-stdout-filters=error,x,,y"])
        .flags(["--duplicate-stderr-filters=loss"])
        .steps(&["out an error\\na warning, x\\nx,y\\n", "1 err loss 1\\nnoise\\n"])
        .finish()
        .expect_code(0);
    let files = files(&run_dir(&run));
    assert_eq!(
        sorted(&files["attempt_0/filtered_stdout.log"]),
        ["[default0]:an error", "[default0]:x,y", "[default1]:an error", "[default1]:x,y"]
    );
    assert_eq!(files["attempt_0/filtered_stderr.log"], "[default1]:loss 1\n");
}

#[test]
fn dev_null_keeps_nothing() {
    let run = launch().flags(["--standalone", "--log-dir=/dev/null", "-r3"]).steps(&["dump", "out shown\\n"]);
    let run = run.finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("TORCHELASTIC_ERROR_FILE"), "");
    assert_eq!(run.stdout, "shown\n", "without a file there is nothing to redirect to");
}

#[test]
fn each_attempt_has_its_own_files() {
    let run = logged()
        .flags(["--max-restarts=1", "-r3", "--nproc-per-node=2"])
        .steps(&["@0 out first\\n", "@1 out second\\n", "0 exit 1", "hang"])
        .finish()
        .expect_code(1);
    let files = files(&run_dir(&run));
    for (name, text) in [
        ("attempt_0/0/stdout.log", "first\n"),
        ("attempt_0/0/stderr.log", ""),
        ("attempt_1/0/stdout.log", "second\n"),
        ("attempt_1/1/stderr.log", ""),
    ] {
        assert_eq!(files.get(name).map(String::as_str), Some(text), "{name}: {files:?}");
    }
}

#[test]
fn ranks_of_two_digits_can_be_redirected() {
    let run = logged().flags(["--nproc-per-node=1", "-r", "10:1"]).steps(&["out shown\\n"]).finish();
    if torchrun_differs("ranks_of_two_digits_can_be_redirected") {
        let run = run.expect_code(1);
        assert!(run.stderr.contains("10:1 does not match"), "{run:#?}");
        return;
    }
    assert_eq!(run.expect_code(0).stdout, "shown\n");
}

#[test]
fn progress_bars_stay_lines_that_are_rewritten() {
    let run = logged().flags(["-t1"]).steps(&["out 10%\\r20%\\r30%\\ndone\\n"]).finish().expect_code(0);
    assert_eq!(files(&run_dir(&run))["attempt_0/0/stdout.log"], "10%\r20%\r30%\ndone\n");
    if torchrun_differs("progress_bars_stay_lines_that_are_rewritten") {
        assert_eq!(run.stdout, "[default0]:10%\n[default0]:20%\n[default0]:30%\n[default0]:done\n");
        return;
    }
    // Whatever is shown of the bar, its end is shown and takes one line.
    let lines: Vec<_> = run.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].ends_with("30%") && lines[1] == "[default0]:done", "{run:#?}");
}

#[test]
fn a_last_line_without_its_end_is_shown() {
    let run = logged().flags(["-t1"]).steps(&["out one\\n\\nlast"]).finish().expect_code(0);
    assert_eq!(files(&run_dir(&run))["attempt_0/0/stdout.log"], "one\n\nlast");
    let end = if torchrun_differs("a_last_line_without_its_end_is_shown") { "" } else { "\n" };
    assert_eq!(run.stdout, format!("[default0]:one\n[default0]:\n[default0]:last{end}"));
}

#[test]
fn lines_of_concurrent_ranks_are_not_mixed() {
    const EACH: usize = 5_000;
    let chatter =
        format!("i=0; while [ $i -lt {EACH} ]; do echo \"$RANK says line $i, all of it\"; i=$((i+1)); done");
    let run =
        logged().flags(["--nproc-per-node=3", "-t1", "--no-python"]).script("bash").args(["-c", &chatter]);
    let run = run.finish().expect_code(0);
    let logs = files(&run_dir(&run));
    for rank in 0..3 {
        let want: Vec<_> = (0..EACH).map(|i| format!("{rank} says line {i}, all of it")).collect();
        assert!(logs[&format!("attempt_0/{rank}/stdout.log")].lines().eq(&want), "the file of rank {rank}");
    }
    if torchrun_differs("lines_of_concurrent_ranks_are_not_mixed") {
        return;
    }
    for rank in 0..3 {
        let prefix = format!("[default{rank}]:");
        let shown = run.stdout.lines().filter_map(|line| line.strip_prefix(&prefix));
        let want: Vec<_> = (0..EACH).map(|i| format!("{rank} says line {i}, all of it")).collect();
        assert!(shown.eq(&want), "in order and whole on the console: rank {rank}");
    }
    assert_eq!(run.stdout.lines().count(), 3 * EACH);
}

#[test]
fn bytes_that_are_not_utf8_reach_the_console() {
    let run = logged().flags(["-t1"]).steps(&["out a\\xffb\\n"]).finish().expect_code(0);
    if torchrun_differs("bytes_that_are_not_utf8_reach_the_console") {
        assert_eq!(run.stdout, "[default0]:a\u{fffd}b\n");
        return;
    }
    assert_eq!(run.stdout_bytes, b"[default0]:a\xffb\n");
}

#[test]
fn a_slow_console_gets_all_of_an_attempt_that_was_restarted() {
    let program = "import os\n\
                   if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n\
                   \tfor line in range(29000): print('x' * 50, line)\n\
                   raise SystemExit(1)";
    let run = launch().flags(["--standalone", "--max-restarts=1", "--tee=1", "--no-python"]);
    // More than the queue of one worker and the pipe behind it hold.
    let run = run.script("python3").args(["-c", program]).after("exec > >(sleep 1; cat > slow)");
    let outcome = run.finish().expect_code(1);
    let lines = outcome.file("slow").unwrap().lines().count();
    assert_eq!(lines, 29000, "{outcome:#?}");
}

#[test]
fn lines_of_both_streams_keep_their_order_in_one_file() {
    let steps: Vec<String> = (0..50).flat_map(|n| [format!("out o{n}\\n"), format!("err e{n}\\n")]).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let run = launch().after("exec 2>&1").flags(["--standalone"]).steps(&steps).finish().expect_code(0);
    let expected: String = (0..50).map(|n| format!("o{n}\ne{n}\n")).collect();
    assert!(run.stdout.ends_with(&expected), "{run:#?}");
}

#[test]
fn output_that_the_console_does_not_take_is_reported_once() {
    if torchrun_differs("output_that_the_console_does_not_take_is_reported_once") {
        return;
    }
    let (full, gone) = ("No space left on device", "its reader has closed the pipe");
    for (stream, other, why, shell) in [
        ("standard output", "stderr", full, "exec >/dev/full"),
        ("standard output", "stderr", gone, "exec > >(head -1 >/dev/null)"),
        ("standard error", "stdout", full, "exec 2>/dev/full"),
    ] {
        for code in [0, 3] {
            let many = format!("for i in $(seq 30000); do echo line $i; echo line $i >&2; done; exit {code}");
            let run = launch().flags(["--standalone", "--tee=3", "--no-python", "bash", "-c"]).script(many);
            let run = run.after(shell).finish().expect_code(i32::from(code != 0));
            let text = if other == "stderr" { &run.stderr } else { &run.stdout };
            let told = format!("dlrover-run: warning: cannot write to {stream} ({why})");
            assert_eq!(
                text.matches(&told).count(),
                1,
                "{shell}, {code}: {}",
                &text[text.len().saturating_sub(2000)..]
            );
            let in_report = format!("  lost output: could not write to {stream}");
            // A report goes to standard error, and is lost with it.
            let reported = code != 0 && other == "stderr";
            assert_eq!(text.contains(&in_report), reported, "{shell}, {code}");
        }
    }
}
