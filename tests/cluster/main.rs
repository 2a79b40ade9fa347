//! Jobs of several nodes: a launcher for each on this host, with addresses of their own, and the job master.
//!
//! Every process is real; what ends one is a signal. Workers are `trainers/probe.py`, which write down where they
//! are in which round and wait for a file. The harness is `support::cluster`; it also asserts that no process is left
//! behind, also by a launcher that was killed.
//!
//! * [`rendezvous`]: which nodes make a round, and with which ranks; [`spares`]: which wait for a free place.
//! * [`waiting`]: what is printed meanwhile, and for how long; [`refusals`]: which nodes are refused.
//! * [`meeting`]: the lines by which nodes find each other.
//! * [`failures`]: workers fail; [`losses`]: nodes do; [`replacements`]: others take their place.
//! * [`topology`]: ranks by switch.
//! * [`master_dies`], [`crash_points`] and [`journal`]: the master does, and comes back.
//! * [`trust`]: which peers the master serves; [`unknown_peers`]: what an unknown peer can do to a job.
//! * [`hosts`]: network namespaces; [`network`]: the links between them go down; [`back_off`]: so does the master, too.
//! * [`weather`]: packets between them are lost, late, too large or get through one way only, by seeded schedules.
//! * [`no_loopback`]: hosts that do not reach themselves.
//! * [`fence`]: ways are cut, also in one direction: two generations of workers never run at once.
//! * [`network_check`]: data paths between them are broken, and the check before the start names the host.

mod back_off;
mod crash_points;
mod failures;
mod fence;
mod gpu_share;
mod hosts;
mod journal;
mod losses;
mod master_dies;
mod meeting;
mod network;
mod network_check;
mod no_loopback;
mod refusals;
mod rendezvous;
mod replacements;
mod spares;
mod topology;
mod trust;
mod unknown_peers;
mod waiting;
mod weather;

use support::{cluster::Cluster, programs};

/// A job with a master that gives a node up as soon as its connection breaks.
fn cluster() -> Cluster {
    Cluster::with_master(programs!(), &["--reconnect-grace=0.5"])
}

/// Launchers that meet by their own lines.
fn lines() -> Cluster {
    Cluster::of_lines(programs!())
}
