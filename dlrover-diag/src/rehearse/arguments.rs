//! The arguments of `dlrover-diag rehearse`.

use clap::{Arg, ArgAction, Command};

/// What it is called.
pub(crate) const NAME: &str = "rehearse";

/// The options that put something broken into the cluster.
pub(super) const FAULTS: [&str; 15] = [
    "faulty",
    "local-fault",
    "lost",
    "dies",
    "dead-link",
    "dead-rack-pair",
    "dead-uplink",
    "partial-uplink",
    "dead-pod",
    "slow-nic",
    "slow-link",
    "slow-compute",
    "flaky",
    "liar",
    "transient",
];

const ABOUT: &str = "Try the decisions of the network check on an imagined cluster: which of these faults it finds, \
                     in how many rounds, which nodes it would taint or leave out, and which of those are healthy. \
                     Nothing is tested and nothing is changed.";

const NODES: &str = "\
Nodes are 0 to N - 1, racks 0 to R - 1; node i is in rack i / ceil(N / R), and rack r in pod r / M. Rounds count from 0. \
Lists take commas, and an option may be given again. The same options give the same outcome each time.

In place of a node, a rack, a pod or a pair stands `random`: the seed chooses it. `random:3` chooses three (not where \
a number follows anyway: `random:0.5`). With --repeat each run has another choice.

  dlrover-diag rehearse --nodes 64 --racks 4 --faulty 3,9 --dead-link 5:20
  dlrover-diag rehearse --nodes 512 --racks 32 --dead-uplink random --faulty random:2 --repeat 1000
  dlrover-diag rehearse --sweep 1000

Exit code: 0 whatever the check would find, 1 when the outcome cannot be written, 2 when the command line cannot be used.";

/// What it understands.
pub(crate) fn command() -> Command {
    let faults = with_faults(Command::new(NAME).about(ABOUT).after_help(NODES));
    let check = with_check(faults);
    check
        .next_help_heading("How often")
        .arg(one("repeat", "COUNT").help(
            "So many rehearsals, each with a seed of its own; a summary in one line, and the seeds of the runs \
             in which something went wrong, 1 to 1000000000",
        ))
        .arg(sweep("sweep", "sweep-pairs").help(
            "So many random clusters for every kind of broken element, of 4 to 1024 nodes; a table by kind. No guard \
             holds taints back unless --taint-guard is given",
        ))
        .arg(sweep("sweep-pairs", "sweep").help("The same for every two kinds at once"))
        .next_help_heading("Output")
        .arg(flag("json").help("One line of JSON"))
}

fn with_faults(command: Command) -> Command {
    command
        .next_help_heading("The cluster")
        .arg(
            one("nodes", "N")
                .required_unless_present_any(["sweep", "sweep-pairs"])
                .help("How many nodes, 1 to 65536"),
        )
        .arg(one("racks", "R").default_value("1").help("How many racks, each under one switch, 1 to N"))
        .arg(
            one("pod-size", "M")
                .help("How many racks in a row are one pod, 1 to R; without it no pods are known"),
        )
        .arg(one("noise", "SIGMA").default_value("0").help("Times are multiplied by exp(SIGMA x Z), 0 to 2"))
        .next_help_heading("What is broken in it")
        .arg(list("faulty", "NODE").help("Every test with these nodes fails"))
        .arg(list("local-fault", "NODE").help("These nodes know that they are broken"))
        .arg(list("lost", "NODE").help("These nodes go away in the first round"))
        .arg(list("dies", "NODE@ROUND").help("Every test with this node fails after that round"))
        .arg(list("dead-link", "A:B").help("Every test between these two nodes fails"))
        .arg(list("dead-rack-pair", "A:B").help("Every test between these two racks fails"))
        .arg(
            list("dead-uplink", "RACK[@ROUND]")
                .help("Every test out of this rack fails: from the beginning, or after that round"),
        )
        .arg(
            list("partial-uplink", "RACK:SHARE")
                .help("So many of the pairs out of this rack fail, 0 to 1, each of them every time"),
        )
        .arg(
            list("dead-pod", "POD")
                .help("Every test out of this pod fails, and between two of its racks; needs --pod-size"),
        )
        .arg(list("slow-nic", "NODE:X").help("Transfers with this node take X times as long"))
        .arg(list("slow-link", "A:B:X").help("Transfers between these two nodes take X times as long"))
        .arg(list("slow-compute", "NODE:X").help("This node takes X times as long to compute"))
        .arg(list("flaky", "NODE:P").help("Each test with this node fails with probability P, 0 to 1"))
        .arg(list("liar", "NODE").help("These nodes report something else than they saw"))
        .arg(
            one("transient", "P")
                .default_value("0")
                .help("Each test fails with probability P, 0 to 1, whatever takes part in it"),
        )
}

fn with_check(command: Command) -> Command {
    command
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
        .arg(one("taint-flaky", "WHEN").default_value("confirmed").help(
            "When a flaky or lost node is tainted: now, confirmed (an earlier check has seen it, too: never in a \
             rehearsal, which is a first check) or never",
        ))
        .arg(one("on-bad-path", "WHAT").default_value("exclude").help(
            "What follows from a path that is known to be cut: exclude (the largest set of nodes that are all \
             connected goes on), fail or proceed",
        ))
}

/// Values may begin with `-`: what is wrong with them is said, and they are not taken for options.
fn one(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).allow_hyphen_values(true)
}

/// The cluster is not imagined by hand then.
fn sweep(name: &'static str, other: &'static str) -> Arg {
    one(name, "RUNS")
        .conflicts_with_all(["nodes", "racks", "pod-size", "noise", "repeat", other])
        .conflicts_with_all(FAULTS)
}

fn list(name: &'static str, value: &'static str) -> Arg {
    one(name, value).action(ArgAction::Append).value_delimiter(',')
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}
