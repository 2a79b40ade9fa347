//! The page and the picture of stacks in a real browser, where there is one.
//!
//! `DLROVER_SHOTS=DIR cargo test -p dlrover-tests --test watching browser` leaves screenshots there, to look at.

use std::{
    env,
    fs::{self, OpenOptions},
    io::{Write as _, stderr},
    path::Path,
    process::Command,
};

use serde_json::Value;
use support::{cluster::Cluster, free_port, programs, trainer};

use crate::{check, diag, status};

/// Debian's names of a browser that runs without a screen.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser without a screen.
struct Browser(&'static str);

impl Browser {
    /// The one on PATH; says so where there is none.
    fn find() -> Option<Self> {
        let is_there =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
        let found = BROWSERS.into_iter().find(is_there).map(Self);
        if found.is_none() {
            let _ = writeln!(stderr(), "skipped: there is no chromium on PATH (apt-get install chromium)");
        }
        found
    }

    fn run(&self, args: &[&str]) -> String {
        let profile = tempfile::tempdir().expect("a directory for the browser");
        let output = Command::new("timeout")
            .args(["60", self.0])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--timeout=8000"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(args)
            .output()
            .expect("timeout runs the browser");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The document after its scripts have run. A screenshot of this name is left where `DLROVER_SHOTS` says.
    fn document(&self, url: &str, name: &str) -> String {
        if let Some(folder) = env::var_os("DLROVER_SHOTS") {
            let file = Path::new(&folder).join(format!("{name}.png"));
            let _nothing =
                self.run(&[&format!("--screenshot={}", file.display()), "--window-size=1620,1000", url]);
        }
        self.run(&["--dump-dom", url])
    }
}

#[test]
fn the_page_shows_the_job() {
    let Some(browser) = Browser::find() else { return };
    let port = free_port();
    let mut job = Cluster::with_master(programs!(), &[&format!("--http={port}")]);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2:3", "--network-check"]).start());
    let _world = job.await_world(2, 0);
    let page = browser.document(&format!("http://127.0.0.1:{port}/"), "healthy");
    for words in [
        "running, round 0, 2 workers on 2 nodes",
        "<td class=\"ok\">running</td>",
        "class=\"cell-pass\"",
        "class=\"run\"",
        "2 of 2 nodes healthy",
        "round 0: workers start on 2 nodes",
        "<b>2:3</b><span>nodes (--nnodes)</span>",
        "<th>up</th>",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    job.ends_well(nodes);
}

#[test]
fn a_hang_is_on_the_page_in_the_status_and_in_the_picture_of_its_stacks() {
    let Some(browser) = Browser::find() else { return };
    let port = free_port();
    let mut job = Cluster::of_lines(programs!());
    let stacks = job.dir().join("stacks");
    let master = job.master_line().flags(["--port=0", &format!("--http={port}")]);
    job.start_master(master.env("XPU_TIMER_TIMELINE_PATH", &stacks));
    let node = |rank: u8| {
        let args = ["--kind=fifo", "--who=1", "--at=3", "--steps=8"];
        let line = job.ranked(rank).flags(["--nnodes=2", "--hang-timeout=2"]);
        line.script(trainer("hang.py")).args(args).start()
    };
    let nodes = [node(0), node(1)];
    let hang = job.wait("a hang", || Some(status(port)["hang"].clone()).filter(Value::is_object));
    let sentence = hang["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("rank 1 is in hang.py:"), "{sentence}");
    assert!(sentence.ends_with(" read_shard_list; 0 waits in all_reduce"), "{sentence}");

    let page = browser.document(&format!("http://127.0.0.1:{port}/"), "hang");
    assert!(page.contains("<p id=\"hang\" class=\"bad\">Hang, "), "{page}");
    assert!(page.contains("class=\"warn\" aria-live=\"polite\">running, round 0"), "{page}");
    assert!(page.contains(&format!(": {sentence}; stacks: {}</p>", stacks.display())), "{page}");

    let asked = diag(&["status", job.address(), "--json"]);
    let asked: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    check(&asked);
    let hang = &asked["hang"];
    assert_eq!((&hang["sentence"], &hang["is_over"]), (&sentence.into(), &false.into()), "{asked:#}");
    let text = String::from_utf8(diag(&["status", job.address()]).stdout).unwrap();
    assert!(text.contains("\n  HANG ") && text.contains(&format!(": {sentence}; stacks: ")), "{text}");

    let picture = stacks.join("py_stack.svg");
    let svg = job.wait("the picture", || fs::read_to_string(&picture).ok());
    let drawn = browser.document(&format!("file://{}", picture.display()), "stacks");
    assert!(drawn.contains("read_shard_list@"), "{drawn}");
    assert!(drawn.contains("class=\"hide\">reset zoom"), "{drawn}");
    // A click on the function's box: the picture's script makes it as wide as the picture.
    let click = "<script>[].slice.call(document.querySelectorAll(\"#frames g\")).filter(function (g) { return \
                 g.querySelector(\"title\").textContent.indexOf(\"read_shard_list\") >= 0; })[0].dispatchEvent(new \
                 MouseEvent(\"click\"));</script></svg>";
    let clicked = stacks.join("clicked.svg");
    fs::write(&clicked, svg.replace("</svg>", click)).unwrap();
    let zoomed = browser.document(&format!("file://{}", clicked.display()), "zoomed");
    assert!(zoomed.contains("class=\"\">reset zoom") && zoomed.contains("class=\"below\""), "{zoomed}");

    let fifo = job.dir().join("fifo.1");
    drop(OpenOptions::new().write(true).open(fifo).expect("the rank reads it"));
    job.ends_well(nodes);
}
