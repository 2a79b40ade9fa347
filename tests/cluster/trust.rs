//! Whom the master listens to.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use support::{cluster::Cluster, programs};

use crate::cluster;

#[test]
fn only_nodes_with_the_jobs_token_take_part() {
    let mut job = Cluster::of_lines(programs!());
    let master = job.master_line().flags(["--port=0"]).env("DLROVER_JOB_TOKEN", "s3cret");
    job.start_master(master);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("token");
    fs::write(&file, "s3cret\n").expect("our own folder");
    for wrong in [job.ranked(0), job.ranked(0).env("DLROVER_JOB_TOKEN", "s3creT")] {
        let outcome = wrong.flags(["--nnodes=2"]).finish().expect_code(1);
        assert!(outcome.stderr.contains("the job token is missing or wrong"), "{outcome:#?}");
        assert!(!outcome.stderr.contains("s3creT"), "no secret is shown: {outcome:#?}");
    }
    let _said = job.await_master_said("refused a call: the job token is missing or wrong");
    let by_variable = job.ranked(0).env("DLROVER_JOB_TOKEN", "s3cret").flags(["--nnodes=2"]).start();
    let by_file = job.ranked(1).env("DLROVER_JOB_TOKEN_FILE", &file).flags(["--nnodes=2"]).start();
    let _world = job.await_world(2, 0);
    job.ends_well([by_variable, by_file]);
}

#[test]
fn a_master_that_trusts_anybody_says_so() {
    let mut job = cluster();
    let said = job.master_said();
    assert!(said.contains("DLROVER_JOB_TOKEN"), "{said}");
    let node = job.ranked(0).start();
    job.ends_well([node]);
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
            // Past cargo's capture, for it has no way to say it. A stderr that is closed must not fail the case.
            let _ = writeln!(std::io::stderr(), "skipped: there is no openssl to make certificates with");
            return None;
        }
        fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1,IP:0.0.0.0\n").expect("our own folder");
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
fn tls_is_spoken_with_whom_the_ca_knows() {
    let (ours, theirs) = (tempfile::tempdir(), tempfile::tempdir());
    let (ours, theirs) = (ours.expect("a folder"), theirs.expect("a folder"));
    let Some(known) = Certificates::make(ours.path()) else { return };
    let Some(stranger) = Certificates::make(theirs.path()) else { return };
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let (cert, key) = (flag("tls-cert", &known.cert), flag("tls-key", &known.key));
    let mut job = Cluster::with_master(programs!(), &[&cert, &key]);
    let short = "--rdzv-conf=join_timeout=1";
    for wrong in [job.ranked(0), job.ranked(0).flags([flag("tls-ca", &stranger.ca)])] {
        let outcome = wrong.flags(["--nnodes=2", short]).finish();
        assert!(matches!(outcome.code, Some(1 | 75)), "{outcome:#?}");
    }
    let ca = flag("tls-ca", &known.ca);
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(["--nnodes=2", &ca]).start());
    let _world = job.await_world(2, 0);
    job.ends_well(nodes);
}

#[test]
fn garbage_at_the_port_disturbs_nobody() {
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
        // It may hang up at any moment, which is right.
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
