//! Workers that train: each loads what its saver gives it, and then saves step by step, as far as all others are.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use checkpoint::{
    manifest::Manifest,
    message::{Dir, Format, Hello, Reply, Request, Role, Source, Storage, VERSION, Wish},
    slots::{Connection, Event as SaverEvent, Process},
};
use rules::{LocalRank, Round, failure::ExitCause, worker_group::Event};

use crate::{
    clock::{Action, LifeId},
    savers::Content,
    simulation::Simulation,
};

/// All states have one.
pub(crate) const LAYOUT: u64 = 7;

/// How soon what is not possible yet is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// What a trainer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// For a saver.
    Start,
    Hello,
    Loading,
    Allocating,
    /// For the end of a step.
    Training,
    Beginning,
    Copying {
        slot: u64,
    },
    /// The last save of its step, unless that is to be saved once more.
    Committing {
        is_last: bool,
    },
    /// It has written its state by itself, and tells a saver.
    Telling,
}

/// A worker's client.
#[derive(Debug)]
pub(crate) struct Trainer {
    spawn: u64,
    rank: u32,
    world: u32,
    round: Round,
    /// Where the workers of the round meet.
    endpoint: (String, u16),
    phase: Phase,
    /// The saver that it is connected to.
    link: Option<(u64, Connection, Process)>,
    is_writer: bool,
    /// The step that it has made last.
    at: u64,
    /// The step that it has saved to memory, and is to save to disk.
    in_memory: Option<u64>,
}

/// One round of training.
#[derive(Debug, Default)]
pub(crate) struct Course {
    number: u32,
    /// What its first rank has restored.
    restored: Option<Option<(u64, u32)>>,
    /// The last step of each rank.
    at: BTreeMap<u32, u64>,
}

fn dir() -> Dir {
    Dir::try_from("/ckpt").expect("an absolute path")
}

impl Simulation {
    /// Workers of a round were started.
    pub(crate) fn start_trainers(&mut self, life: LifeId) {
        let (Some(_), Some(workers), Some(assignment)) =
            (self.plan.saves, &self.lives[life].workers, &self.lives[life].assignment)
        else {
            return;
        };
        let ranks: BTreeSet<LocalRank> = workers.alive.clone();
        let (spawn, endpoint, round) = (workers.spawn, workers.endpoint.clone(), workers.round);
        let (first, world) = (assignment.first_rank, assignment.world_size);
        for local_rank in ranks {
            let trainer = Trainer {
                spawn,
                rank: first + local_rank.0,
                world,
                round,
                endpoint: endpoint.clone(),
                phase: Phase::Start,
                link: None,
                is_writer: false,
                at: 0,
                in_memory: None,
            };
            self.lives[life].trainers.insert(local_rank, trainer);
            let wait = self.prng.millis(1, 200);
            self.after(wait, Action::TrainerTurn { life, spawn, local_rank });
        }
    }

    /// A worker is dead.
    pub(crate) fn trainer_dies(&mut self, life: LifeId, local_rank: LocalRank) {
        let Some(trainer) = self.lives[life].trainers.remove(&local_rank) else { return };
        if let Some((number, connection, process)) = trainer.link {
            self.client_died(life, number, connection, process);
        }
    }

    pub(crate) fn trainers_die(&mut self, life: LifeId) {
        let all: Vec<LocalRank> = self.lives[life].trainers.keys().copied().collect();
        all.into_iter().for_each(|local_rank| self.trainer_dies(life, local_rank));
    }

    /// It connects, has made a step, or has copied its state.
    pub(crate) fn on_trainer_turn(&mut self, life: LifeId, spawn: u64, local_rank: LocalRank) {
        let Some(saves) = self.plan.saves else { return };
        let Some(trainer) = self.lives[life].trainers.get(&local_rank).filter(|it| it.spawn == spawn) else {
            return;
        };
        let turn = Action::TrainerTurn { life, spawn, local_rank };
        match trainer.phase {
            Phase::Start => self.connect_trainer(life, local_rank, turn),
            Phase::Training => {
                let (at, world) = (trainer.at, trainer.world);
                let course = self.course_of(life, local_rank);
                let is_next = (0..world).all(|rank| course.at.get(&rank).is_some_and(|other| *other >= at));
                if !is_next {
                    return self.after(RETRY, turn);
                }
                self.make_step(life, local_rank, turn, saves.every);
            }
            Phase::Copying { slot } => self.copied(life, local_rank, slot),
            Phase::Telling => self.tell_alone(life, local_rank, turn, saves.every),
            Phase::Hello
            | Phase::Loading
            | Phase::Allocating
            | Phase::Beginning
            | Phase::Committing { .. } => {}
        }
    }

