//! The rendezvous of the workers: which address they get, and which process serves it.
//!
//! The probe's client is `trainers/tcp_store.py`, so torch is not needed on our side.

use support::free_port;

use crate::differs::torchrun_differs;
use crate::launch;

/// Each rank sets a key, reads the other's, and counts.
const TALK: &[&str] = &[
    "dump",
    "0 set from0 zero",
    "1 set from1 one",
    "0 get from1",
    "1 get from0",
    "add count",
    "0 has never",
];

#[track_caller]
fn talked(run: &support::launch::Outcome) {
    assert_eq!(run.file("0.0.get.from1").as_deref(), Some("one"));
    assert_eq!(run.file("1.0.get.from0").as_deref(), Some("zero"));
    let mut counts = [0, 1].map(|rank| run.file(&format!("{rank}.0.add.count")));
    counts.sort_unstable();
    assert_eq!(counts, [Some("1".to_owned()), Some("2".to_owned())]);
    assert_eq!(run.file("0.0.has.never").as_deref(), Some("False"));
}

#[test]
fn the_launcher_serves_the_store() {
    let run = launch().flags(["--standalone", "--nproc-per-node=2"]).steps(TALK).finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("TORCHELASTIC_USE_AGENT_STORE"), "True");
    talked(&run);
}

#[test]
fn a_static_rendezvous_is_served_at_its_port() {
    let port = free_port().to_string();
    let flags = ["--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port", &port];
    let run = launch().flags(flags).steps(TALK).finish().expect_code(0);
    let worker = run.dump(1, 0);
    assert_eq!((worker.var("MASTER_ADDR"), worker.var("MASTER_PORT")), ("127.0.0.1", port.as_str()));
    assert_eq!(worker.var("TORCHELASTIC_USE_AGENT_STORE"), "True");
    assert_eq!(worker.var("TORCHELASTIC_RUN_ID"), "none");
    talked(&run);

    // The switch below is not for static lines.
    let port = free_port().to_string();
    let run = launch()
        .flags(["--nproc-per-node=2", "--master-addr=localhost", "--rdzv-id=mine", "--master-port", &port])
        .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        .steps(TALK)
        .finish()
        .expect_code(0);
    let worker = run.dump(0, 0);
    assert_eq!((worker.var("MASTER_ADDR"), worker.var("MASTER_PORT")), ("localhost", port.as_str()));
    assert_eq!(worker.var("TORCHELASTIC_USE_AGENT_STORE"), "True");
    assert_eq!(worker.var("TORCHELASTIC_RUN_ID"), "mine");
    talked(&run);
}

#[test]
fn rank_0_can_serve_the_store() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        .steps(&["dump", "0 serve", "0 set k v", "1 get k", "1 touch got", "0 await got"])
        .finish()
        .expect_code(0);
    assert_eq!(run.dump(0, 0).var("TORCHELASTIC_USE_AGENT_STORE"), "False");
    assert_eq!(run.file("1.0.get.k").as_deref(), Some("v"));
}

#[test]
fn a_c10d_run_keeps_its_id() {
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    let run = launch()
        .flags(["--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=j1", &endpoint])
        .steps(TALK)
        .finish()
        .expect_code(0);
    let worker = run.dump(1, 0);
    assert_eq!(worker.var("TORCHELASTIC_RUN_ID"), "j1");
    assert!(worker.var("TORCHELASTIC_ERROR_FILE").contains("/j1_"));
    talked(&run);
}

#[test]
fn a_local_address_overrides_the_masters() {
    let run = launch().flags(["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]).steps(TALK);
    let run = run.finish().expect_code(0);
    assert_eq!(run.dump(0, 0).var("MASTER_ADDR"), "127.0.0.1");
    talked(&run);
}

#[test]
fn the_store_outlives_rank_0() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .steps(&[
            "0 dump",
            "0 set k v",
            "0 touch set",
            "0 exit 0",
            "1 await set",
            "1 gone 0.0.dump",
            "1 get k",
        ])
        .finish()
        .expect_code(0);
    assert_eq!(run.file("1.0.get.k").as_deref(), Some("v"));
}

#[test]
fn a_restart_keeps_the_port_and_its_store_works() {
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2", "--max-restarts=1"])
        .steps(&["dump", "0 set a 1", "1 get a", "1@0 kill KILL", "@0 hang", "1 set b 2", "0 get b"])
        .finish()
        .expect_code(0);
    assert_eq!(run.dump(0, 0).var("MASTER_PORT"), run.dump(0, 1).var("MASTER_PORT"));
    assert_eq!(run.file("0.1.get.b").as_deref(), Some("2"));
}

#[test]
fn a_restart_starts_from_an_empty_store() {
    let run = launch()
        .flags(["--standalone", "--max-restarts=1"])
        .steps(&["@0 set old 1", "has old", "@0 exit 3"])
        .finish()
        .expect_code(0);
    assert_eq!(run.file("0.0.has.old").as_deref(), Some("True"));
    let stale = torchrun_differs("a_restart_starts_from_an_empty_store");
    assert_eq!(run.file("0.1.has.old").as_deref(), Some(if stale { "True" } else { "False" }));
}

#[test]
fn a_full_store_closes_the_connection_and_reports_it() {
    if torchrun_differs("a_full_store_closes_the_connection_and_reports_it") {
        return;
    }
    let run = launch()
        .flags(["--standalone", "--nproc-per-node=2"])
        .steps(&["1 set mine kept", "0 get mine", "0 overfill", "0 touch full", "1 await full", "1 get mine"])
        .finish()
        .expect_code(0);
    assert_eq!(run.file("0.0.overfill").as_deref(), Some("end"));
    assert_eq!(run.file("1.0.get.mine").as_deref(), Some("kept"));
    let output: Vec<&str> = run.stderr.lines().filter(|line| line.contains("the workers' store")).collect();
    let [line] = output[..] else { panic!("not one line: {output:#?}") };
    assert!(line.contains("rejected a write from 127.0.0.1:"), "{line}");
    assert!(
        line.contains("the table is full: 1048576 keys; delete keys that are no longer needed"),
        "{line}"
    );
}
