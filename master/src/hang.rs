//! The stacks of a hang: collects what nodes send, merges it, writes it, and says what it means. Merging and writing
//! are done on a thread: the directory may be on a file server.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use master_proto::convert::StacksPart;
use processes::{file_replacement::replace_unsynced, run_blocking};
use rules::{
    NodeId, Rank, RunId, chain,
    hang::{HangVerdict, Suspect},
    job::Event,
    world::World,
};
use stacks::{RankDump, StackFolder, Verdict, dump_name::DumpName, saving::is_saving};
use tokio::{sync::mpsc, time::timeout};
use tracing::warn;

use crate::job_loop::Command;

/// Bytes of one rank's stacks. A rank with a few hundred threads takes less.
const MAX_RANK_BYTES: usize = 1 << 20;

/// Bytes of all ranks' stacks.
const MAX_BYTES: usize = 512 << 20;

/// How long merging and writing may take. Shorter than the job waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// The suspects that a verdict lists.
const MAX_SUSPECTS: usize = 256;

/// Where stacks are written: the first of these directories in which files can be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StacksConfig {
    pub folders: Vec<StackFolder>,
}

/// Collects the stacks of one episode.
#[derive(Debug)]
pub(crate) struct StackCollector {
    config: StacksConfig,
    /// `None`: no stacks are expected.
    episode: Option<u32>,
    ranks: BTreeMap<Rank, Collected>,
    bytes: usize,
    to: mpsc::WeakSender<Command>,
}

/// What has been sent of one rank.
#[derive(Debug)]
struct Collected {
    node: NodeId,
    document: Vec<u8>,
    is_complete: bool,
}

impl StackCollector {
    pub(crate) fn new(config: StacksConfig, to: mpsc::WeakSender<Command>) -> Self {
        Self { config, episode: None, ranks: BTreeMap::new(), bytes: 0, to }
    }

    /// Begins an episode.
    pub(crate) fn begin(&mut self, episode: u32) {
        (self.episode, self.bytes) = (Some(episode), 0);
        self.ranks.clear();
    }

    /// Takes a part of the stacks of a member, whose rank it is. What is beyond the limits is left out.
    pub(crate) fn add(&mut self, part: StacksPart) {
        let StacksPart { node, episode, rank, document, is_last, .. } = part;
        if Some(episode) != self.episode {
            return;
        }
        let new = || Collected { node: node.clone(), document: Vec::new(), is_complete: false };
        let collected = self.ranks.entry(rank).or_insert_with(new);
        let has_room = collected.document.len() + document.len() <= MAX_RANK_BYTES
            && self.bytes + document.len() <= MAX_BYTES;
        if collected.node != node || collected.is_complete || !has_room {
            return;
        }
        self.bytes += document.len();
        collected.document.extend(document);
        collected.is_complete = is_last;
    }

    /// In a hang, merges and writes the stacks that nodes have sent; [`Event::HangJudged`] follows.
    pub(crate) fn judge(&mut self, episode: u32, world: World, job: Option<&RunId>) {
        let ranks = match self.episode.take() {
            Some(collected) if collected == episode => std::mem::take(&mut self.ranks),
            _ => BTreeMap::new(),
        };
        self.ranks.clear();
        self.bytes = 0;
        let job = job_folder(job);
        let folders: Vec<PathBuf> = self.config.folders.iter().map(|folder| folder.of_job(&job)).collect();
        let to = self.to.clone();
        tokio::spawn(async move {
            let verdict = match run_blocking(move || judge(ranks, &world)).await {
                Ok((dumps, verdict)) => {
                    let writing = timeout(WRITE_TIMEOUT, run_blocking(move || write(&dumps, &folders)));
                    // The verdict counts without its files, too.
                    let folder = writing.await.ok().and_then(Result::ok).unwrap_or_default();
                    HangVerdict { folder, ..verdict }
                }
                Err(error) => unknown(&format!("the stacks could not be merged: {error}")),
            };
            if let Some(to) = to.upgrade() {
                let judged = Event::HangJudged { episode, verdict: Box::new(verdict) };
                let _over = to.send(Command::HangJudged(Box::new(judged))).await;
            }
        });
    }
}

/// The name of a job's directory below a [`StackFolder::Shared`]. Jobs that were given no name all have the same; they
/// differ by the process that serves them.
#[must_use]
pub fn job_folder(job: Option<&RunId>) -> String {
    match job.filter(|job| job.0 != RunId::UNNAMED) {
        Some(job) => job.file_name(),
        None => format!("{}-{}", RunId::UNNAMED, process::id()),
    }
}

fn unknown(why: &str) -> HangVerdict {
    HangVerdict { sentence: why.to_owned(), suspects: Vec::new(), saving: None, folder: String::new() }
}

fn judge(mut ranks: BTreeMap<Rank, Collected>, world: &World) -> (Vec<RankDump>, HangVerdict) {
    let world_size = world.members.iter().map(|member| member.local_world_size).sum();
    let mut dumps = Vec::new();
    let mut first = 0;
    for member in &world.members {
        for rank in first..first + member.local_world_size {
            // A node speaks for its own ranks only.
            let sent = ranks.remove(&Rank(rank)).filter(|sent| sent.node == member.node_id);
            dumps.push(dump(sent, DumpName { rank, world_size }, &member.host_name));
        }
        first += member.local_world_size;
    }
    let verdict = Verdict::of(&dumps);
    let saving = dumps.iter().find(|dump| is_saving(dump)).map(|dump| Rank(dump.rank));
    let suspects = verdict
        .suspects
        .iter()
        .take(MAX_SUSPECTS)
        .map(|(rank, reason)| Suspect { rank: Rank(*rank), reason: reason.to_string() });
    let (sentence, suspects) = (verdict.headline, suspects.collect());
    (dumps, HangVerdict { sentence, suspects, saving, folder: String::new() })
}

/// The stacks of a rank, or why there are none.
fn dump(sent: Option<Collected>, name: DumpName, host: &str) -> RankDump {
    let DumpName { rank, world_size } = name;
    let unread = |why: String| RankDump { host: host.to_owned(), ..RankDump::unread(rank, world_size, why) };
    match sent {
        None => unread("its node sent no stacks in time".to_owned()),
        Some(Collected { is_complete: false, .. }) => {
            unread("its node sent only a part of its stacks".to_owned())
        }
        Some(Collected { document, .. }) => match stacks::read(&name.to_string(), &document) {
            Ok(dump) => dump.bounded(),
            Err(error) => unread(format!("the stacks that its node sent cannot be used: {}", chain(&error))),
        },
    }
}

/// Writes the stacks of a hang to the first directory that takes them. Returns it; empty when none does.
fn write(dumps: &[RankDump], folders: &[PathBuf]) -> String {
    for folder in folders {
        match write_to(dumps, folder) {
            Ok(()) => return folder.to_string_lossy().into_owned(),
            Err(error) => {
                warn!(folder = %folder.display(), %error, "cannot write the stacks of the hang to this directory");
            }
        }
    }
    String::new()
}

fn write_to(dumps: &[RankDump], folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let own = dumps.iter().map(|dump| (dump.name().to_string(), dump.to_json()));
    for (name, content) in own.chain(stacks::files(dumps)) {
        replace_unsynced(&folder.join(name), content.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
