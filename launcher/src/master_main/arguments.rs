//! The arguments of `dlrover-master`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory as _, Parser, builder::PossibleValuesParser};

use crate::{
    completion::Shell, metrics_compat::METRICS_COMPAT, numbers::whole, options::Flag, resolve::log::FORMATS,
    version::VERSION,
};

/// Arguments of dlrover's own master that change nothing here, spelled with `-`: those of its `args.py`, and those that
/// its operator makes of a job's annotations.
pub(super) const OF_DLROVER: [&str; 17] = [
    "pending-timeout",
    "pending-fail-strategy",
    "pre-check-ops",
    "pre-check-bypass",
    "hang-detection",
    "hang-downtime",
    "max-hang-downtime",
    "xpu-type",
    "task-process-timeout",
    "training-elastic-mode",
    "dynamic-failover-extension",
    "enable-dashboard",
    "dashboard-port",
    "group-affinity",
    "relaunch-strategy",
    "scheduling-strategy",
    "log-level",
];

/// The job master: the nodes of one job join it, and it tells them their ranks, and again when a node is lost or joins.
/// Nodes reach it by DLROVER_MASTER_ADDR=HOST:PORT in the environment of dlrover-run.
#[derive(Debug, Parser)]
#[command(
    name = "dlrover-master",
    version = VERSION,
    args_override_self = true,
    after_help = "\
Exit codes:
  0  the job succeeded
  1  the job failed
  2  the arguments, a certificate or the topology file cannot be used
  3  the master cannot continue (port, --state-dir, disk); start it again
  128 + N  killed by signal N before the job was over; start it again

An ElasticJob's operator treats 1 as the end of the job and starts another master after any other.

