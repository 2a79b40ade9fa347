//! The arguments of `dlrover-diag rehearse`. Values are text here: `settings` parses them, since some ranges depend on
//! other options, and they may begin with `-`, so that a wrong number is reported as such.

use clap::Args;

/// Tries the decisions of the network check on a simulated cluster: which of these faults it finds, in how many rounds,
/// which nodes it would taint or exclude, and which of those are healthy. Nothing is tested and nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Nodes are 0 to N - 1, racks 0 to R - 1; node i is in rack i / ceil(N / R), and rack r in pod r / M. Rounds count from 0. \
Lists take commas, and an option may be given again. The same options give the same outcome each time.

In place of a node, a rack, a pod or a pair stands `random`: the seed chooses it. `random:3` chooses three (not where \
a number follows anyway: `random:0.5`). With --repeat each run has another choice.

  dlrover-diag rehearse --nodes 64 --racks 4 --faulty 3,9 --dead-link 5:20
  dlrover-diag rehearse --nodes 512 --racks 32 --dead-uplink random --faulty random:2 --repeat 1000
  dlrover-diag rehearse --sweep 1000

Exit code: 0 whatever the check would find, 1 when the outcome cannot be written, 2 when the command line cannot be used.")]
pub(crate) struct Arguments {
    #[command(flatten, next_help_heading = "The cluster")]
    pub(super) cluster: Size,
    #[command(flatten, next_help_heading = "What is broken in it")]
    pub(super) faults: Faults,
    #[command(flatten, next_help_heading = "The check")]
    pub(super) check: Check,
    #[command(flatten, next_help_heading = "How often")]
    pub(super) runs: Runs,
    /// One line of JSON
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Size {
    /// How many nodes, 1 to 65536
    #[arg(long, value_name = "N", allow_hyphen_values = true, required_unless_present_any = ["sweep", "sweep_pairs"])]
    pub(super) nodes: Option<String>,
    /// How many racks, each under one switch, 1 to N
    #[arg(long, value_name = "R", allow_hyphen_values = true, default_value = "1")]
    pub(super) racks: String,
    /// How many racks in a row are one pod, 1 to R; without it no pods are known
    #[arg(long, value_name = "M", allow_hyphen_values = true)]
    pub(super) pod_size: Option<String>,
    /// Times are multiplied by exp(SIGMA x Z), Z from the standard normal distribution; SIGMA is 0 to 2
    #[arg(long, value_name = "SIGMA", allow_hyphen_values = true, default_value = "0")]
    pub(super) noise: String,
}

#[derive(Debug, Args)]
pub(super) struct Faults {
    /// Every test with these nodes fails
    #[arg(long, value_name = "NODE", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) faulty: Vec<String>,
    /// These nodes find in their self-test that they are broken
    #[arg(long, value_name = "NODE", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) local_fault: Vec<String>,
    /// These nodes leave in the first round
    #[arg(long, value_name = "NODE", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) lost: Vec<String>,
    /// Every test with this node fails after that round
    #[arg(long, value_name = "NODE@ROUND", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) dies: Vec<String>,
    /// Every test between these two nodes fails
    #[arg(long, value_name = "A:B", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) dead_link: Vec<String>,
    /// Every test between these two racks fails
    #[arg(long, value_name = "A:B", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) dead_rack_pair: Vec<String>,
    /// Every test out of this rack fails: from the beginning, or after that round
    #[arg(long, value_name = "RACK[@ROUND]", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) dead_uplink: Vec<String>,
    /// This share of the pairs out of the rack fails, 0 to 1, each of them every time
    #[arg(long, value_name = "RACK:SHARE", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) partial_uplink: Vec<String>,
    /// Every test out of this pod fails, and between two of its racks; requires --pod-size
    #[arg(long, value_name = "POD", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) dead_pod: Vec<String>,
    /// Transfers with this node take X times as long
    #[arg(long, value_name = "NODE:X", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) slow_nic: Vec<String>,
    /// Transfers between these two nodes take X times as long
    #[arg(long, value_name = "A:B:X", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) slow_link: Vec<String>,
    /// This node takes X times as long to compute
    #[arg(long, value_name = "NODE:X", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) slow_compute: Vec<String>,
    /// Each test with this node fails with probability P, 0 to 1
    #[arg(long, value_name = "NODE:P", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) flaky: Vec<String>,
    /// These nodes report the opposite of their results
    #[arg(long, value_name = "NODE", allow_hyphen_values = true, value_delimiter = ',')]
    pub(super) liar: Vec<String>,
    /// Each test fails with probability P, 0 to 1, whatever takes part in it
    #[arg(long, value_name = "P", allow_hyphen_values = true, default_value = "0")]
    pub(super) transient: String,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    /// Another seed, other pairs and other random choices
    #[arg(long, value_name = "S", allow_hyphen_values = true, default_value = "0")]
    pub(super) seed: String,
    /// Rounds after which the rest is inconclusive
    #[arg(long, value_name = "ROUNDS", allow_hyphen_values = true, default_value = "8")]
    pub(super) max_rounds: String,
    /// Confirm stragglers by further rounds, and taint them
    #[arg(long)]
    pub(super) exclude_straggler: bool,
    /// A node is a straggler when it takes more than X times as long as the mean of the others
    #[arg(long, value_name = "X", allow_hyphen_values = true, default_value = "2.0")]
    pub(super) straggler_ratio: String,
    /// When more than this share of the nodes (and more than 2) would be tainted, no node is tainted and the job fails
    /// [default: 0.3]
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub(super) taint_guard: Option<String>,
    /// When a flaky or lost node is tainted: now, confirmed (an earlier check found it, too: never in a rehearsal, which
    /// is a first check) or never
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, default_value = "confirmed")]
    pub(super) taint_flaky: String,
    /// What follows from a path that is known to be down: exclude (the largest set of nodes that are all connected
    /// continues), fail or proceed
    #[arg(long, value_name = "WHAT", allow_hyphen_values = true, default_value = "exclude")]
    pub(super) on_bad_path: String,
}

#[derive(Debug, Args)]
pub(super) struct Runs {
    /// This many rehearsals, 1 to 1000000000, each with a seed of its own; a summary in one line, and the seeds of the
    /// runs in which something went wrong
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub(super) repeat: Option<String>,
    /// This many random clusters for every kind of broken element, of 4 to 1024 nodes; a table by kind. No guard
    /// withholds taints unless --taint-guard is given
    #[arg(long, value_name = "RUNS", allow_hyphen_values = true, conflicts_with_all = ["Size", "Faults", "repeat"])]
    pub(super) sweep: Option<String>,
    /// The same for every two kinds at once
    #[arg(long, value_name = "RUNS", allow_hyphen_values = true, conflicts_with_all = ["Size", "Faults", "repeat", "sweep"])]
    pub(super) sweep_pairs: Option<String>,
}
