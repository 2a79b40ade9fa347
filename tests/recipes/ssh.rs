//! `examples/ssh/run.sh`, with an ssh that stays on this host.

use nix::sys::signal::Signal;
use support::{free_port, launch::Launch};

use crate::{Place, example, expect_ranks_by, trained};

fn run(place: &Place, hosts: &str, args: &[&str]) -> Launch {
    let script = example("ssh/run.sh");
    let line = [script.to_str().expect("a plain path"), hosts].into_iter().chain(args.iter().copied());
    place.line(line).env("PORT", free_port().to_string()).env("NPROC", "2")
}

const HOSTS: &str = "127.0.0.1 127.0.0.2";

#[test]
fn all_hosts_train() {
    let place = Place::new();
    trained([run(&place, HOSTS, &["train.py", "--steps", "40"]).start()], 4);
    place.expect_one_round(2);
    let rank = |connection: &str| match connection.split(' ').nth(2) {
        Some("127.0.0.1") => "0".to_owned(),
        Some("127.0.0.2") => "1".to_owned(),
        other => panic!("no host of this run: {other:?}"),
    };
    expect_ranks_by(&place, "SSH_CONNECTION", rank);
}

#[test]
fn each_line_has_its_host() {
    let place = Place::new();
    let end = run(&place, "127.0.0.1", &["train.py", "--steps", "1"]).finish().expect_code(0);
    assert!(end.stdout.lines().all(|line| line.starts_with("127.0.0.1: ")), "{end:#?}");
    assert!(end.stdout.contains("127.0.0.1: final loss"), "{end:#?}");
}

#[test]
fn arguments_arrive_as_they_are() {
    let place = Place::new();
    let end = run(&place, HOSTS, &["train.py", "--steps", "1", "a b"]).finish().expect_code(1);
    assert!(end.stdout.contains("unrecognized arguments: a b"), "{end:#?}");
}

#[test]
fn a_signal_ends_all_hosts() {
    let place = Place::new();
    let run = run(&place, HOSTS, &["train.py", "--steps", "100000", "--sleep", "0.1"]).start();
    place.await_workers(&run, 4);
    run.signal(Signal::SIGTERM);
    // That no process is left is asserted here.
    let end = run.finish();
    assert_ne!(end.code, Some(0), "{end:#?}");
}

#[test]
fn a_host_that_cannot_be_reached_fails_the_run() {
    let place = Place::new();
    let end = run(&place, "nowhere", &["train.py"]).finish().expect_code(255);
    assert!(end.stdout.contains("nowhere: ssh: Could not resolve hostname nowhere"), "{end:#?}");
}
