//! Remedies for a job that failed for a reason other than this node's workers.

use diagnosis::exclusion::Exclusion;
use rules::{
    failure::Failure,
    hang::{HANG, STACKS_AT},
    verdict::{CutEnd, JobFailure},
};

use crate::{loopback, resolve::Rendezvous};

const SHOWS_STACKS: &str = "dlrover-diag stacks --path=DIR shows the stacks again.";

/// The remedy; `None` where there is none.
pub fn remedy(failure: &Failure, rendezvous: &Rendezvous) -> Option<String> {
    if let Failure::Excluded(Exclusion { look_at, .. }) = failure {
        return (!look_at.is_empty()).then(|| format!("Check first: {look_at}."));
    }
    Some(match failure {
        Failure::MasterAway { .. } => return unreachable_master(rendezvous),
        // There are enough nodes: it waited for the workers of others to end.
        Failure::Job(JobFailure::TimedOut { joined, needed, .. }) if joined >= needed => {
            "--rdzv-conf=join_timeout=SECONDS waits longer.".to_owned()
        }
        Failure::Job(JobFailure::TimedOut { .. }) => {
            let text = "Start the missing nodes with the same command line, allow more time \
                        (--rdzv-conf=join_timeout=SECONDS), or begin with fewer (--nnodes=MIN:MAX).";
            // A timeout is of several nodes.
            match (loopback::advice(rendezvous, u32::MAX), rendezvous.endpoint()) {
                (Some(advice), Some(endpoint)) => {
                    format!("Only this host reaches {endpoint}: for nodes on other hosts, {advice}. {text}")
                }
                _ => text.to_owned(),
            }
        }
        Failure::Job(JobFailure::Exhausted { .. }) => {
            "If such losses are expected, --restart-count=N of the job master allows more of them.".to_owned()
        }
        Failure::Job(JobFailure::Inconclusive { .. }) => {
            "--on-inconclusive=proceed lets such nodes take part; --on-inconclusive=relaunch excludes them \
             without tainting them, so that other nodes take their places."
                .to_owned()
        }
        Failure::Job(JobFailure::Cut { why: CutEnd::TooFew, .. }) => {
            "--on-bad-path=proceed trains with all nodes despite the paths that are down; --nnodes=MIN:MAX lets a \
             job begin with fewer nodes.".to_owned()
        }
        Failure::Job(JobFailure::Cut { why: CutEnd::Policy, .. }) => {
            "--on-bad-path=exclude trains with the largest set of nodes that can reach each other; \
             --on-bad-path=proceed trains with all nodes despite the paths that are down."
                .to_owned()
        }
        Failure::Job(JobFailure::Cut { why: CutEnd::WithoutMaster(_), .. }) => {
            "--on-bad-path=proceed trains with all nodes despite the paths that are down.".to_owned()
        }
        Failure::Job(JobFailure::MassFailure { .. }) => {
            "--taint-guard=SHARE of the job master sets the limit.".to_owned()
        }
        Failure::Job(JobFailure::MasterLeft { .. }) => {
            "A job survives the exit of the launcher that serves it if that launcher has a --state-dir and is \
             started again, or if a separate dlrover-master serves the job (DLROVER_MASTER_ADDR)."
                .to_owned()
        }
        Failure::EndedWithout => {
            "The job master's log says why it continued without this node. If other hosts can reach the master, set \
             DLROVER_JOB_TOKEN to require a token."
                .to_owned()
        }
        Failure::Hang { reason } => match reason.contains(STACKS_AT) {
            true => format!("--max-restarts=N lets such a job restart; {SHOWS_STACKS}"),
            false => "--max-restarts=N lets such a job restart.".to_owned(),
        },
        Failure::Job(JobFailure::Node { reason, .. }) if reason.starts_with(HANG) => {
            return reason.contains(STACKS_AT).then(|| SHOWS_STACKS.to_owned());
        }
        Failure::Job(JobFailure::Node { .. }) => "See the output of that node's launcher.".to_owned(),
        Failure::Job(JobFailure::Stopped { .. })
        | Failure::Excluded(_)
        | Failure::Workers(_)
        | Failure::Start { .. }
        | Failure::Prepare { .. }
        | Failure::Store { .. }
        | Failure::SelfCheck { .. }
        | Failure::Unkillable
        | Failure::GuardDied { .. }
        | Failure::Master { .. } => return None,
    })
}

fn unreachable_master(rendezvous: &Rendezvous) -> Option<String> {
    let place = match rendezvous {
        Rendezvous::Loopback => return None,
        Rendezvous::Master(endpoint) => {
            return Some(format!(
                "Check that the job master runs and listens on {endpoint} (DLROVER_MASTER_ADDR), and that this node \
                 can reach that port; a job master with a --state-dir continues the job when it is started again. --rdzv-conf=join_timeout=SECONDS waits \
                 longer."
            ));
        }
        Rendezvous::Static(endpoint) => {
            format!("{endpoint} (--master-addr and --master-port, or --rdzv-endpoint)")
        }
        Rendezvous::C10d(endpoint) => format!("{endpoint} (--rdzv-endpoint)"),
    };
    Some(format!(
        "Check that {place} is an address of the host whose launcher serves the job master, that the launcher \
         on that host is running, and \
         that this node reaches that port. --rdzv-conf=join_timeout=SECONDS waits longer."
    ))
}
