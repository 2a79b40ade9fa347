//! Findings of earlier checks about machines that may be temporary: the machine fails intermittently (`flaky`), or went
//! away (`lost`). Seen twice, it is a fault of the machine.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Job, Phase};
use crate::{ids::NodeId, node::JoinRequest};
use diagnosis::moment::Moment;

/// The most machines that are remembered; beyond that, those seen longest ago are forgotten.
const MAX_MACHINES: usize = 16_384;

/// Why the machine of a member that went away is not at fault.
pub(super) const STARTED_AGAIN: &str = "its launcher was started again";

/// A machine, whichever launcher runs on it: the Kubernetes node; else the host name with the address, for several
/// hosts may have one name (`localhost`, or a pod that was started again elsewhere).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Machine(String);

impl Machine {
    pub(super) fn of(request: &JoinRequest) -> Self {
        let (host, address) = (&request.attributes.host_name, &request.address);
        Self(match &request.attributes.k8s_node_name {
            Some(node) if !node.is_empty() => format!("node {node}"),
            _ if host.is_empty() => format!("address {address}"),
            _ => format!("host {host} at {address}"),
        })
    }
}

/// What the checks found of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MachineRecord {
    is_flaky: bool,
    /// When it went away.
    lost: Option<Moment>,
    /// The check that saw it last.
    check: u32,
}

/// What the checks so far found of machines.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct CheckHistory {
    machines: BTreeMap<Machine, MachineRecord>,
}

impl CheckHistory {
    /// Whether an earlier check called it `flaky` or `lost`.
    pub(super) fn has(&self, machine: &Machine) -> bool {
        self.machines.contains_key(machine)
    }

    pub(super) fn record_flaky(&mut self, machine: &Machine, check: u32) {
        self.entry_of(machine, check).is_flaky = true;
    }

    pub(super) fn record_lost(&mut self, machine: &Machine, check: u32, at: Moment) {
        self.entry_of(machine, check).lost = Some(at);
    }

    fn entry_of(&mut self, machine: &Machine, check: u32) -> &mut MachineRecord {
        let new = MachineRecord { is_flaky: false, lost: None, check };
        let record = self.machines.entry(machine.clone()).or_insert(new);
        record.check = check;
        record
    }

    /// It is there again, and has passed a check: that it was away was no fault of the machine. For a machine that
    /// passes and fails by turns a pass proves nothing.
    pub(super) fn passed(&mut self, machine: &Machine) {
        self.forget_loss(machine, |_| true);
    }

    /// A launcher runs there again.
    fn came_back(&mut self, machine: &Machine, now: Moment, grace: Duration) {
        self.forget_loss(machine, |lost| now <= lost + grace);
    }

    fn forget_loss(&mut self, machine: &Machine, is_over: impl Fn(Moment) -> bool) {
        let Some(record) = self.machines.get_mut(machine) else { return };
        record.lost = record.lost.filter(|lost| !is_over(*lost));
        if !record.is_flaky && record.lost.is_none() {
            self.machines.remove(machine);
        }
    }

    /// Keeps the list small.
    pub(super) fn trim(&mut self) {
        let Some(over) = self.machines.len().checked_sub(MAX_MACHINES).filter(|over| *over > 0) else {
            return;
        };
        let mut by_age: Vec<(u32, Machine)> =
            self.machines.iter().map(|(machine, record)| (record.check, machine.clone())).collect();
        by_age.sort();
        for (_, machine) in by_age.into_iter().take(over) {
            self.machines.remove(&machine);
        }
    }
}

impl Job {
    /// A new launcher has joined. If it replaces one on the same machine that went away just before, or in the
    /// running check, that launcher was restarted, and nothing is wrong with the machine.
    pub(super) fn newcomer(&mut self, now: Moment, node: &NodeId) {
        let Some(machine) = self.nodes.get(node).map(|known| Machine::of(&known.request)) else { return };
        self.check_history.came_back(&machine, now, self.policy.reconnect_grace);
        if let Phase::Checking(checking) = &mut self.phase {
            checking.machine_is_back(machine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> Machine {
        Machine(name.to_owned())
    }

    #[test]
    fn a_loss_is_forgotten_by_a_pass_or_a_return_in_time_and_flaps_are_not() {
        let grace = Duration::from_secs(2);
        let mut history = CheckHistory::default();
        for name in ["a", "b", "c"] {
            history.record_lost(&machine(name), 0, Moment::at_secs(10));
        }
        history.record_flaky(&machine("c"), 1);
        history.came_back(&machine("a"), Moment::at_secs(13), grace);
        assert!(history.has(&machine("a")), "too late");
        history.came_back(&machine("a"), Moment::at_secs(12), grace);
        history.passed(&machine("b"));
        history.passed(&machine("c"));
        assert_eq!(["a", "b", "c"].map(|name| history.has(&machine(name))), [false, false, true]);
    }

    #[test]
    fn the_memory_is_bounded_and_the_oldest_go_first() {
        let mut history = CheckHistory::default();
        for number in 0..MAX_MACHINES + 3 {
            history.record_flaky(&machine(&number.to_string()), u32::from(number != 7 && number != 8));
        }
        history.trim();
        assert_eq!(history.machines.len(), MAX_MACHINES);
        assert!(!history.has(&machine("7")) && !history.has(&machine("8")));
    }
}
