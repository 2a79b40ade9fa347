//! A job with a token shows nothing to those that do not have it.

use support::{cluster::Cluster, free_port, programs};

use crate::{diag, diag_command, get};

#[test]
fn all_but_the_health_check_requires_the_token() {
    let port = free_port();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret\n").unwrap();
    let path = file.path().to_str().unwrap();
    let http = format!("--http=127.0.0.1:{port}");
    let job = Cluster::with_master(programs!(), &[&http, "--job-token-file", path]);
    let _served = job.await_master_log("page and metrics of the job: ");
    for path in ["/", "/metrics", "/status.json", "/status-stream"] {
        assert_eq!(get(port, path, "").0, 401, "{path}");
        assert_eq!(get(port, path, "Authorization: Bearer wrong\r\n").0, 401, "{path}");
    }
    assert_eq!(get(port, "/healthz", "").0, 200);
    assert_eq!(get(port, "/metrics", "Authorization: Bearer s3cret\r\n").0, 200);
    // base64 of `any:s3cret`
    assert_eq!(get(port, "/", "Authorization: Basic YW55OnMzY3JldA==\r\n").0, 200);
    assert_eq!(get(port, "/nowhere", "Authorization: Bearer s3cret\r\n").0, 404);

    let refused = diag(&["status", job.address()]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr.contains("the job token is missing or wrong"), "{stderr}");
    let shown = diag(&["status", job.address(), "--job-token-file", path]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    let shown = diag_command(&["status", job.address()]).env("DLROVER_JOB_TOKEN", "s3cret").output().unwrap();
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    // The address may come from the variable, too. Without one the file is of no use.
    let mut by_variable = diag_command(&["status", "--job-token-file", path]);
    let shown = by_variable.env("DLROVER_MASTER_ADDR", job.address()).output().unwrap();
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    let refused = diag(&["status", "--job-token-file", path]);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--job-token-file requires the address of the job master"), "{stderr}");
}

/// The page of a launcher that serves its own job requires the token that the user has given, and no other: the one
/// that such a job makes for itself is known to no person.
#[test]
fn the_page_of_a_launcher_requires_the_users_token() {
    for (token, code) in [(Some("s3cret"), 401), (None, 200)] {
        let port = free_port();
        let job = Cluster::of_lines(programs!());
        let mut launch = job.line().flags(["--standalone", &format!("--http={port}")]);
        if let Some(token) = token {
            launch = launch.env("DLROVER_JOB_TOKEN", token);
        }
        let run = launch.start();
        let _world = job.await_world(1, 0);
        for path in ["/", "/metrics", "/status.json"] {
            assert_eq!(get(port, path, "").0, code, "{token:?}: {path}");
            assert_eq!(get(port, path, "Authorization: Bearer s3cret\r\n").0, 200, "{token:?}: {path}");
        }
        assert_eq!(get(port, "/healthz", "").0, 200);
        job.go();
        let _ended = job.finish([run], 0);
    }
}
