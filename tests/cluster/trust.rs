//! Which peers the master serves: tokens and TLS.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use support::{cluster::Cluster, programs};

use crate::{cluster, lines};

#[test]
fn only_nodes_with_the_jobs_token_are_admitted() {
    let mut job = Cluster::of_lines(programs!());
    let master = job.master_line().flags(["--port=0"]).env("DLROVER_JOB_TOKEN", "s3cret");
    job.start_master(master);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("token");
    fs::write(&file, "s3cret\n").expect("our own directory");
    for wrong in [job.ranked(0), job.ranked(0).env("DLROVER_JOB_TOKEN", "s3creT")] {
        let outcome = wrong.flags(["--nnodes=2"]).finish().expect_code(1);
        assert!(outcome.stderr.contains("the job token is missing or wrong"), "{outcome:#?}");
        assert!(!outcome.stderr.contains("s3creT"), "no secret is shown: {outcome:#?}");
    }
    let _said = job.await_master_log("rejected a call: the job token is missing or wrong");
    let by_variable = job.ranked(0).env("DLROVER_JOB_TOKEN", "s3cret").flags(["--nnodes=2"]).start();
    let by_file = job.ranked(1).env("DLROVER_JOB_TOKEN_FILE", &file).flags(["--nnodes=2"]).start();
    let _world = job.await_world(2, 0);
    let outcomes = job.ends_well([by_variable, by_file]);
    assert!(outcomes.iter().all(|it| !it.stderr.contains("requires none")), "{outcomes:#?}");
}

#[test]
fn a_master_without_a_token_warns() {
    let mut job = cluster();
    let output = job.master_log();
    let first = output.lines().next().unwrap_or_default();
    assert!(
        first.contains(
            "this job master listens on all interfaces and accepts connections without a token: any host that can reach its \
             port can"
        ),
        "{output}"
    );
    assert!(
        first.contains(
            "; to admit only nodes of the job, give every node and the job master the same DLROVER_JOB_TOKEN;"
        ),
        "{output}"
    );
    let node = job.ranked(0).start();
    job.ends_well([node]);
}

/// It is the master that checks the token: one without it lets any host join.
#[test]
fn a_node_with_a_token_warns_of_a_master_without_one() {
    let mut job = cluster();
    let node = |rank: u8| job.ranked(rank).flags(["--nnodes=2"]);
    let with = node(0).env("DLROVER_JOB_TOKEN", "s3cret").start();
    let without = node(1).env("DLROVER_JOB_TOKEN", "").start();
    let _world = job.await_world(2, 0);
    let outcomes = job.ends_well([with, without]);
    let warned = outcomes[0].stderr.matches("this node has a job token, and the job master at ").count();
    assert_eq!(warned, 1, "{outcomes:#?}");
    let empty = "warning: DLROVER_JOB_TOKEN is empty, so there is no job token";
    assert!(outcomes[1].stderr.contains(empty) && !outcomes[0].stderr.contains(empty), "{outcomes:#?}");
    assert!(!outcomes[1].stderr.contains("this node has a job token"), "{outcomes:#?}");
}

#[test]
fn neither_workers_nor_the_guard_have_the_token() {
    let mut job = Cluster::of_lines(programs!());
    let token = "a-token-of-this-job-only";
    let master = job.master_line().flags(["--port=0"]).env("DLROVER_JOB_TOKEN", token);
    job.start_master(master);
    let node = job.ranked(0).env("DLROVER_JOB_TOKEN", token).start();
    let world = job.await_world(1, 0);
    // The worker, the guard, the launcher.
    let mut pid = world[0].pid;
    for _ in 0..3 {
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("our own process");
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("PATH="), "{environment}");
        assert!(!environment.contains(token), "process {pid} shows the token");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("our own process");
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|pid| pid.trim().parse().ok()).expect("a parent");
    }
    job.ends_well([node]);
}

#[test]
fn the_master_of_a_single_node_listens_on_loopback_only() {
    let job = Cluster::of_lines(programs!());
    let address = format!("127.0.0.7:{}", support::free_port());
    let node = job.node(1).env("DLROVER_MASTER_ADDR", &address).flags(["--nnodes=1"]).start();
    let world = job.await_world(1, 0);
    let mut peer = support::unknown_peer::UnknownPeer::at(&address);
    let refused = peer.subscribe(&peer.own_id()).expect_err("it has no token");
    assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{refused}");
    assert!(support::cluster::alive(world[0].pid));
    job.go();
    let _ended = job.finish([node], 0);
}

/// Whether a store answers a client that comes from `from`: its first words, and a ping.
fn is_answered(from: [u8; 4], port: u16) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("an address of this host");
        let stream = socket.connect(([127, 0, 0, 1], port).into()).await.expect("it listens");
        let stream = stream.into_std().expect("our own socket");
        stream.set_nonblocking(false).expect("our own socket");
        stream
    });
    let _hung_up = stream.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4]);
    let mut pong = [0; 4];
    stream.read_exact(&mut pong).is_ok() && pong == [1, 2, 3, 4]
}

