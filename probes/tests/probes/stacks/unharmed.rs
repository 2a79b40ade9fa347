//! A process goes on as if its stacks had not been read.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::Mode,
    unistd::mkfifo,
};

use super::{Python, dump, dump_until, functions, waits_in};

/// Calls of the C library, which are not repeated by Python when a signal interrupts them.
const CALLS: &str = "import ctypes, os, sys, time\n\
                     libc = ctypes.CDLL(None, use_errno=True)\n\
                     def told(value):\n    print(value, ctypes.get_errno(), flush=True)\n\
                     print('ready', flush=True)\n";

#[tokio::test]
async fn a_sleep_lasts_as_long_as_it_was_to() {
    let sleeps = waits_in(&["clock_nanosleep", "nanosleep"]);
    let is_over = waits_in(&["read"]);
    // On a machine under load four dumps take longer than two seconds.
    for seconds in [2, 8, 32] {
        let mut python = Python::start(&format!(
            "{CALLS}began = time.monotonic()\n\
             told(libc.usleep({seconds}000000))\n\
             print(time.monotonic() - began, flush=True)\n\
             sys.stdin.readline()\n"
        ));
        let first = dump_until(&python.target(), |dump| sleeps(dump) || is_over(dump)).await;
        let mut was_asleep = sleeps(&first);
        for _ in 0..3 {
            let dump = dump(&python.target()).await;
            assert!(!dump.native.is_empty());
            // The kernel shows the call that goes on after a stop under another name.
            was_asleep &= !is_over(&dump);
        }
        assert_eq!(python.line(), "0 0");
        assert!(python.line().parse::<f64>().unwrap() >= f64::from(seconds));
        if was_asleep {
            return;
        }
    }
    panic!("no sleep was long enough for four dumps");
}

#[tokio::test]
async fn a_blocked_read_returns_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let mut python = Python::start(&format!(
        "{CALLS}pipe = os.open('{}', os.O_RDWR)\n\
         buffer = ctypes.create_string_buffer(8)\n\
         told(libc.read(pipe, buffer, 8))\n",
        path.display()
    ));
    for _ in 0..3 {
        let dump = dump_until(&python.target(), waits_in(&["read"])).await;
        assert!(functions(&dump.native[0]).contains(&"read"), "{:?}", dump.native[0]);
    }
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(b"abc").unwrap();
    assert_eq!(python.line(), "3 0");
}

/// The kernel takes this call up again after no stop.
#[tokio::test]
async fn a_wait_for_events_is_not_interrupted() {
    let mut python = Python::start(&format!(
        "{CALLS}import select\n\
         poll = select.epoll()\n\
         ready, to = os.pipe()\n\
         poll.register(ready)\n\
         buffer = ctypes.create_string_buffer(64)\n\
         import threading\n\
         def send():\n    sys.stdin.readline()\n    os.write(to, b'x')\n\
         threading.Thread(target=send).start()\n\
         told(libc.epoll_wait(poll.fileno(), buffer, 4, -1))\n"
    ));
    let waits = waits_in(&["epoll_wait", "epoll_pwait"]);
    for _ in 0..5 {
        let dump = dump_until(&python.target(), &waits).await;
        let native = functions(&dump.native[0]);
        assert!(native[0].contains("epoll_wait"), "{native:?}");
        assert_eq!(dump.native.len(), 2);
    }
    python.tell("now");
    assert_eq!(python.line(), "1 0");
}

/// A stop would end this call with the bytes that have been written, and few programs look at their number.
#[tokio::test]
async fn a_blocked_write_is_not_cut_short() {
    let mut python = Python::start(&format!(
        "{CALLS}import threading\n\
         end, to = os.pipe()\n\
         def drain():\n    sys.stdin.readline()\n    open(end, 'rb').read()\n\
         threading.Thread(target=drain, daemon=True).start()\n\
         told(libc.write(to, bytes(300000), 300000))\n"
    ));
    let waits = waits_in(&["write"]);
    for _ in 0..3 {
        let dump = dump_until(&python.target(), &waits).await;
        assert!(functions(&dump.native[0]).contains(&"write"), "{:?}", dump.native[0]);
    }
    python.tell("now");
    assert_eq!(python.line(), "300000 0");
}

/// It has a part of what it waits for.
#[tokio::test]
async fn a_receive_of_a_whole_message_is_not_cut_short() {
    let mut python = Python::start(&format!(
        "{CALLS}import socket, threading\n\
         near, far = socket.socketpair()\n\
         far.sendall(b'abc')\n\
         def send():\n    sys.stdin.readline()\n    far.sendall(b'defgh')\n\
         threading.Thread(target=send).start()\n\
         buffer = ctypes.create_string_buffer(8)\n\
         told(libc.recv(near.fileno(), buffer, 8, socket.MSG_WAITALL))\n"
    ));
    let waits = waits_in(&["recvfrom"]);
    for _ in 0..3 {
        let dump = dump_until(&python.target(), &waits).await;
        assert!(functions(&dump.native[0]).contains(&"recv"), "{:?}", dump.native[0]);
    }
    python.tell("now");
    assert_eq!(python.line(), "8 0");
}

#[tokio::test]
async fn a_blocked_open_of_a_pipe_goes_on_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let mut python = Python::start(&format!(
        "{CALLS}told(libc.open(b'{}', os.O_RDONLY) > 2)\nsys.stdin.readline()\n",
        path.display()
    ));
    for _ in 0..3 {
        let dump = dump_until(&python.target(), waits_in(&["open", "openat"])).await;
        assert_eq!(dump.python[0].name, "MainThread");
    }
    let _writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(python.line(), "True 0");
}

#[tokio::test]
async fn signals_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seen");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let mut seen = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // The C handler of Python writes a byte for each signal that it is called for.
    let text = "import os, signal, sys\n\
         signal.signal(signal.SIGRTMIN, lambda *_: None)\n\
         signal.set_wakeup_fd(os.open(os.environ['SEEN'], os.O_WRONLY | os.O_NONBLOCK))\n\
         print('ready', flush=True)\n\
         sys.stdin.read()\n";
    let python = Python::with_environment(text, &[("SEEN", path.as_os_str())]);
    let pid = i32::try_from(python.pid()).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let sender = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let mut count = 0_u32;
            // Each is sent once the one before has come, so that some come at any time of a dump.
            while !is_over.load(SeqCst) {
                // SAFETY: plain numbers, and the process is ours.
                assert_eq!(unsafe { libc::kill(pid, libc::SIGRTMIN()) }, 0);
                let in_time = PollTimeout::from(60_000_u16);
                let ready = poll(&mut [PollFd::new(seen.as_fd(), PollFlags::POLLIN)], in_time);
                assert_eq!(ready, Ok(1), "signal {count} is lost");
                seen.read_exact(&mut [0]).unwrap();
                count += 1;
            }
            count
        }
    });
    for _ in 0..10 {
        assert!(!dump(&python.target()).await.native.is_empty());
    }
    is_over.store(true, SeqCst);
    assert!(sender.join().unwrap() > 10);
}