    fn course_of(&mut self, life: LifeId, local_rank: LocalRank) -> &mut Course {
        let trainer = &self.lives[life].trainers[&local_rank];
        let key = (trainer.round, trainer.endpoint.clone());
        let next = u32::try_from(self.courses.len()).unwrap_or(u32::MAX) + 1;
        self.courses.entry(key).or_insert_with(|| Course { number: next, ..Course::default() })
    }

    fn connect_trainer(&mut self, life: LifeId, local_rank: LocalRank, turn: Action) {
        if self.lives[life].group.wants_saver() {
            self.locally(Duration::ZERO, life, Event::SaverWanted);
        }
        let process = Process(self.checks.next_spawn());
        let replicated = self.plan.saves.is_some_and(|saves| saves.replicated);
        let Some(saver) = &mut self.lives[life].saver else { return self.after(RETRY, turn) };
        let (number, connection) = (saver.number, saver.connect());
        let Some(trainer) = self.lives[life].trainers.get_mut(&local_rank) else { return };
        trainer.is_writer = !replicated || local_rank.0 == 0;
        (trainer.link, trainer.phase) = (Some((number, connection, process)), Phase::Hello);
        let (rank, world) = (trainer.rank, trainer.world);
        let hello = Hello {
            v: VERSION,
            run_id: self.plan.terms.run_id.0.clone(),
            dir: dir(),
            rank,
            world,
            local_rank: local_rank.0,
            shard: if replicated { 0 } else { rank },
            n_shards: if replicated { 1 } else { world },
            replicated,
            role: if trainer.is_writer { Role::Writer } else { Role::Reader },
            round: Some(trainer.round.0),
            format: Format::Pt,
            keep: None,
            replicas: self.plan.saves.map_or(0, |saves| saves.replicas),
        };
        self.client_says(life, number, SaverEvent::Connected { connection, process });
        self.ask_saver(life, local_rank, Request::Hello(hello));
    }

    fn ask_saver(&mut self, life: LifeId, local_rank: LocalRank, request: Request) {
        let Some((number, connection, _)) = self.lives[life].trainers.get(&local_rank).and_then(|it| it.link)
        else {
            return;
        };
        self.client_says(life, number, SaverEvent::Received { connection, request: Ok(request) });
    }

    fn enter(&mut self, life: LifeId, local_rank: LocalRank, phase: Phase) {
        if let Some(trainer) = self.lives[life].trainers.get_mut(&local_rank) {
            trainer.phase = phase;
        }
    }

    /// A step is made, and saved if there is a saver.
    fn make_step(&mut self, life: LifeId, local_rank: LocalRank, turn: Action, every: Duration) {
        let trainer = &self.lives[life].trainers[&local_rank];
        let step = trainer.at + 1;
        if trainer.is_writer && trainer.link.is_some() {
            self.enter(life, local_rank, Phase::Beginning);
            return self.ask_saver(life, local_rank, Request::Begin { step, layout_id: LAYOUT, wait: true });
        }
        let saves = self.plan.saves.filter(|saves| saves.replicated && step.is_multiple_of(saves.disk_every));
        if saves.is_some() && trainer.rank == 0 {
            let world = trainer.world;
            let course = self.course_of(life, local_rank).number;
            self.disk.write_alone(Content { step, course, shard: 0 }, world);
            self.enter(life, local_rank, Phase::Telling);
            return self.tell_alone(life, local_rank, turn, every);
        }
        self.step_made(life, local_rank, step);
        self.after(every, turn);
    }

