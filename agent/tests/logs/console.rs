//! The console: stuck, slow, closed, and a terminal.

use super::*;

#[test]
fn a_stuck_console_blocks_the_worker_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let console = screen.console.clone();
    let mut logs = logs(tee(&folder, BOTH, 2), console.clone());
    let mut generation = open(&mut logs, 0, 2);
    let endless = "while :; do echo 0123456789012345678901234567890123456789; done";
    let mut worker = shell(&mut generation, 0, endless);
    let mut other = shell(&mut generation, 1, "echo quiet; echo words >&2");
    let file = generation.log_files(RANK_0).0.unwrap();
    // A full queue of 1 MiB, less the prefixes.
    await_length(&file, |length| length > 700 << 10);
    assert!(other.wait().unwrap().success(), "a worker that prints little is not held up");

    let start = Instant::now();
    (0..100_000).for_each(|i| console.print(format!("message {i}")));
    assert!(!console.flush(Duration::from_millis(10)));
    worker.kill().unwrap();
    worker.wait().unwrap();
    let drained = drain(&mut generation, Duration::from_millis(100));
    assert!(start.elapsed() < LONG_TIMEOUT);
    assert_eq!(drained.cut_off, [], "its pipe was read to the end, into the file");
    // The next generation starts nevertheless, and its files are written.
    let mut next = open(&mut logs, 1, 2);
    let mut worker = shell(&mut next, 0, "echo alive");
    assert!(worker.wait().unwrap().success());
    let next_file = next.log_files(RANK_0).0.unwrap();
    await_length(&next_file, |length| length == 6);
    let lost = drained.lost + drain(&mut next, Duration::from_millis(100)).lost;

    // The console is read again: everything queued arrives, also the last messages and the number of dropped ones.
    let (out, err) = (reader(screen.out), reader(screen.err));
    assert!(console.flush(LONG_TIMEOUT));
    drop((generation, next, logs, console, screen.console));
    let out = lines_of(&out.join().unwrap(), "[default0]:");
    let expected = fs::read(&file).unwrap();
    let missing = expected.len() + b"alive\n".len() - out.len();
    assert!(missing as u64 <= lost, "{missing} are missing, {lost} were counted");
    let err = String::from_utf8(err.join().unwrap()).unwrap();
    assert!(err.contains("(the launcher dropped "), "{err}");
    assert!(err.contains("\nmessage 99999\n"));
}

#[test]
fn back_pressure_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let console = screen.console.clone();
    let mut logs = logs(tee(&folder, OUT, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    // 16 MB are more than the queue, the pipes and the buffers hold.
    let mut worker = python(&mut generation, 0, "for i in range(200000): print(f'{i:079}')");
    let file = generation.log_files(RANK_0).0.unwrap();
    await_length(&file, |length| length > 900 << 10);
    assert_eq!(worker.try_wait().unwrap(), None);
    let out = reader(screen.out);
    assert!(worker.wait().unwrap().success());
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    drop((generation, logs, console, screen.console));
    let expected: String = (0..200_000).map(|i| format!("{i:079}\n")).collect();
    assert!(fs::read(&file).unwrap() == expected.as_bytes());
    assert!(lines_of(&out.join().unwrap(), "[default0]:") == expected.as_bytes());
}

#[test]
fn a_non_blocking_console_gets_everything() {
    let folder = tempfile::tempdir().unwrap();
    let (screen, end) = pipe2(OFlag::O_CLOEXEC).unwrap();
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let console = Console::new(end.try_clone().unwrap(), end);
    let mut logs = logs(tee(&folder, OUT, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let mut worker = python(&mut generation, 0, "for i in range(40000): print(f'{i:079}')");
    let file = generation.log_files(RANK_0).0.unwrap();
    await_length(&file, |length| length > 900 << 10);
    let seen = reader(screen);
    assert!(worker.wait().unwrap().success());
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    drop((generation, logs, console));
    assert_eq!(lines(&seen.join().unwrap()).len(), 40_000);
}

#[test]
fn workers_survive_a_closed_console() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let console = screen.console.clone();
    drop((screen.out, screen.err));
    let mut logs = logs(tee(&folder, OUT, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let mut worker = python(&mut generation, 0, "for i in range(100000): print(f'{i:079}')");
    assert!(worker.wait().unwrap().success());
    console.print("not read");
    assert!(console.flush(LONG_TIMEOUT), "there is nothing to wait for");
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    assert_eq!(length(&generation.log_files(RANK_0).0.unwrap()), 80 * 100_000);
}

/// A terminal of the test: the screen's end, and the launcher's end in raw mode, 111 x 33.
fn terminal() -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    let mut settings = tcgetattr(&slave).unwrap();
    cfmakeraw(&mut settings);
    tcsetattr(&slave, SetArg::TCSANOW, &settings).unwrap();
    for fd in [&master, &slave] {
        fcntl(fd, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC)).unwrap();
    }
    (File::from(master), slave)
}

#[test]
fn on_a_terminal_standard_error_is_a_terminal_for_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let (mut screen, end) = terminal();
    let console = Console::new(end.try_clone().unwrap(), end);
    let mut logs = logs(config(&folder, 1), console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let script = r#"
import os, sys, time
os.setsid()
def say(text): os.write(2, text.encode())
size = os.get_terminal_size(2)
say(f"{os.isatty(2)} {size.columns}x{size.lines}\n")
try:
    os.open("/dev/tty", os.O_RDWR)
    say("controlling")
except OSError:
    say("not controlling")
os.write(2, b"\r 50%\r100%\xff\x03\x04\n")
while os.get_terminal_size(2) == size: time.sleep(0.001)
size = os.get_terminal_size(2)
say(f"{size.columns}x{size.lines}\n")
os.write(2, b"z" * 100000)
"#;
    let mut worker = python(&mut generation, 0, script);
    let before = b"True 111x33\nnot controlling\r 50%\r100%\xff\x03\x04\n";
    let mut seen = vec![0; before.len()];
    screen.read_exact(&mut seen).unwrap();
    assert_eq!(seen, before);

    let size = libc::winsize { ws_row: 20, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and TIOCSWINSZ reads one winsize.
    assert_eq!(unsafe { libc::ioctl(screen.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
    generation.resize();
    let after = [b"60x20\n".as_slice(), &[b'z'; 100_000]].concat();
    let mut seen = vec![0; after.len()];
    screen.read_exact(&mut seen).unwrap();
    assert!(seen == after);
    assert!(worker.wait().unwrap().success());
    assert_eq!(drain(&mut generation, LONG_TIMEOUT), Drained::default());
    assert!(generation.stderr_tail(RANK_0).unwrap() == [b'z'; TAIL_BYTES]);
}

#[test]
fn a_prompt_and_the_launchers_messages_reach_the_screen_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let screen = Screen::new();
    let mut err = File::from(screen.err);
    let mut logs = logs(config(&folder, 1), screen.console.clone());
    let mut generation = open(&mut logs, 0, 1);
    let mut end = File::from(generation.take_stdio(RANK_0).unwrap().err.unwrap());
    end.write_all(b"(Pdb) ").unwrap();
    let mut seen = [0; 6];
    err.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"(Pdb) ");
    // The launcher does not write into the unfinished line.
    screen.console.print("stopping");
    let mut seen = [0; 10];
    err.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"\nstopping\n");
}
