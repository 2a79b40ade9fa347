//! The pipes of one generation of workers: taken, drained, cut off, closed.

use super::*;

#[test]
fn descriptors_can_be_taken_once_and_only_for_known_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let mut logs = logs(config(&folder, 1), Screen::new().console);
    let mut generation = open(&mut logs, 0, 1);
    let stdio = generation.take_stdio(RANK_0).unwrap();
    assert!(stdio.out.is_none(), "standard output is inherited");
    assert!(stdio.err.is_some());
    assert!(generation.take_stdio(RANK_0).is_none());
    assert!(generation.take_stdio(LocalRank(1)).is_none());
}

#[test]
fn a_grandchild_that_holds_the_pipe_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let (console, out, err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 2), console);
    let mut generation = open(&mut logs, 0, 2);
    let script = "sleep 600 & echo $!; printf unfinished; echo oh no >&2";
    assert!(shell(&mut generation, 0, script).wait().unwrap().success());
    assert!(shell(&mut generation, 1, "echo fine").wait().unwrap().success());

    let start = Instant::now();
    let drained = drain(&mut generation, Duration::from_millis(300));
    let take_output = start.elapsed();
    let held = vec![(RANK_0, Stream::Out), (RANK_0, Stream::Err)];
    assert_eq!(drained, Drained { cut_off: held, lost: 0 });
    assert!(take_output >= Duration::from_millis(300) && take_output < LONG_TIMEOUT, "{take_output:?}");
    assert_eq!(generation.stderr_tail(RANK_0).unwrap(), b"oh no\n");
    let file = fs::read_to_string(generation.log_files(RANK_0).0.unwrap()).unwrap();
    let pid = file.lines().next().unwrap();
    assert_eq!(file, format!("{pid}\nunfinished"));
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    let expected = format!("[default0]:{pid}\n[default0]:unfinished\n");
    drop((generation, logs));
    let out = String::from_utf8(out.join().unwrap()).unwrap();
    assert!(out.replace("[default1]:fine\n", "") == expected, "{out}");
    assert_eq!(err.join().unwrap(), b"oh no\n");
}

#[test]
fn a_runtime_is_not_blocked_by_a_drain() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let stdio = generation.take_stdio(RANK_0).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let turns = runtime.block_on(async {
        let ticking = async {
            let mut ticks = tokio::time::interval(Duration::from_millis(1));
            for _ in 0..20 {
                ticks.tick().await;
            }
            20
        };
        // The worker's end stays open, so the drain takes all of its timeout.
        let drained = generation.drain(LONG_TIMEOUT);
        let turns = ticking.await;
        drop(stdio);
        assert_eq!(drained.await.unwrap(), Drained::default());
        turns
    });
    assert_eq!(turns, 20);
}

#[test]
fn a_dropped_generation_closes_its_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let stdio = generation.take_stdio(RANK_0).unwrap();
    drop(generation);
    let mut end = File::from(stdio.out.unwrap());
    // Errors are always waited for: the reader has gone.
    assert!(await_any(end.as_fd(), PollFlags::empty()));
    assert_eq!(end.write(b"x\n").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn exactly_the_last_64_kib_of_standard_error_are_kept() {
    let script = r#"
import os
data = bytes(i * 7 % 251 for i in range(200001))
at = 0
while at < len(data): at += os.write(2, data[at:at + 5000])
"#;
    let bytes: Vec<u8> = (0..200_001_u32).map(|i| (i * 7 % 251) as u8).collect();
    let folder = tempfile::tempdir().unwrap();
    let hidden = Some(BTreeSet::new());
    for config in [
        config(&folder, 1),
        LogConfig { console_ranks: hidden, ..config(&folder, 1) },
        LogConfig { redirects: vec![ERR], ..config(&folder, 1) },
        tee(&folder, ERR, 1),
    ] {
        let label = format!("{config:?}");
        let (console, _out, err) = Screen::new().read();
        let is_hidden = config.console_ranks.is_some();
        let mut logs = logs(config, console);
        let mut generation = open(&mut logs, 0, 1);
        assert_eq!(generation.stderr_tail(RANK_0).unwrap(), b"");
        assert!(python(&mut generation, 0, script).wait().unwrap().success());
        drain(&mut generation, LONG_TIMEOUT);
        assert!(generation.stderr_tail(RANK_0).unwrap() == bytes[bytes.len() - TAIL_BYTES..], "{label}");
        drop((generation, logs));
        assert!(!is_hidden || err.join().unwrap().is_empty());
    }
    let config = LogConfig { keep_stderr_tail: false, ..config(&folder, 1) };
    let mut logs = logs(config, Screen::new().console);
    let mut generation = open(&mut logs, 0, 1);
    assert_eq!(generation.stderr_tail(RANK_0), None);
    assert!(generation.take_stdio(RANK_0).unwrap().err.is_none(), "standard error is inherited");
}
