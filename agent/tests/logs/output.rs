//! Every byte and line of the workers reaches the console and the files.

use super::*;

/// Writes 3000 lines of many lengths to both streams, in pieces independent of lines.
const NOISE: &str = r#"
import os, random, sys, threading
rank = int(sys.argv[1])
def noise(fd):
    r = random.Random(rank * 10 + fd)
    data = b"".join(b"%d %d %d " % (fd, rank, i) + bytes([97 + i % 26]) * r.randrange(400) + b"\n" for i in range(3000))
    at = 0
    while at < len(data):
        at += os.write(fd, data[at:at + r.randrange(1, 9000)])
threads = [threading.Thread(target=noise, args=(fd,)) for fd in (1, 2)]
for t in threads: t.start()
for t in threads: t.join()
"#;

#[test]
fn eight_noisy_workers_lose_no_byte_and_split_no_line() {
    let folder = tempfile::tempdir().unwrap();
    // Both streams of the launcher are one pipe, as after `2>&1`.
    let (screen, end) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let console = Console::new(end.try_clone().unwrap(), end);
    let seen = reader(screen);
    let mut logs = logs(tee(&folder, BOTH, 8), console.clone());
    let mut generation = open(&mut logs, 0, 8);
    let workers: Vec<Child> = (0..8).map(|rank| python(&mut generation, rank, NOISE)).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    assert!(console.flush(LONG_TIMEOUT));
    let files: Vec<_> = (0..8).map(|rank| generation.log_files(LocalRank(rank))).collect();
    drop((generation, logs, console));

    let seen = seen.join().unwrap();
    assert_eq!(lines(&seen).len(), 8 * 2 * 3000);
    for (rank, (out, err)) in files.into_iter().enumerate() {
        let (out, err) = (fs::read(out.unwrap()).unwrap(), fs::read(err.unwrap()).unwrap());
        assert_eq!((lines(&out).len(), lines(&err).len()), (3000, 3000));
        assert!(lines_of(&seen, &format!("[default{rank}]:1 ")) == stripped(&out, b"1 "), "rank {rank}");
        assert!(lines_of(&seen, &format!("[default{rank}]:2 ")) == stripped(&err, b"2 "), "rank {rank}");
    }
}

fn stripped(file: &[u8], start: &[u8]) -> Vec<u8> {
    lines(file).iter().flat_map(|line| line.strip_prefix(start).unwrap()).copied().collect()
}

#[test]
fn unprefixed_standard_error_of_eight_workers_keeps_its_lines_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, err) = Screen::new().read();
    let mut logs = logs(config(&folder, 8), console.clone());
    let mut generation = open(&mut logs, 0, 8);
    let script = r#"
import os, sys
for i in range(2000):
    os.write(2, b"rank%s \xff %d\n" % (sys.argv[1].encode(), i))
"#;
    let workers: Vec<Child> = (0..8).map(|rank| python(&mut generation, rank, script)).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    drop((generation, logs, console));
    let seen = err.join().unwrap();
    assert_eq!(lines(&seen).len(), 8 * 2000);
    for rank in 0..8 {
        let expected: Vec<u8> =
            (0..2000).flat_map(|i| [b" \xff ", format!("{i}\n").as_bytes()].concat()).collect();
        assert!(lines_of(&seen, &format!("rank{rank}")) == expected, "rank {rank}");
    }
}

#[test]
fn a_tee_keeps_bytes_that_are_not_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let (console, out, _err) = Screen::new().read();
    let mut logs = logs(tee(&folder, OUT, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let mut worker = python(&mut generation, 0, r#"import os; os.write(1, b"\xff\x00\xfe\r\n\xc3")"#);
    assert!(worker.wait().unwrap().success());
    drain(&mut generation, LONG_TIMEOUT);
    assert_eq!(fs::read(generation.log_files(RANK_0).0.unwrap()).unwrap(), b"\xff\x00\xfe\r\n\xc3");
    drop((generation, logs));
    assert_eq!(out.join().unwrap(), b"[default0]:\xff\x00\xfe\n[default0]:\xc3\n");
}

#[test]
fn the_last_state_of_a_progress_bar_is_always_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, err) = Screen::new().read();
    let mut logs = logs(tee(&folder, ERR, 1), console);
    let mut generation = open(&mut logs, 0, 1);
    let script = r#"
import os
for i in range(101): os.write(2, b"\r%3d%%" % i)
os.write(2, b"\nsaved\n\r 50%")
"#;
    assert!(python(&mut generation, 0, script).wait().unwrap().success());
    drain(&mut generation, LONG_TIMEOUT);
    drop((generation, logs));
    let seen = String::from_utf8(err.join().unwrap()).unwrap();
    // States in between are shown when this takes long.
    assert!(seen.ends_with("[default0]:100%\n[default0]:saved\n[default0]: 50%\n"), "{seen}");
    assert!(seen.lines().count() < 50);
}

#[test]
fn filtered_lines_of_all_tee_d_ranks_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (console, _out, _err) = Screen::new().read();
    let config = LogConfig { stdout_filters: vec!["loss".into()], ..tee(&folder, BOTH, 2) };
    let mut logs = logs(config, console);
    let mut generation = open(&mut logs, 0, 2);
    let script = "i=0; while [ $i -lt 500 ]; do echo loss $i; echo noise; i=$((i+1)); done; echo loss >&2";
    let workers = [0, 1].map(|rank| shell(&mut generation, rank, script));
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    drain(&mut generation, LONG_TIMEOUT);
    let attempt = logs.run_dir().unwrap().join("attempt_0");
    let filtered = fs::read(attempt.join("filtered_stdout.log")).unwrap();
    let expected: String = (0..500).map(|i| format!("loss {i}\n")).collect();
    assert_eq!(lines(&filtered).len(), 1000);
    for rank in [0, 1] {
        assert!(lines_of(&filtered, &format!("[default{rank}]:")) == expected.as_bytes());
    }
    assert!(!attempt.join("filtered_stderr.log").exists());
}
