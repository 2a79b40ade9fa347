//! A real Prometheus scrapes a job, where there is one.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use support::{cluster::Cluster, free_port, programs};

use crate::get;

/// Debian's package has both programs.
fn is_there() -> bool {
    ["prometheus", "promtool"]
        .iter()
        .all(|name| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success()))
}

/// Killed when it goes out of scope.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Prometheus {
    /// It scrapes this port every second, as docs/watching.md says.
    fn start(job: &Cluster, scraped: u16, token: &str) -> Self {
        let folder = job.dir().join("prometheus");
        fs::create_dir(&folder).expect("a directory");
        fs::write(folder.join("token"), token).expect("a file");
        let config = format!(
            "scrape_configs:\n- job_name: dlrover\n  scrape_interval: 1s\n  authorization: {{ credentials_file: {} }}\n  \
             static_configs: [ {{ targets: ['127.0.0.1:{scraped}'] }} ]\n",
            folder.join("token").display()
        );
        let file = folder.join("prometheus.yml");
        fs::write(&file, config).expect("a file");
        let checked =
            Command::new("promtool").args(["check", "config"]).arg(&file).output().expect("it runs");
        assert!(checked.status.success(), "{checked:?}");
        let port = free_port();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).expect("a file"))
            .spawn()
            .expect("it starts");
        Self { child, port }
    }

    /// The value of the only series of this name; `None` until it has been scraped.
    fn value(&self, name: &str) -> Option<f64> {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let (code, body) = get(self.port, &format!("/api/v1/query?query={name}"), "");
        if code != 200 {
            return None;
        }
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }
}

#[test]
fn prometheus_follows_a_job_through_a_failure() {
    if !is_there() {
        eprintln!("SKIPPED: there is no prometheus or no promtool on PATH (apt-get install prometheus)");
        return;
    }
    let port = free_port();
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "s3cret").unwrap();
    let path = token.path().to_str().unwrap();
    let flags = [&*format!("--http={port}"), "--metrics-compat=mpi-operator", "--job-token-file", path];
    let mut job = Cluster::with_master(programs!(), &flags);
    let prometheus = Prometheus::start(&job, port, "s3cret");
    let steps = ["dump", "1@0 await fail", "1@0 exit 3", "await go"];
    let line = ["--nnodes=2", "--max-restarts=1", "--network-check", "--job-token-file", path];
    let nodes = [0, 1].map(|rank| job.ranked(rank).flags(line).steps(&steps).start());
    let _world = job.await_world(2, 0);
    job.wait("a scrape of round 0", || (prometheus.value("dlrover_round") == Some(0.0)).then_some(()));
    job.touch("fail");
    let _world = job.await_world(2, 1);
    job.wait("a scrape of round 1", || (prometheus.value("dlrover_round") == Some(1.0)).then_some(()));
    for (name, value) in [
        ("up", 1.0),
        ("dlrover_nodes{state=%22running%22}", 2.0),
        ("sum(dlrover_worker_restarts_total)", 1.0),
        ("dlrover_rendezvous_seconds_count", 2.0),
        ("dlrover_failure_to_running_seconds_count", 1.0),
        ("sum(dlrover_check_verdicts{verdict=%22healthy%22})", 2.0),
        ("mpi_operator_jobs_created_total", 1.0),
    ] {
        assert_eq!(prometheus.value(name), Some(value), "{name}");
    }
    let metrics = job.dir().join("metrics");
    fs::write(&metrics, get(port, "/metrics", "Authorization: Bearer s3cret\r\n").1).unwrap();
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(fs::File::open(&metrics).unwrap())
        .output()
        .unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
    job.ends_well(nodes);
}
