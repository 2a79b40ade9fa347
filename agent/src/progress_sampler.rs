//! The progress of this node's workers, sampled; and their stacks, taken when the job master orders them.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    future,
    path::PathBuf,
    time::{Duration, Instant},
};

use master_proto::convert::{MAX_STACKS_PART, StacksPart};
use probes::{ProbeProgram, StackTarget, StacksPlan, take_stacks};
use processes::tree;
use rules::{
    LocalRank, NodeId, Rank, Round, hang::HangTerms, progress::Sample, worker_group::Event, world::Assignment,
};
use stacks::{RankDump, Thread};
use tokio::{
    sync::mpsc::{Sender, UnboundedSender},
    time::sleep_until,
};
use tracing::warn;

use crate::{
    master_link::ToMaster,
    progress::{ActivityReader, ProgressFiles},
};

/// How long the stacks of this node may take. Shorter than the master waits for them: `DUMP_TIMEOUT` of `rules::job`.
const DUMP_LIMIT: Duration = Duration::from_secs(8);

/// Bytes of one rank's stacks. More are not accepted.
const MAX_RANK_BYTES: usize = 1 << 20;

/// Watches the workers of the present generation.
#[derive(Debug)]
pub(crate) struct ProgressSampler {
    terms: Option<HangTerms>,
    /// Python workers count their steps by themselves.
    counts_steps: bool,
    files: Option<ProgressFiles>,
    /// The round of the present workers, and when they were started.
    round: Option<(Round, Instant)>,
    pids: BTreeMap<LocalRank, i32>,
    /// What each worker uses, where that counts.
    activities: BTreeMap<LocalRank, ActivityReader>,
    steps: BTreeMap<LocalRank, u64>,
    next: Option<Instant>,
}

impl ProgressSampler {
    pub(crate) fn new(terms: Option<HangTerms>, counts_steps: bool) -> Self {
        Self {
            terms,
            counts_steps,
            files: None,
            round: None,
            pids: BTreeMap::new(),
            activities: BTreeMap::new(),
            steps: BTreeMap::new(),
            next: None,
        }
    }

    /// Makes the files of the next generation, and returns the variables of its workers by local rank. Without room for
    /// files in memory, workers show no progress and run all the same.
    pub(crate) fn prepare(
        &mut self,
        workers: u32,
        python_path: Option<&OsStr>,
    ) -> Vec<Vec<(&'static str, OsString)>> {
        self.next = None;
        if self.terms.is_none() {
            return Vec::new();
        }
        let made = match &mut self.files {
            Some(files) => files.reset(),
            None => ProgressFiles::new(workers).map(|files| self.files = Some(files)),
        };
        if let Err(error) = made {
            warn!(%error, "cannot create the files by which workers show progress; hangs are not detected on this node");
            self.files = None;
        }
        let Some(files) = &self.files else { return Vec::new() };
        let environment = |rank| files.environment(LocalRank(rank), self.counts_steps, python_path);
        (0..workers).map(environment).collect()
    }

    /// The entry of `PYTHONPATH` by which workers find their prelude, if they have one.
    pub(crate) fn prelude_entry(&self) -> Option<String> {
        self.files.as_ref().filter(|_| self.counts_steps).map(ProgressFiles::prelude_entry)
    }

    /// The workers of this round are being started.
    pub(crate) fn begin(&mut self, round: Round) {
        self.round = Some((round, Instant::now()));
        self.pids.clear();
        self.activities.clear();
        self.steps.clear();
        self.schedule(HangTerms::sample_interval);
    }

    pub(crate) fn started(&mut self, local_rank: LocalRank, pid: i32) {
        self.pids.insert(local_rank, pid);
        self.activities.insert(local_rank, ActivityReader::new(pid));
    }

    pub(crate) fn ended(&mut self, local_rank: LocalRank) {
        self.pids.remove(&local_rank);
        self.activities.remove(&local_rank);
    }

    /// The workers of the round are gone.
    pub(crate) fn end(&mut self) {
        (self.round, self.next) = (None, None);
        self.pids.clear();
        self.activities.clear();
    }

    fn schedule(&mut self, after: impl FnOnce(&HangTerms) -> Duration) {
        let after = self.terms.as_ref().filter(|_| self.files.is_some()).map(after);
        self.next = after.and_then(|after| Instant::now().checked_add(after));
    }

    /// Waits until the next sample is due. Cancel-safe.
    pub(crate) async fn due(&self) {
        match self.next {
            Some(next) => sleep_until(next.into()).await,
            None => future::pending().await,
        }
    }