Further arguments of dlrover's own master are accepted and change nothing; any other word is refused. Every option may \
be spelled with - or _."
)]
pub(super) struct Arguments {
    /// The job's name, for this master's log [env: ELASTIC_JOB_NAME] [default: job]
    #[arg(long, value_name = "NAME", help_heading = "The job")]
    pub(super) job_name: Option<String>,
    /// How many times a node of each node rank may be replaced after a loss
    #[arg(long, value_name = "N", help_heading = "The job", alias = "restart-counts",
          value_parser = whole::<u32>(0..=u32::MAX.into()), default_value = Flag::RestartCount.spec().default)]
    pub(super) restart_count: u32,
    /// Order ranks by this file, `asw psw ip` a line, read for each round [env: DLROVER_TOPOLOGY_CONFIG]
    #[arg(long, value_name = "FILE", help_heading = "The job")]
    pub(super) topology_config: Option<PathBuf>,

    /// Port to serve on; 0 takes one of HOST_PORTS where that is set, else any that is free
    #[arg(long, value_name = "PORT", help_heading = "The port",
          value_parser = whole::<u16>(0..=u16::MAX.into()), default_value = "0")]
    pub(super) port: u16,
    /// Address to serve on [default: all]
    #[arg(long, value_name = "ADDR", help_heading = "The port")]
    pub(super) bind: Option<String>,

    /// How long a node whose connection broke may take to reconnect
    #[arg(long, value_name = "SECONDS", help_heading = "Lost nodes, and a restarted master",
          default_value = Flag::ReconnectGrace.spec().default)]
    pub(super) reconnect_grace: String,
    /// How long a node may send no heartbeat
    #[arg(long, value_name = "SECONDS", help_heading = "Lost nodes, and a restarted master",
          default_value = Flag::HeartbeatTimeout.spec().default)]
    pub(super) heartbeat_timeout: String,
    /// Record the job's state here, so that a restarted master continues the job
    #[arg(long, value_name = "DIR", help_heading = "Lost nodes, and a restarted master")]
    pub(super) state_dir: Option<PathBuf>,

    /// Write the result of each check to this file, as JSON (dlrover.taint-report/v1)
    #[arg(long, value_name = "FILE", help_heading = CHECKS)]
    pub(super) taint_report: Option<PathBuf>,
    /// Run this by /bin/sh for each node that is tainted, its JSON on standard input, for at most 30 s
    #[arg(long, value_name = "CMD", help_heading = CHECKS)]
    pub(super) on_fault_node: Option<String>,
    /// The key of the taints
    #[arg(long, value_name = "KEY", help_heading = CHECKS, default_value = Flag::TaintKey.spec().default)]
    pub(super) taint_key: String,
    /// When more than this share of the nodes (and more than 2) would be tainted, no node is tainted and the
    /// job fails
    #[arg(long, value_name = "SHARE", help_heading = CHECKS, default_value = Flag::TaintGuard.spec().default)]
    pub(super) taint_guard: String,

    /// Serve a web page about the job, /metrics for Prometheus, /status.json and /healthz; a port alone is served on 127.0.0.1
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Watching the job")]
    pub(super) http: Option<String>,
    /// Serve the job's /metrics under another tool's names too
    #[arg(long, value_name = "NAMES", help_heading = "Watching the job", default_value = "none",
          value_parser = PossibleValuesParser::new(METRICS_COMPAT))]
    pub(super) metrics_compat: String,

    /// The form of log lines: text, or json (one object per line) [env: DLROVER_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = LOG,
          value_parser = PossibleValuesParser::new(FORMATS), hide_possible_values = true)]
    pub(super) log_format: Option<String>,
    /// Print only errors and how the job ended
    #[arg(short, long, help_heading = LOG, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Print what the master does (as LOGLEVEL=INFO); -vv: every event
    #[arg(short, long, help_heading = LOG, action = ArgAction::Count)]
    pub(super) verbose: u8,

    /// The token that every node must present [env: DLROVER_JOB_TOKEN, DLROVER_JOB_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Which nodes may join")]
    pub(super) job_token_file: Option<PathBuf>,
    /// This master's certificate, PEM [env: DLROVER_TLS_CERT]
    #[arg(long, value_name = "FILE", help_heading = "Which nodes may join")]
    pub(super) tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, PEM [env: DLROVER_TLS_KEY]
    #[arg(long, value_name = "FILE", help_heading = "Which nodes may join")]
    pub(super) tls_key: Option<PathBuf>,
    /// Nodes must have a certificate of this CA, PEM [env: DLROVER_TLS_CLIENT_CA]
    #[arg(long, value_name = "FILE", help_heading = "Which nodes may join")]
    pub(super) tls_client_ca: Option<PathBuf>,

    /// pyk8s, k8s, ray or local; this master creates no pods on any of them
    #[arg(long, value_name = "NAME", help_heading = "Compatibility with DLRover's master")]
    pub(super) platform: Option<String>,
    /// The namespace that --metrics-compat names [default: the pod's]
    #[arg(long, value_name = "NAME", help_heading = "Compatibility with DLRover's master")]
    pub(super) namespace: Option<String>,
    /// Not used: the nodes report how many there are (--nnodes)
    #[arg(long, value_name = "N", help_heading = "Compatibility with DLRover's master")]
    pub(super) node_num: Option<String>,
    /// Not used: this master supports gRPC only
    #[arg(long, value_name = "TYPE", help_heading = "Compatibility with DLRover's master",
          value_parser = PossibleValuesParser::new(["grpc", "http"]))]
    pub(super) service_type: Option<String>,

    /// Print a completion script for bash, zsh or fish
    #[arg(long, value_name = "SHELL", hide_possible_values = true)]
    pub(super) print_completion: Option<Shell>,
}

/// A heading of `dlrover-master --help`.
const CHECKS: &str = "Network checks (the nodes decide whether they run)";

/// A heading of `dlrover-master --help`.
const LOG: &str = "The master's log";

/// What `dlrover-master` parses.
pub(super) fn command() -> Command {
    Arguments::command()
        // A value may begin with `-`: it is refused as a value, and not parsed as an option.
        .mut_args(|arg| match arg.get_action() {
            ArgAction::Set => arg.allow_hyphen_values(true),
            _ => arg,
        })
        // They are removed before, but a misspelling of one of them gets a suggestion.
        .args(OF_DLROVER.map(|name| Arg::new(name).long(name).hide(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_well_formed() {
        command().debug_assert();
        assert!(OF_DLROVER.iter().all(|name| !name.contains('_')));
    }

    #[test]
    fn the_help_is_pleasant_to_read() {
        insta::assert_snapshot!(command().term_width(100).render_help());
    }

    #[test]
    fn a_bad_value_is_named() {
        let (port, count) =
            ("expected a whole number from 0 to 65535", "expected a whole number from 0 to 4294967295");
        for (word, value, range) in [
            ("--port=70000", "'70000'", port),
            ("--port=-5", "'-5'", port),
            ("--restart-count=x", "'x'", count),
        ] {
            let refused = command().try_get_matches_from(["dlrover-master", word]).unwrap_err();
            assert!(refused.to_string().contains(value), "{refused}");
            assert!(refused.to_string().contains(range), "{refused}");
            assert_eq!(refused.exit_code(), 2);
        }
    }
}