#[test]
fn the_store_can_be_restricted_to_members() {
    for (allow, unknown_peers) in [("", true), ("members", false)] {
        let mut job = cluster();
        let line = |rank| job.ranked(rank).env("DLROVER_STORE_ALLOW", allow).flags(["--nnodes=2"]);
        let nodes = [0, 1].map(|rank| line(rank).start());
        let world = job.await_world(2, 0);
        let port: u16 = world[0].var("MASTER_PORT").parse().expect("a port");
        assert!(is_answered([127, 0, 0, 2], port), "a member, DLROVER_STORE_ALLOW={allow}");
        assert_eq!(is_answered([127, 0, 0, 99], port), unknown_peers, "DLROVER_STORE_ALLOW={allow}");
        job.ends_well(nodes);
    }
    let job = lines();
    let refused = job.node(1).env("DLROVER_STORE_ALLOW", "friends").finish().expect_code(1);
    assert!(refused.stderr.contains("`DLROVER_STORE_ALLOW=friends` is not a known value"), "{refused:#?}");
}

/// A CA, and a certificate of it for this host.
struct Certificates {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// Nothing where there is no `openssl`, which is said.
    fn make(dir: &Path) -> Option<Self> {
        if Command::new("openssl").arg("version").output().is_err() {
            // Past cargo's capture. A closed stderr must not fail the case.
            let _ = writeln!(std::io::stderr(), "skipped: there is no openssl to make certificates with");
            return None;
        }
        fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1,IP:0.0.0.0\n").expect("our own directory");
        for words in [
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=ca -keyout ca.key -out ca.pem",
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=master -keyout key.pem -out csr.pem",
            "x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile names -out cert.pem",
        ] {
            let made = Command::new("openssl").args(words.split(' ')).current_dir(dir).output();
            let made = made.expect("openssl runs");
            assert!(made.status.success(), "{words}: {}", String::from_utf8_lossy(&made.stderr));
        }
        let file = |name: &str| dir.join(name);
        Some(Self { ca: file("ca.pem"), cert: file("cert.pem"), key: file("key.pem") })
    }
}

#[test]
fn tls_accepts_certificates_of_the_ca() {
    let (ours, theirs) = (tempfile::tempdir(), tempfile::tempdir());
    let (ours, theirs) = (ours.expect("a directory"), theirs.expect("a directory"));
    let Some(known) = Certificates::make(ours.path()) else { return };
    let Some(peer) = Certificates::make(theirs.path()) else { return };
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let (cert, key) = (flag("tls-cert", &known.cert), flag("tls-key", &known.key));
    let mut job = Cluster::with_master(programs!(), &[&cert, &key]);
    let short = "--rdzv-conf=join_timeout=1";
    for wrong in [job.ranked(0), job.ranked(0).flags([flag("tls-ca", &peer.ca)])] {
        let outcome = wrong.flags(["--nnodes=2", short]).finish();
        assert!(matches!(outcome.code, Some(1 | 75)), "{outcome:#?}");
    }
    let ca = flag("tls-ca", &known.ca);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2", &ca]).start());
    let _world = job.await_world(2, 0);
    // `dlrover-diag status` is a peer like a node.
    let status = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
        command
            .env_remove("DLROVER_MASTER_ADDR")
            .env_remove("DLROVER_JOB_TOKEN")
            .env_remove("DLROVER_TLS_CA");
        command.args(["status", job.address()]).args(options).output().expect("it runs")
    };
    let shown = status(&[&ca]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.contains(": running, round 0 on 2 nodes"), "{shown:?}");
    for wrong in [&[][..], &[&*flag("tls-ca", &peer.ca)]] {
        let refused = status(&[wrong, &["--timeout=1"]].concat());
        assert!(refused.status.code() == Some(1) && refused.stdout.is_empty(), "{refused:?}");
    }
    job.ends_well(nodes);
}

#[test]
fn garbage_at_the_port_disturbs_no_node() {
    let mut job = cluster();
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2"]).start());
    let world = job.await_world(2, 0);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let frame_of_16_mib = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let noise: Vec<u8> =
        (0..200_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], b"\x16\x03\x01", &preface, &frame_of_16_mib, &noise]
    {
        let mut stream = TcpStream::connect(job.address()).expect("the master listens");
        // It may close at any time, which is right.
        let _hung_up = stream.write_all(garbage);
        let _hung_up = stream.shutdown(Shutdown::Write);
        let _answer = stream.read_to_end(&mut Vec::new());
    }
    let idle: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(job.address()).expect("the master listens")).collect();
    assert!(world.iter().all(|worker| support::cluster::alive(worker.pid)));
    job.ends_well(nodes);
    assert_eq!(job.ran(), [(0, 0), (0, 1)]);
    drop(idle);
}