    /// Takes a sample: a few system calls for each worker, none of which waits. Where output or CPU time count, they are
    /// those of the sample before, and are read anew in other threads.
    pub(crate) fn sample(&mut self) -> Option<Event> {
        self.next = None;
        let ((round, begun), sources) = (self.round?, self.terms.as_ref()?.sources);
        let mut samples = Vec::new();
        for declared in self.files.as_mut()?.sample() {
            let reader = self.activities.get_mut(&declared.local_rank).filter(|_| sources.are_wide());
            let activity = reader.map(ActivityReader::next).unwrap_or_default();
            if let Some(step) = declared.step {
                self.steps.insert(declared.local_rank, step);
            }
            samples.push(Sample {
                local_rank: declared.local_rank,
                step: declared.step,
                changes: declared.changes,
                busy: declared.busy_with,
                written: activity.written_bytes,
                cpu: activity.cpu_ticks,
            });
        }
        self.schedule(|terms| terms.next_sample(begun.elapsed(), &samples));
        Some(Event::ProgressSampled { round, samples })
    }

    /// Takes the stacks of all workers of the assignment and sends them to the master, in a task of its own. An event
    /// follows.
    pub(crate) fn dump<E: From<Event> + Send + 'static>(
        &self,
        assignment: &Assignment,
        episode: u32,
        collect_in: Vec<PathBuf>,
        (node, host, launcher_id): (NodeId, &str, String),
        (messages, events): (UnboundedSender<ToMaster>, Sender<E>),
    ) {
        let (mut targets, mut gone) = (Vec::new(), Vec::new());
        let world_size = assignment.world_size;
        for local_rank in (0..assignment.local_world_size).map(LocalRank) {
            let rank = assignment.first_rank + local_rank.0;
            let Some(pid) = self.pids.get(&local_rank).copied() else {
                gone.push(RankDump { host: host.to_owned(), ..RankDump::gone(rank, world_size) });
                continue;
            };
            targets.push(StackTarget {
                rank,
                world_size,
                pid: pid.unsigned_abs(),
                started: tree::process(pid).map(|process| process.started),
                step: self.steps.get(&local_rank).copied(),
                host: host.to_owned(),
                may_be_wrapper: true,
            });
        }
        let program = ProbeProgram { launcher_id: Some(launcher_id), ..ProbeProgram::default() };
        tokio::spawn(async move {
            let plan = StacksPlan { targets, native: true, collect_in, limit: DUMP_LIMIT, program };
            // A task of its own: whatever becomes of it, this node takes orders again.
            let mut dumps = tokio::spawn(take_stacks(plan)).await.unwrap_or_default();
            dumps.extend(gone);
            for part in parts(&dumps, &node, episode) {
                let _ended = messages.send(ToMaster::Stacks(part));
            }
            let _gone = events.send(Event::StacksTaken.into()).await;
        });
    }
}

/// The documents of all ranks in parts that a request has room for; at least one part.
fn parts(dumps: &[RankDump], node: &NodeId, episode: u32) -> Vec<StacksPart> {
    let mut parts = Vec::new();
    for dump in dumps {
        let document = document(dump);
        let pieces = document.chunks(MAX_STACKS_PART);
        let count = pieces.len();
        parts.extend(pieces.enumerate().map(|(place, piece)| StacksPart {
            node: node.clone(),
            episode,
            rank: Rank(dump.rank),
            document: piece.to_vec(),
            is_last: place + 1 == count,
            is_all: false,
        }));
    }
    if let Some(last) = parts.last_mut() {
        last.is_all = true;
    }
    parts
}

/// A rank's document in a size that is accepted: without threads other than the main one, if need be.
fn document(dump: &RankDump) -> Vec<u8> {
    let whole = dump.to_json().into_bytes();
    if whole.len() <= MAX_RANK_BYTES {
        return whole;
    }
    let first = |threads: &[Thread]| {
        let main = threads.iter().find(|thread| thread.name == "MainThread").or(threads.first());
        main.cloned().into_iter().collect()
    };
    let mut notes = dump.notes.clone();
    notes.push(
        "other threads were left out, since the stacks exceed 1 MiB (the maximum for each rank)".to_owned(),
    );
    let small = RankDump { python: first(&dump.python), native: first(&dump.native), notes, ..dump.clone() };
    let small = small.to_json().into_bytes();
    if small.len() <= MAX_RANK_BYTES {
        return small;
    }
    let why = "the stacks exceed 1 MiB (the maximum for each rank)";
    RankDump { host: dump.host.clone(), ..RankDump::unread(dump.rank, dump.world_size, why) }
        .to_json()
        .into_bytes()
}

#[cfg(test)]
mod tests;
