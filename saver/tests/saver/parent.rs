//! The parent's side of a saver, with processes that are none, or that hang.

use std::{
    fs,
    os::{
        fd::AsFd as _,
        linux::net::SocketAddrExt as _,
        unix::{
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixListener},
        },
    },
    path::PathBuf,
    time::Duration,
};

use checkpoint::message::ToSaver;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use saver::parent::{
    END_TIMEOUT, SaverEnd, SaverEvent, SaverOptions, SaverProcess, SaverProgram, SendError, StartError,
};
use tokio::{runtime::Runtime, time::timeout};

use crate::{
    client::{TIMEOUT, crate_run_id},
    support::{is_alive, program, round_of, socket_name},
};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn start(path: PathBuf) -> Result<SaverProcess, StartError> {
    let name = SocketAddr::from_abstract_name(socket_name()).unwrap();
    let listener = UnixListener::bind_addr(&name).unwrap();
    let options = SaverOptions { run_id: crate_run_id(), allowance: 1 << 30 };
    let program = SaverProgram { path, launcher_id: None };
    SaverProcess::start(&program, &options, listener.as_fd(), vec![round_of(0, 1, Vec::new())])
}

/// All events before the end, and the end.
async fn end_of(saver: &mut SaverProcess) -> (Vec<SaverEvent>, SaverEnd) {
    let mut before = Vec::new();
    loop {
        match timeout(TIMEOUT, saver.next()).await.unwrap().unwrap() {
            SaverEvent::Ended(end) => return (before, end),
            other => before.push(other),
        }
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    runtime().block_on(async {
        let error = start("/no/such/program".into()).unwrap_err();
        assert_eq!(error.to_string(), "cannot start the saver /no/such/program");
    });
}

#[test]
fn a_program_that_is_no_saver_ends_with_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script");
    fs::write(&path, "#!/bin/sh\necho no message\nprintf 'half a line'\necho the reason >&2\nexit 3\n")
        .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    runtime().block_on(async {
        let mut saver = start(path).unwrap();
        let (before, end) = end_of(&mut saver).await;
        assert!(matches!(before.as_slice(), [SaverEvent::Garbled(_)]), "{before:?}");
        assert_eq!((end.status.unwrap().code(), end.stderr.as_str()), (Some(3), "the reason"));
        assert_eq!((end.killed, end.stuck), (None, None));
        assert!(saver.next().await.is_none());
        assert_eq!(saver.send(ToSaver::Report {}), Err(SendError::Ended));
    });
}

#[test]
fn a_saver_that_does_not_finish_is_killed() {
    runtime().block_on(async {
        let mut saver = start(program()).unwrap();
        kill(Pid::from_raw(saver.pid()), Signal::SIGSTOP).unwrap();
        saver.send(ToSaver::Finish { grace_ms: 0, also_memory: false }).unwrap();
        let (_, end) = end_of(&mut saver).await;
        assert_eq!(end.killed.as_deref(), Some("it did not exit within 6 s"), "{end:?}");
        assert!(end.stuck.is_none());
    });
}

#[test]
fn a_saver_that_hangs_is_killed_when_its_handle_is_dropped() {
    runtime().block_on(async {
        let saver = start(program()).unwrap();
        let pid = saver.pid();
        kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        drop(saver);
        let gone = async {
            while is_alive(pid) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(END_TIMEOUT * 10, gone).await.unwrap();
    });
}
