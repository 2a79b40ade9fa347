//! The tests of nodes: a broken node's fail or hang, all others' pass.

use std::time::Duration;

use diagnosis::{
    gpus::{Gpu, Inventory, Vendor},
    network_check::{LocalCheck, LocalFault, Probed},
};
use rules::{
    check_order::{CheckOrder, CheckReport, CheckRound},
    worker_group::Event,
};

use crate::{
    clock::LifeId,
    node::{Life, Process},
    plan::Flaw,
    simulation::Simulation,
};

impl Simulation {
    /// Only the first life in a place is broken: what replaces it is another machine.
    fn flaw(&self, life: LifeId) -> Option<Flaw> {
        let Life { slot, is_first, .. } = &self.lives[life];
        self.plan.slots[*slot].flaw.filter(|_| *is_first)
    }

    pub(crate) fn check_locally(&mut self, life: LifeId) {
        let fault = (self.flaw(life) == Some(Flaw::Local))
            .then(|| LocalFault::new("GPU 3", "it computes wrong sums"));
        let compute = Some(Duration::from_micros(20_000 + self.prng.between(0, 5000)).into());
        let wait = self.prng.millis(10, 200);
        self.locally(
            wait,
            life,
            Event::LocallyChecked { checked: LocalCheck { fault, compute, ..LocalCheck::default() } },
        );
    }

    /// One accelerator.
    pub(crate) fn take_inventory(&mut self, life: LifeId) {
        let gpus = vec![Gpu { name: Some("imagined".to_owned()), ..Gpu::default() }];
        let inventory = Box::new(Inventory { vendor: Some(Vendor::Nvidia), gpus, ..Inventory::default() });
        let wait = self.prng.millis(10, 2000);
        self.locally(wait, life, Event::InventoryTaken { inventory });
    }

    pub(crate) fn probe(&mut self, life: LifeId, order: &CheckOrder) {
        self.lives[life].probe = Some(order.at);
        let partners: Vec<LifeId> =
            order.partners.iter().map(|partner| Life::index_of(&partner.name.node_id)).collect();
        let all = || partners.iter().copied().chain([life]);
        // No partner answers, so there is no end.
        let hangs =
            all().any(|it| self.lives[it].process == Process::Over || self.flaw(it) == Some(Flaw::Silent));
        if hangs {
            return;
        }
        let fails = all().any(|it| self.flaw(it) == Some(Flaw::Refuses));
        let comm = self.prng.millis(10, 14);
        let probed = match fails {
            true => Probed::Failed { reason: "connection refused".to_owned() },
            false => Probed::Passed { comm, latency: Duration::from_micros(50), bytes_per_second: 1 << 30 },
        };
        let compute = Some((0..order.compute_again).map(|_| Duration::from_millis(21).into()).collect());
        self.locally(comm * 2, life, Event::Probed { report: CheckReport { at: order.at, probed, compute } });
    }

    pub(crate) fn cancel_probe(&mut self, life: LifeId, at: CheckRound) {
        if self.lives[life].probe != Some(at) {
            return;
        }
        let probed = Probed::Unfinished {
            bytes: 0,
            total: 1 << 20,
            elapsed: Duration::from_secs(2),
            idle: Duration::from_secs(2),
        };
        let wait = self.prng.millis(1, 20);
        self.locally(
            wait,
            life,
            Event::Probed { report: CheckReport { at, probed, compute: Some(Vec::new()) } },
        );
    }
}