    /// By a connection of its own, which starts a saver when there is none.
    fn tell_alone(&mut self, life: LifeId, local_rank: LocalRank, turn: Action, every: Duration) {
        let wants_saver = self.lives[life].group.wants_saver();
        let process = Process(self.checks.next_spawn());
        let trainer = &self.lives[life].trainers[&local_rank];
        let (step, round) = (trainer.at + 1, Some(trainer.round.0));
        match &mut self.lives[life].saver {
            Some(saver) => {
                let (number, connection) = (saver.number, saver.connect());
                let run_id = self.plan.terms.run_id.0.clone();
                let request = Request::WrittenAlone { v: VERSION, run_id, dir: dir(), step, round };
                self.client_says(life, number, SaverEvent::Connected { connection, process });
                self.client_says(life, number, SaverEvent::Received { connection, request: Ok(request) });
                self.client_died(life, number, connection, process);
            }
            None if wants_saver => {
                self.locally(Duration::ZERO, life, Event::SaverWanted);
                return self.after(RETRY, turn);
            }
            // Too many have died.
            None => {}
        }
        self.step_made(life, local_rank, step);
        self.enter(life, local_rank, Phase::Training);
        self.after(every, turn);
    }

    fn step_made(&mut self, life: LifeId, local_rank: LocalRank, step: u64) {
        let Some(trainer) = self.lives[life].trainers.get_mut(&local_rank) else { return };
        trainer.at = step;
        let rank = trainer.rank;
        self.course_of(life, local_rank).at.insert(rank, step);
    }

    fn copied(&mut self, life: LifeId, local_rank: LocalRank, slot: u64) {
        let Some(saves) = self.plan.saves else { return };
        let course = self.course_of(life, local_rank).number;
        let Some(trainer) = self.lives[life].trainers.get_mut(&local_rank) else { return };
        let (step, rank) = (trainer.at + 1, trainer.rank);
        let goes_to_disk = step.is_multiple_of(saves.disk_every);
        let is_first = saves.is_saved_twice && goes_to_disk && trainer.in_memory != Some(step);
        trainer.in_memory = Some(step);
        trainer.phase = Phase::Committing { is_last: !is_first };
        let shard = if saves.replicated { 0 } else { rank };
        if let Some(saver) = &mut self.lives[life].saver {
            saver.write(slot, Some(Content { step, course, shard }));
        }
        let storage = if goes_to_disk && !is_first { Storage::Disk } else { Storage::Memory };
        let wish = Wish { storage, path: String::new(), writes_disk: !saves.replicated || rank == 0 };
        self.ask_saver(life, local_rank, Request::Commit { step, slot, wish });
    }

    pub(crate) fn connection_closed(&mut self, life: LifeId, number: u64, connection: Connection) {
        let trainers = self.lives[life].trainers.iter();
        let of = |link: &Option<(u64, Connection, Process)>| {
            link.is_some_and(|it| (it.0, it.1) == (number, connection))
        };
        let closed = trainers.filter(|(_, trainer)| of(&trainer.link)).map(|(rank, _)| *rank).next();
        if let Some(local_rank) = closed {
            self.trainer_disconnected(life, local_rank);
        }
    }

    /// The saver of the node is gone.
    pub(crate) fn trainers_disconnected(&mut self, life: LifeId) {
        let all: Vec<LocalRank> = self.lives[life].trainers.keys().copied().collect();
        all.into_iter().for_each(|local_rank| self.trainer_disconnected(life, local_rank));
    }

    /// It goes on without a saver, unless it does not know yet what to load: others may load another step.
    fn trainer_disconnected(&mut self, life: LifeId, local_rank: LocalRank) {
        let Some(trainer) = self.lives[life].trainers.get_mut(&local_rank) else { return };
        let spawn = trainer.spawn;
        if trainer.link.take().is_none() {
            return;
        }
        let cause = ExitCause::Code(1);
        let (phase, action) = match trainer.phase {
            Phase::Hello | Phase::Loading => {
                (trainer.phase, Action::WorkerDies { life, spawn, local_rank, cause })
            }
            // It has a turn.
            Phase::Start | Phase::Training | Phase::Telling => return,
            Phase::Copying { .. } => {
                trainer.phase = Phase::Training;
                return;
            }
            _ => (Phase::Training, Action::TrainerTurn { life, spawn, local_rank }),
        };
        trainer.phase = phase;
        self.after(RETRY, action);
    }

