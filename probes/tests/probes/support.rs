//! Shared by the tests.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use probes::{Listener, ProbeProgram, RingMode, RingPlan};

/// Longer than anything here takes on a busy machine; only a hang reaches it.
pub const TIMEOUT: Duration = Duration::from_secs(120);

pub fn program() -> ProbeProgram {
    ProbeProgram {
        path: PathBuf::from(env!("CARGO_BIN_EXE_dlrover-probe-under-test")),
        ..ProbeProgram::default()
    }
}

/// A listener of each member, on loopback.
pub fn listeners(count: usize) -> Vec<Listener> {
    (0..count).map(|_| Listener::bind(Some([127, 0, 0, 1].into()), 0).unwrap()).collect()
}

/// Each member's plan of one ring over these listeners.
pub fn plans(ports: &[u16], token: u64, mode: RingMode) -> Vec<RingPlan> {
    let plan = |me| RingPlan {
        token,
        seed: token ^ 77,
        me,
        members: vec!["127.0.0.1".into(); ports.len()],
        ports: ports.to_vec(),
        connect_timeout: TIMEOUT,
        mode,
    };
    (0..ports.len()).map(plan).collect()
}

pub fn ports(listeners: &[Listener]) -> Vec<u16> {
    listeners.iter().map(Listener::port).collect()
}

/// Fails on a hang.
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.expect("in time")
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    processes::tree::process(pid).is_some_and(|process| process.is_alive())
}

/// Waits until it is so. What is asked for, such as the state of a process, has no event: the sleep is the pause
/// between two questions.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The living children of this process that are probes, of all tests.
pub fn probes_below(pid: i32) -> Vec<i32> {
    processes::tree::below(pid)
        .into_iter()
        .filter(|process| process.name == "dlrover-probe" && process.is_alive())
        .map(|process| process.pid)
        .collect()
}

/// The number in the file, once it is written.
pub fn number_in(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok())
}

/// A script with a daemon child, both ignoring SIGTERM, that writes their process ids into a directory.
pub fn ignores_sigterm(folder: &tempfile::TempDir, then: &str) -> String {
    let folder = folder.path().display();
    format!(
        "trap '' TERM
         (setsid sh -c \"trap '' TERM; echo \\$\\$ > {folder}/daemon; while :; do sleep 0.01; done\" >/dev/null 2>&1 &)
         while [ ! -s {folder}/daemon ]; do sleep 0.01; done
         echo '{{\"progress\":{{\"bytes\":5,\"total\":10}}}}'
         echo $$ > {folder}/leader
         {then}"
    )
}
