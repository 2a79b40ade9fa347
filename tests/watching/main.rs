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
mod terminal;
mod token;

use std::{
    process::{Command, Output},
    sync::LazyLock,
};

use jsonschema::Validator;
use serde_json::Value;
use support::web::get;

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
    support::web::metric(text, series).unwrap_or_else(|| panic!("no {series} in\n{text}"))
}
