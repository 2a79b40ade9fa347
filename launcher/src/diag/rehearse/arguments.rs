//! The arguments of `dlrover-diag rehearse`.

use clap::{Arg, ArgAction, Command};

/// What it is called.
pub(in crate::diag) const NAME: &str = "rehearse";

const ABOUT: &str = "Try the decisions of the network check on an imagined cluster: which of these faults it finds, \
                     in how many rounds, and whom it would taint. Nothing is tested and nothing is changed.";

const NODES: &str = "\
Nodes are 0 to N - 1, racks 0 to R - 1; node i is in rack i / ceil(N / R). Lists take commas, and an option may be \
given again. The same options give the same outcome each time.

Exit code: 0 whatever the check would find, 1 when the outcome cannot be written, 2 when the command line cannot be used.";

/// What it understands.
pub(in crate::diag) fn command() -> Command {
    Command::new(NAME)
        .about(ABOUT)
        .after_help(NODES)
        .next_help_heading("The cluster")
        .arg(one("nodes", "N").required(true).help("How many nodes, 1 to 65536"))
        .arg(one("racks", "R").default_value("1").help("How many racks, each under one switch, 1 to N"))
        .arg(one("noise", "SIGMA").default_value("0").help("Times are multiplied by exp(SIGMA x Z), 0 to 2"))
        .next_help_heading("What is broken in it")
        .arg(list("faulty", "NODE").help("Every test with these nodes fails"))
        .arg(list("local-fault", "NODE").help("These nodes know that they are broken"))
        .arg(list("lost", "NODE").help("These nodes go away in the first round"))
        .arg(list("dead-link", "A:B").help("Every test between these two nodes fails"))
        .arg(list("dead-rack-pair", "A:B").help("Every test between these two racks fails"))
        .arg(list("dead-uplink", "RACK").help("Every test out of these racks fails"))
        .arg(list("slow-nic", "NODE:X").help("Transfers with this node take X times as long"))
        .arg(list("slow-link", "A:B:X").help("Transfers between these two nodes take X times as long"))
        .arg(list("slow-compute", "NODE:X").help("This node takes X times as long to compute"))
        .arg(list("flaky", "NODE:P").help("Each test with this node fails with probability P, 0 to 1"))
        .next_help_heading("The check")
        .arg(one("seed", "S").default_value("0").help("Another seed, other pairs and other chance"))
        .arg(
            one("max-rounds", "ROUNDS")
                .default_value("8")
                .help("Rounds after which the rest is inconclusive"),
        )
        .arg(flag("exclude-straggler").help("Confirm stragglers by further rounds, and taint them"))
        .arg(
            one("straggler-ratio", "X")
                .default_value("2.0")
                .help("Slower than X times the others is a straggler"),
        )
        .arg(
            one("taint-guard", "SHARE")
                .default_value("0.3")
                .help("No taint when more than this share deserves it"),
        )
        .next_help_heading("Output")
        .arg(flag("json").help("One line of JSON"))
}

/// Values may begin with `-`: what is wrong with them is said, and they are not taken for options.
fn one(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).allow_hyphen_values(true)
}

fn list(name: &'static str, value: &'static str) -> Arg {
    one(name, value).action(ArgAction::Append).value_delimiter(',')
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}
