//! What people and tools see of a job: `dlrover-diag status` and `events`, the page, the metrics, log lines, reports.

mod agreement;
mod browser;
mod dry_run;
mod follow;
mod life;
mod local;
mod log;
mod prometheus;
mod ratio;
mod run_report;
mod token;

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Output},
    sync::LazyLock,
    time::Duration,
};

use jsonschema::Validator;
use serde_json::Value;

/// A job's status as its page gets it; checked against its schema.
fn status(port: u16) -> Value {
    let (code, body) = get(port, "/status.json", "");
    assert_eq!(code, 200, "{body}");
    let status: Value = serde_json::from_str(&body).expect("JSON");
    check(&status);
    status
}

/// # Panics
/// The document is not as the schema says.
fn check(document: &Value) {
    static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
        let text = include_str!("../../docs/job-status.v1.schema.json");
        let schema: Value = serde_json::from_str(text).expect("the schema is JSON");
        jsonschema::draft202012::new(&schema).expect("the schema is one")
    });
    let errors: Vec<String> =
        SCHEMA.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{document:#}");
}

/// A request by hand; `headers` are whole lines. Returns the code and the body.
fn get(port: u16, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the web server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("the web server answers");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
        .expect("the web server answers");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the web server answers");
    let answer = String::from_utf8(answer).expect("the web server answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    (code, body.to_owned())
}

/// `dlrover-diag` with these arguments.
fn diag(args: &[&str]) -> Output {
    diag_command(args).output().expect("it runs")
}

fn diag_command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlrover-diag-under-test"));
    command.args(args).env_remove("DLROVER_MASTER_ADDR").env_remove("DLROVER_JOB_TOKEN");
    command
}

/// The value of a series in the text of `/metrics`.
fn metric(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().expect("a number")
}
