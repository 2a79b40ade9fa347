//! The page in a real browser, where there is one.

use std::process::Command;

use support::{cluster::Cluster, free_port, programs};

/// Debian's names of a browser that runs without a screen.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn browser() -> Option<&'static str> {
    BROWSERS
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success()))
}

#[test]
fn the_page_shows_the_job() {
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: there is no chromium on PATH (apt-get install chromium)");
        return;
    };
    let port = free_port();
    let mut job = Cluster::with_master(programs!(), &[&format!("--http={port}")]);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2", "--network-check"]).start());
    let _world = job.await_world(2, 0);
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["60", browser])
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--timeout=8000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--dump-dom", &format!("http://127.0.0.1:{port}/")])
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&output.stdout);
    for words in [
        "running, round 0, 2 workers on 2 nodes",
        "<td class=\"ok\">running</td>",
        "class=\"cell-pass\"",
        "class=\"run\"",
        "2 of 2 nodes healthy",
        "round 0: workers start on 2 nodes",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    job.ends_well(nodes);
}
