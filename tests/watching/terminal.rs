//! `dlrover-diag status` on a terminal, and the live screen of `--watch`.

use std::{
    fs::{File, OpenOptions},
    io::Read as _,
    process::Child,
    slice,
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{cluster::Cluster, free_port, programs, trainer, wait_for};

use crate::{diag_command, get, metric};

const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// A follower of a job on a terminal of 80 columns and 24 rows.
struct Screen {
    follower: Child,
    written: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

impl Screen {
    fn of(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: ROWS as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a terminal");
        // Copies that processes of other tests do not inherit.
        let [master, slave] = [master, slave].map(|end| end.try_clone().expect("a descriptor"));
        let mut command = diag_command(arguments);
        command.env_remove("NO_COLOR").envs(variables.iter().copied()).stdout(slave);
        let follower = command.spawn().expect("it runs");
        // Its copy of the terminal, without which reading ends.
        drop(command);
        let written = Arc::new(Mutex::new(Vec::new()));
        let reader = thread::spawn({
            let written = written.clone();
            let mut master = File::from(master);
            move || {
                let mut piece = [0; 4096];
                // A terminal that no process has open any more is an error.
                while let Ok(length @ 1..) = master.read(&mut piece) {
                    written.lock().expect("no panic").extend_from_slice(&piece[..length]);
                }
            }
        });
        Self { follower, written, reader }
    }

    /// The last whole screen, with its colours.
    fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.written.lock().expect("no panic")).into_owned();
        let Some((before, _)) = text.rsplit_once("\x1b[J") else { return String::new() };
        // The terminal adds a carriage return of its own.
        before
            .rsplit_once("\x1b[H")
            .expect("a screen has a beginning")
            .1
            .replace("\x1b[K", "")
            .replace('\r', "")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.follower.id().try_into().expect("a process id")), signal).expect("it runs");
    }

    /// Waits for its end. Returns its exit code.
    fn end(&mut self) -> Option<i32> {
        let code = self.follower.wait().expect("our own process").code();
        wait_for("the end of what it has written", || self.reader.is_finished().then_some(()));
        code
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _gone = self.follower.kill();
        let _reaped = self.follower.wait();
    }
}

/// The text without colours.
fn plain(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| plain + piece.split_once('m').expect("a colour").1)
}

/// The same colours, once.
fn status_without_watch(address: &str) {
    for (variables, begin) in [(&[][..], "\x1b[1mjob "), (&[("NO_COLOR", "1")], "job ")] {
        let mut screen = Screen::of(&["status", address], variables);
        assert_eq!(screen.end(), Some(0));
        let text = String::from_utf8(screen.written.lock().expect("no panic").clone()).expect("UTF-8");
        assert!(text.starts_with(begin), "{text:?}");
        assert_eq!(text.contains('\x1b'), variables.is_empty(), "{text:?}");
        assert!(!text.contains('\u{fffd}'), "a sign for a control character: {text:?}");
        assert!(plain(&text).lines().all(|line| line.chars().count() <= COLUMNS), "{text:?}");
    }
}

#[test]
fn a_terminal_has_a_screen_that_fits_until_the_job_ends() {
    let mut job = Cluster::with_master(programs!(), &[]);
    let mut screens = [&[][..], &[("NO_COLOR", "1")]]
        .map(|variables| Screen::of(&["status", job.address(), "--watch"], variables));
    let until = |screens: &[Screen], words: &str| {
        job.wait(words, || screens.iter().all(|screen| plain(&screen.shown()).contains(words)).then_some(()));
    };
    until(&screens, "(no node has joined): waiting for nodes");
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let _world = job.await_world(2, 0);
    until(&screens, ": running, round 0 on 2 nodes, 2 workers");
    status_without_watch(job.address());
    let mut interrupted = Screen::of(&["status", job.address(), "--watch"], &[]);
    until(slice::from_ref(&interrupted), ": running");
    interrupted.signal(Signal::SIGINT);
    assert_eq!(interrupted.end(), Some(130), "the end of the job was not seen");
    let [coloured, uncoloured] = [0, 1].map(|index| screens[index].shown());
    assert!(coloured.contains("\x1b[1m") && coloured.contains("\x1b[32m0 "), "{coloured:?}");
    assert!(!uncoloured.contains('\x1b'), "{uncoloured:?}");
    for line in [plain(&coloured), uncoloured].iter().flat_map(|text| text.lines()) {
        assert!(line.chars().count() <= COLUMNS, "{line:?}");
    }
    assert!(screens.iter().all(|screen| screen.shown().lines().count() < ROWS), "{coloured}");
    job.ends_well(nodes);
    for screen in &mut screens {
        assert_eq!(screen.end(), Some(0));
        let last = screen.shown();
        assert!(plain(&last).lines().next().is_some_and(|line| line.ends_with(": succeeded")), "{last:?}");
    }
}

#[test]
fn a_hang_is_on_the_screen_and_in_the_metrics_from_its_report_until_a_rank_advances() {
    let port = free_port();
    let mut job = Cluster::of_lines(programs!());
    let stacks = job.dir().join("stacks");
    let master = job.master_line().flags(["--port=0", &format!("--http={port}")]);
    job.start_master(master.env("XPU_TIMER_TIMELINE_PATH", &stacks));
    let mut screen = Screen::of(&["status", job.address(), "--watch"], &[]);
    let until = |job: &Cluster, screen: &Screen, words: &str| {
        job.wait(words, || plain(&screen.shown()).contains(words).then_some(()));
    };
    let metrics = || get(port, "/metrics", "").1;
    let hangs = || ["dlrover_hanging", "dlrover_hangs_total"].map(|series| metric(&metrics(), series));
    until(&job, &screen, "waiting for nodes");
    assert_eq!(hangs(), [0.0, 0.0]);
    let node = |rank: u8| {
        let args = ["--kind=fifo", "--who=1", "--at=3", "--steps=150", "--pace=0.1"];
        let line = job.ranked(rank).flags(["--nnodes=2", "--hang-timeout=2"]);
        line.script(trainer("hang.py")).args(args).start()
    };
    let nodes = [node(0), node(1)];
    until(&job, &screen, "HANG ");
    until(&job, &screen, "rank 1 is in hang.py:");
    assert_eq!(hangs(), [1.0, 1.0]);
    let fifo = job.dir().join("fifo.1");
    drop(OpenOptions::new().write(true).open(fifo).expect("the rank reads it"));
    until(&job, &screen, "last hang ");
    assert_eq!(hangs(), [0.0, 1.0]);
    let rate =
        job.wait("a rate", || support::web::metric(&metrics(), "dlrover_rank_steps_per_second{rank=\"1\"}"));
    // It makes at most 10 a second, and was in the hang for 2 seconds at least.
    assert!(rate > 0.0 && rate < 10.0, "{rate}");
    job.ends_well(nodes);
    assert_eq!(screen.end(), Some(0));
}
