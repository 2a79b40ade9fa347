//! Savers of several nodes and the job's side together, under random schedules: workers that save in step with each
//! other, deaths at any point, disks that are slow or fail, messages that come late, nodes that are replaced, workers that
//! write by themselves.
//!
//! What must hold whatever happens:
//! - a slot never has two writers, and is never written while it is read or written to disk;
//! - with three slots no save is refused or waits, but for fetches that are being given up, and the newest whole step is
//!   never overwritten;
//! - all ranks of a round restore the same step, and none that is older than the last one that all had saved;
//! - the tracker never names a step without all of its files;
//! - what one node fetches from another is what was saved, also when the slot is written meanwhile;
//! - every wait is answered.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and print, their helpers too")]

mod cluster;
mod disk;
mod node;
mod trace;
mod worker;

use proptest::{collection::vec, prelude::*};

use cluster::{Cluster, Kind};
use disk::Disk;

/// Enough for about ten saves of all ranks and three rounds.
const LENGTH: usize = 600;

fn run(kind: Kind, choices: &[u16]) {
    run_after(Disk::default(), kind, choices);
}

fn run_after(disk: Disk, kind: Kind, choices: &[u16]) {
    let _trace = trace::Trace::new();
    let mut cluster = Cluster::new(kind, disk);
    for choice in choices {
        cluster.step(*choice);
    }
    cluster.come_to_rest();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn shards(choices in vec(any::<u16>(), 0..LENGTH)) {
        run(Kind::Shards, &choices);
    }

    #[test]
    fn copies(choices in vec(any::<u16>(), 0..LENGTH)) {
        run(Kind::Copies, &choices);
    }

    #[test]
    fn replicas(choices in vec(any::<u16>(), 0..LENGTH)) {
        run(Kind::Replicas, &choices);
    }

    #[test]
    fn alone(choices in vec(any::<u16>(), 0..LENGTH)) {
        run(Kind::Alone, &choices);
    }

    #[test]
    fn two_slots(choices in vec(any::<u16>(), 0..LENGTH)) {
        run(Kind::TwoSlots, &choices);
    }

    /// The newest step that an earlier run has left on disk cannot be loaded.
    #[test]
    fn copies_after_an_earlier_run(choices in vec(any::<u16>(), 0..LENGTH)) {
        run_after(Disk::damaged(), Kind::Copies, &choices);
    }

    #[test]
    fn replicas_after_an_earlier_run(choices in vec(any::<u16>(), 0..LENGTH)) {
        run_after(Disk::damaged(), Kind::Replicas, &choices);
    }

    #[test]
    fn alone_after_an_earlier_run(choices in vec(any::<u16>(), 0..LENGTH)) {
        run_after(Disk::damaged(), Kind::Alone, &choices);
    }
}
