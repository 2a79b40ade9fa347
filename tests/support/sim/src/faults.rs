//! Faults, and actions of users.

use std::time::Duration;

use rules::{failure::ExitCause, worker_group::Event};

use crate::{
    clock::{Action, LifeId},
    network::Stream,
    node::Process,
    plan::{End, Fault},
    simulation::Simulation,
};

impl Simulation {
    pub(crate) fn apply_fault(&mut self, fault: Fault) {
        match fault {
            Fault::MasterCrash { down } => {
                // The master of the host's launcher goes with it, and not without it.
                if !self.plan.is_embedded {
                    self.crash_master(Some(down));
                }
            }
            Fault::NodeCrash { slot, replaced_after } => {
                let Some(life) = self.living(slot) else { return };
                self.crash_life(life);
                if let Some(wait) = replaced_after.filter(|_| !self.is_host_slot(slot)) {
                    self.checks.replacements += 1;
                    // A guard kills the workers of a dead launcher sooner than another one starts.
                    let wait = wait.max(Duration::from_millis(500));
                    self.after(wait, Action::Start { slot });
                }
            }
            Fault::Freeze { slot, lasts } => {
                if let Some(life) = self.living(slot).filter(|_| !self.is_host_slot(slot)) {
                    self.lives[life].process = Process::Frozen;
                    self.watch_frozen(life);
                    self.after(lasts, Action::Thaw { life });
                }
            }
            Fault::Signal { slot, signal, again_after } => {
                let Some(life) = self.living(slot) else { return };
                let action = Action::Local { life, event: Box::new(Event::Signalled { signal }) };
                if let Some(wait) = again_after {
                    self.after(wait, action.clone());
                }
                self.queue.push(self.now, action);
            }
            Fault::Partition { slot, lasts } => {
                let Some(life) = self.living(slot).filter(|_| !self.is_host_slot(slot)) else { return };
                self.lives[life].link.cut_until = self.now + lasts;
                if let Stream::Open(conn) | Stream::Opening(conn) = self.lives[life].link.stream {
                    let client = self.prng.millis(0, 10_000);
                    let server = self.prng.chance(500).then(|| self.prng.millis(0, 10_000));
                    self.doom(conn, "nothing is heard", client, server);
                }
            }
            Fault::Cut { from, to, lasts } => self.cut(from, to, lasts),
            Fault::Split { slots, with_master, from, to, lasts } => {
                let all = (0..self.plan.slots.len()).map(End::Slot).chain([End::Master]);
                let is_in = |end: &End| match end {
                    End::Slot(slot) => *slot < slots,
                    End::Master => with_master,
                };
                let (inside, outside): (Vec<End>, Vec<End>) = all.partition(is_in);
                for (a, b) in inside.iter().flat_map(|a| outside.iter().map(move |b| (*a, *b))) {
                    if from {
                        self.cut(a, b, lasts);
                    }
                    if to {
                        self.cut(b, a, lasts);
                    }
                }
            }
            Fault::BreakLink { slot } => {
                if let Some(life) = self.living(slot).filter(|_| !self.is_host_slot(slot))
                    && let Stream::Open(conn) = self.lives[life].link.stream
                {
                    self.break_stream(conn);
                }
            }
            Fault::GuardDies { slot } => {
                if let Some(life) = self.living(slot) {
                    (self.lives[life].workers, self.lives[life].is_guard_dead) = (None, true);
                    self.trainers_die(life);
                    // The launcher kills everything below it.
                    self.saver_ends(life, "killed by SIGKILL");
                    let event = Event::GuardDied { cause: ExitCause::Signal(9) };
                    self.locally(Duration::ZERO, life, event);
                }
            }
            Fault::SaverDies { slot } => {
                if let Some(life) = self.living(slot) {
                    self.saver_ends(life, "killed by SIGKILL");
                }
            }
            Fault::WorkerFails { slot } => {
                if let Some(life) = self.living(slot)
                    && let Some(workers) = &self.lives[life].workers
                {
                    let spawn = workers.spawn;
                    let cause = ExitCause::Code(1);
                    let local_rank = rules::LocalRank(0);
                    self.queue.push(self.now, Action::WorkerDies { life, spawn, local_rank, cause });
                }
            }
        }
    }

    fn is_host_slot(&self, slot: usize) -> bool {
        self.plan.is_embedded && slot == 0
    }

    /// The launcher in a slot, unless it is over.
    fn living(&self, slot: usize) -> Option<LifeId> {
        self.slots[slot].filter(|life| !self.lives[*life].is_over())
    }
}
