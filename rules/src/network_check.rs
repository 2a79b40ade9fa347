//! The network check: which node, link or switch is at fault, found before workers start, by tests of pairs.
//!
//! Nodes are numbers here, 0 to N - 1: the place of each in the list that the check was begun with.

mod event;
mod verdict;

pub use self::{
    event::{Deadlines, Effect, Event, Group, Kind, LocalCheck, LocalFault, Policy, Probed, Subject},
    verdict::{
        Evidence, Guard, LinkFault, LinkKind, NodeFinding, NodeVerdict, Outcome, RackPairFault, RoundRecord,
        TestRecord, TestResult,
    },
};
