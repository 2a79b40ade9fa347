//! The arguments of `dlrover-master`.

use std::path::PathBuf;

use clap::{Arg, Command, builder::PossibleValuesParser, value_parser};

use crate::numbers::whole;

/// Arguments of dlrover's own master that change nothing here, spelled with `-`: those of its `args.py`, and those that its
/// operator makes of a job's annotations.
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

const ABOUT: &str = "The job master: the nodes of one job meet here, are told their ranks, and are told again when \
                     a node is lost or comes. Nodes reach it by DLROVER_MASTER_ADDR=HOST:PORT in the environment \
                     of dlrover-run.";

const EXIT_CODES: &str = "\
Exit codes:
  0  the job succeeded
  1  the job failed
  2  the arguments, a certificate or the topology file cannot be used
  3  the master cannot go on (port, --state-dir, disk); start it again
  128 + N  ended by signal N before the job was over; start it again

An ElasticJob's operator takes 1 for the end of the job and starts another master after any other.

Further arguments of dlrover's own master are accepted and change nothing; any other word is refused. Every option may \
be spelled with - or _.";

/// What `dlrover-master` understands.
pub(super) fn command() -> Command {
    let path = || value_parser!(PathBuf);
    Command::new("dlrover-master")
        .about(ABOUT)
        .after_help(EXIT_CODES)
        .version(env!("CARGO_PKG_VERSION"))
        .args_override_self(true)
        // They never come here, but a slip in one of them is told.
        .args(OF_DLROVER.map(|name| Arg::new(name).long(name).hide(true)))
        .next_help_heading("The job")
        .arg(
            option("job-name", "NAME")
                .help("The job's name, for this master's log [env: ELASTIC_JOB_NAME] [default: job]"),
        )
        .arg(
            option("restart-count", "N")
                .alias("restart-counts")
                .value_parser(whole::<u32>(0..=u32::MAX.into()))
                .default_value("3")
                .help("How often a node of each rank may be replaced after a loss"),
        )
        .arg(
            option("topology-config", "FILE")
                .value_parser(path())
                .help("Order ranks by this file, `asw psw ip` a line, read for each round [env: DLROVER_TOPOLOGY_CONFIG]"),
        )
        .next_help_heading("The port")
        .arg(
            option("port", "PORT")
                .value_parser(whole::<u16>(0..=u16::MAX.into()))
                .default_value("0")
                .help("Port to serve on; 0 takes one of HOST_PORTS where that is set, else any that is free"),
        )
        .arg(option("bind", "ADDR").help("Address to serve on [default: all]"))
        .next_help_heading("Lost nodes, and a master that is started again")
        .arg(
            option("reconnect-grace", "SECONDS")
                .default_value("2")
                .help("How long a node whose connection broke may take to come back"),
        )
        .arg(
            option("heartbeat-timeout", "SECONDS")
                .default_value("15")
                .help("How long a node may be silent"),
        )
        .arg(
            option("state-dir", "DIR")
                .value_parser(path())
                .help("Remember the job here, so that a master that is started again goes on with it"),
        )
        .next_help_heading("Network checks (the nodes say whether there are any)")
        .arg(
            option("taint-report", "FILE")
                .value_parser(path())
                .help("Write what each check found here, as JSON (dlrover.taint-report/v1)"),
        )
        .arg(
            option("on-fault-node", "CMD")
                .help("Run this by /bin/sh for each node that deserves a taint, its JSON on standard input, for at most 30 s"),
        )
        .arg(option("taint-key", "KEY").help("The key of the taints [default: dlrover.io/node-check]"))
        .arg(
            option("taint-guard", "SHARE").default_value("0.3").help(
                "When more than this share of the nodes (and more than 2) deserve a taint, none is given and the job fails",
            ),
        )
        .next_help_heading("Who may join")
        .arg(
            option("job-token-file", "FILE")
                .value_parser(path())
                .help("The token that every node must show [env: DLROVER_JOB_TOKEN, DLROVER_JOB_TOKEN_FILE]"),
        )
        .arg(
            option("tls-cert", "FILE")
                .value_parser(path())
                .help("This master's certificate, PEM [env: DLROVER_TLS_CERT]"),
        )
        .arg(option("tls-key", "FILE").value_parser(path()).help("Its key, PEM [env: DLROVER_TLS_KEY]"))
        .arg(
            option("tls-client-ca", "FILE")
                .value_parser(path())
                .help("Nodes must have a certificate of this CA, PEM [env: DLROVER_TLS_CLIENT_CA]"),
        )
        .next_help_heading("Of dlrover's own master")
        .arg(
            option("platform", "NAME")
                .help("pyk8s, k8s, ray or local; this master creates no pods on any of them"),
        )
        .arg(option("namespace", "NAME").help("Not used"))
        .arg(option("node-num", "N").help("Not used: the nodes say how many they are (--nnodes)"))
        .arg(
            option("service-type", "TYPE")
                .value_parser(PossibleValuesParser::new(["grpc", "http"]))
                .help("grpc, whatever is asked for"),
        )
}

/// An option with a value, which may begin with `-`: what is wrong with it is said, and not taken for an option.
fn option(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).allow_hyphen_values(true)
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