    pub(crate) fn on_reply(
        &mut self,
        life: LifeId,
        number: u64,
        connection: Connection,
        reply: Reply,
        content: Option<Content>,
    ) {
        let trainers = self.lives[life].trainers.iter();
        let of = |link: &Option<(u64, Connection, Process)>| {
            link.is_some_and(|it| (it.0, it.1) == (number, connection))
        };
        let found =
            trainers.filter(|(_, trainer)| of(&trainer.link)).map(|(rank, it)| (*rank, it.spawn)).next();
        let (Some((local_rank, spawn)), Some(saves)) = (found, self.plan.saves) else { return };
        let turn = Action::TrainerTurn { life, spawn, local_rank };
        let phase = self.lives[life].trainers[&local_rank].phase;
        match (phase, reply) {
            (Phase::Hello, Reply::Welcome { .. }) => {
                self.enter(life, local_rank, Phase::Loading);
                self.ask_saver(life, local_rank, Request::Load { step: None });
            }
            (Phase::Loading, Reply::Loaded { source, step, slot, .. }) => {
                let rank = self.lives[life].trainers[&local_rank].rank;
                let restored = match source {
                    Source::Memory | Source::Replica => content,
                    Source::Disk => step.and_then(|step| self.disk.content(step, rank)),
                    Source::None => None,
                };
                if let Some(slot) = slot {
                    self.ask_saver(life, local_rank, Request::LoadedDone { slot });
                }
                self.restored(life, local_rank, step, restored);
                let is_writer = self.lives[life].trainers[&local_rank].is_writer;
                if is_writer {
                    self.enter(life, local_rank, Phase::Allocating);
                    let request = Request::Alloc { bytes: 1 << 20, layout_id: LAYOUT, slots: None };
                    return self.ask_saver(life, local_rank, request);
                }
                self.enter(life, local_rank, Phase::Training);
                self.after(saves.every, turn);
            }
            (Phase::Allocating, Reply::Allocated { .. }) => {
                self.enter(life, local_rank, Phase::Training);
                self.after(saves.every, turn);
            }
            (Phase::Beginning, Reply::Begun { slot, .. }) => {
                if let Some(saver) = &mut self.lives[life].saver {
                    saver.write(slot, None);
                }
                self.enter(life, local_rank, Phase::Copying { slot });
                let wait = self.prng.millis(1, 30);
                self.after(wait, turn);
            }
            (Phase::Committing { is_last: false }, Reply::Done { .. }) => {
                self.enter(life, local_rank, Phase::Training);
                let wait = self.prng.millis(0, 300);
                self.after(wait, turn);
            }
            // Not saved; the training goes on.
            (Phase::Beginning, Reply::Error(_))
            | (Phase::Committing { .. }, Reply::Done { .. } | Reply::Error(_)) => {
                let step = self.lives[life].trainers[&local_rank].at + 1;
                self.step_made(life, local_rank, step);
                self.enter(life, local_rank, Phase::Training);
                self.after(saves.every, turn);
            }
            (Phase::Hello | Phase::Loading | Phase::Allocating, Reply::Error(refusal)) => {
                self.note(|| format!("a worker fails: {refusal:?}"));
                let cause = ExitCause::Code(1);
                self.after(Duration::from_millis(1), Action::WorkerDies { life, spawn, local_rank, cause });
            }
            _ => {}
        }
    }

    /// All ranks of a round restore the same step, of the same course of the training.
    fn restored(&mut self, life: LifeId, local_rank: LocalRank, step: Option<u64>, content: Option<Content>) {
        let found = content.map(|content| (content.step, content.course));
        if step != found.map(|(step, _)| step) {
            return self.fail(|| format!("a load says step {step:?} and gives {content:?}"));
        }
        let trainer = &self.lives[life].trainers[&local_rank];
        let (rank, world) = (trainer.rank, trainer.world);
        let floor = self.checks.floors.get(&trainer.round).copied().flatten();
        // With a file for each shard, a world of another size goes on from an older step.
        let is_readable = |manifest: &Manifest| [1, world].contains(&manifest.n_shards);
        let floor = floor.filter(|step| self.disk.manifests.get(step).is_none_or(is_readable));
        let course = self.course_of(life, local_rank);
        let first = *course.restored.get_or_insert(found);
        course.at.insert(rank, step.unwrap_or(0));
        if first != found {
            let number = course.number;
            return self.fail(|| {
                format!("rank {rank} of course {number} restores {found:?}, another one {first:?}")
            });
        }
        if self.is_thorough && floor > step {
            self.fail(|| format!("rank {rank} restores {found:?}, and step {floor:?} counts"));
        }
        if let Some(trainer) = self.lives[life].trainers.get_mut(&local_rank) {
            trainer.at = step.unwrap_or(0);
        }
    }
}
