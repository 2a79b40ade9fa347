//! Checkpoints that nodes keep in memory. What a node says of them comes from the workers' own programs: every number
//! has its range, and every list its length.

use checkpoint::{
    job::Order,
    manifest::Manifest,
    message::{
        Dir, Endpoint, Fetch, FetchSource, FetchedStep, FileSum, Format, MAX_ALSO, MAX_CHUNKS, MAX_PATH,
        MAX_REPLICAS, MAX_SLOT_BYTES, MAX_STEP, MAX_STEPS, MAX_WORLD, RestorePoint, RestoreSource, ShardFile,
        ShardState,
    },
};
use prost::Message as _;
use rules::{
    NodeId, Round,
    checkpoints::{CheckpointProgress, CheckpointReport, RunningWrite},
};

use super::{ConvertError, MAX_TEXT, cut, limited, node_id, round};
use crate::{MAX_REQUEST_BYTES, pb};

#[cfg(test)]
mod tests;

/// Shards of one node, in all directories.
const MAX_SHARDS: usize = 1024;

/// The bytes of what a node has in memory, of a request. The rest has room for everything else that it says.
const MAX_FOLDERS_BYTES: usize = MAX_REQUEST_BYTES / 2;

/// Bytes of a ticket.
const MAX_TICKET: usize = 64;

/// Shards that a node fetches of one step.
const MAX_FETCHES: usize = 1024;

/// Directories whose steps are decided for all nodes.
const MAX_RESTORED: usize = 64;

/// A report of a node about its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointMessage {
    /// To be recorded.
    Report { node: NodeId, report: Box<CheckpointReport> },
    /// For people.
    Progress { node: NodeId, progress: CheckpointProgress },
}

impl CheckpointMessage {
    /// Returns the node that it is from.
    #[must_use]
    pub fn sender(&self) -> &NodeId {
        match self {
            Self::Report { node, .. } | Self::Progress { node, .. } => node,
        }
    }
}

impl TryFrom<pb::CheckpointReport> for CheckpointMessage {
    type Error = ConvertError;

    fn try_from(wire: pb::CheckpointReport) -> Result<Self, ConvertError> {
        use pb::checkpoint_report::Report as Wire;
        let node = node_id(wire.node_id, "node_id")?;
        let report = match wire.report.ok_or(ConvertError::Missing { field: "report" })? {
            Wire::Kept(pb::CheckpointsKept {}) => CheckpointReport::Kept,
            Wire::InMemory(pb::CheckpointsInMemory { folders, last }) => {
                CheckpointReport::InMemory { shards: shards(folders)?, last }
            }
            Wire::Persisted(pb::ShardPersisted { dir: path, step: number, saved_in, shard, given_up }) => {
                let shard = shard.ok_or(ConvertError::Missing { field: "shard" })?;
                let length = shard.encoded_len();
                if length > MAX_FOLDERS_BYTES {
                    return Err(ConvertError::TooLong { field: "shard", length, max: MAX_FOLDERS_BYTES });
                }
                CheckpointReport::Persisted {
                    dir: dir(path)?,
                    step: step(number)?,
                    saved_in: round(saved_in, "saved_in")?.0,
                    given_up,
                    shard: Box::new(shard.try_into()?),
                }
            }
            Wire::Committed(pb::CheckpointCommitted { dir: path, step: number }) => {
                CheckpointReport::Committed { dir: dir(path)?, step: step(number)? }
            }
            Wire::WrittenAlone(pb::CheckpointWrittenAlone { dir: path, step: number, round: of }) => {
                let round = round(of, "round")?.0;
                CheckpointReport::WrittenAlone { dir: dir(path)?, step: step(number)?, round }
            }
            Wire::Failed(pb::CheckpointFailed { dir: path, step: number, shard, saved_in, reason }) => {
                let shard = shard.map(|it| below(it, MAX_WORLD, "shard", "below 1048576")).transpose()?;
                CheckpointReport::Failed {
                    dir: dir(path)?,
                    step: step(number)?,
                    shard,
                    saved_in: saved_in.map(|it| round(it, "saved_in")).transpose()?.map(|Round(round)| round),
                    reason: limited(reason, MAX_TEXT, "reason")?,
                }
            }
            Wire::NotFetched(pb::ShardNotFetched { dir: path, step: number, shard, reason }) => {
                CheckpointReport::FetchFailed {
                    dir: dir(path)?,
                    step: step(number)?,
                    shard: below(shard, MAX_WORLD, "shard", "below 1048576")?,
                    reason: limited(reason, MAX_TEXT, "reason")?,
                }
            }
            Wire::Closed(pb::CheckpointsClosed {}) => CheckpointReport::Closed,
            Wire::Write(pb::CheckpointWrite { dir: path, shard, step: number, bytes, total }) => {
                let shard = below(shard, MAX_WORLD, "shard", "below 1048576")?;
                let write = RunningWrite { dir: dir(path)?, shard, step: step(number)?, bytes, of: total };
                return Ok(Self::Progress { node, progress: CheckpointProgress::Writing(write) });
            }
            Wire::Steps(pb::CheckpointSteps { steps }) => {
                if steps.len() > MAX_SHARDS {
                    let length = steps.len();
                    return Err(ConvertError::TooMany { field: "steps", length, max: MAX_SHARDS });
                }
                let newest = |wire: pb::CheckpointStep| Ok((dir(wire.dir)?, step(wire.step)?));
                let steps = steps.into_iter().map(newest).collect::<Result<_, _>>()?;
                return Ok(Self::Progress { node, progress: CheckpointProgress::InMemory { steps } });
            }
        };
        Ok(Self::Report { node, report: Box::new(report) })
    }
}

/// The names of a shard's files do not fit into a request to the job master.
fn names_too_long() -> String {
    "the names of its files are too long for the job master".to_owned()
}

/// The report of a node about its checkpoints. One that is too long for a request, by its names of files, becomes a
/// failure of its shard.
#[must_use]
pub fn checkpoint_report(node_id: String, report: CheckpointReport) -> pb::CheckpointReport {
    use pb::checkpoint_report::Report as Wire;
    let report = match report {
        CheckpointReport::Kept => Wire::Kept(pb::CheckpointsKept {}),
        CheckpointReport::InMemory { shards, last } => {
            Wire::InMemory(pb::CheckpointsInMemory { folders: folders(shards), last })
        }
        CheckpointReport::Persisted { dir, step, saved_in, given_up, shard } => {
            let number = shard.shard;
            let shard = pb::ShardFile::from(*shard);
            if shard.encoded_len() > MAX_FOLDERS_BYTES {
                let reason = names_too_long();
                let (shard, saved_in) = (Some(number), Some(saved_in));
                return checkpoint_report(
                    node_id,
                    CheckpointReport::Failed { dir, step, shard, saved_in, reason },
                );
            }
            let shard = Some(shard);
            Wire::Persisted(pb::ShardPersisted { dir: dir.into(), step, saved_in, shard, given_up })
        }
        CheckpointReport::Committed { dir, step } => {
            Wire::Committed(pb::CheckpointCommitted { dir: dir.into(), step })
        }
        CheckpointReport::WrittenAlone { dir, step, round } => {
            Wire::WrittenAlone(pb::CheckpointWrittenAlone { dir: dir.into(), step, round })
        }
        CheckpointReport::Failed { dir, step, shard, saved_in, reason } => {
            let reason = cut(reason);
            Wire::Failed(pb::CheckpointFailed { dir: dir.into(), step, shard, saved_in, reason })
        }
        CheckpointReport::FetchFailed { dir, step, shard, reason } => {
            let (dir, reason) = (dir.into(), cut(reason));
            Wire::NotFetched(pb::ShardNotFetched { dir, step, shard, reason })
        }
        CheckpointReport::Closed => Wire::Closed(pb::CheckpointsClosed {}),
    };
    pb::CheckpointReport { node_id, report: Some(report) }
}

/// The report of how far a node is, as much as fits into a request.
#[must_use]
pub fn checkpoint_progress(node_id: String, progress: CheckpointProgress) -> pb::CheckpointReport {
    use pb::checkpoint_report::Report as Wire;
    let report = match progress {
        CheckpointProgress::Writing(RunningWrite { dir, shard, step, bytes, of }) => {
            Wire::Write(pb::CheckpointWrite { dir: dir.into(), shard, step, bytes, total: of })
        }
        CheckpointProgress::InMemory { steps } => {
            let mut bytes = 0;
            let fits = |(dir, _): &(Dir, u64)| {
                bytes += dir.as_str().len() + 32;
                bytes <= MAX_FOLDERS_BYTES
            };
            let steps = steps.into_iter().take(MAX_SHARDS).take_while(fits);
            let step = |(dir, step): (Dir, u64)| pb::CheckpointStep { dir: dir.into(), step };
            Wire::Steps(pb::CheckpointSteps { steps: steps.map(step).collect() })
        }
    };
    pb::CheckpointReport { node_id, report: Some(report) }
}

/// By directory, as much as fits into a request: of what is left out the master knows nothing, so that it is restored
/// from disk.
pub(super) fn folders(shards: Vec<ShardState>) -> Vec<pb::CheckpointFolder> {
    let mut folders: Vec<pb::CheckpointFolder> = Vec::new();
    let (mut bytes, mut count) = (0, 0);
    for state in shards {
        let dir = String::from(state.dir);
        let state = pb::ShardState {
            shard: state.shard,
            n_shards: state.n_shards,
            replicated: state.replicated,
            world: state.world,
            rank: state.rank,
            steps: state.steps,
            wishes: state.wishes,
            disk_step: state.disk_step,
            replicas: state.replicas,
            is_replica: state.is_replica,
            layout_id: state.layout_id,
            bytes: state.bytes,
            endpoint: state.endpoint.map(endpoint_of),
            round: state.round,
            awaits_fetches: state.awaits_fetches,
        };
        let is_new = folders.last().is_none_or(|last| last.dir != dir);
        // Tags and lengths: less than 16 bytes each.
        bytes += state.encoded_len() + 16 + if is_new { dir.len() + 16 } else { 0 };
        count += 1;
        if bytes > MAX_FOLDERS_BYTES || count > MAX_SHARDS {
            break;
        }
        match folders.last_mut().filter(|_| !is_new) {
            Some(folder) => folder.shards.push(state),
            None => folders.push(pb::CheckpointFolder { dir, shards: vec![state] }),
        }
    }
    folders
}

pub(super) fn shards(folders: Vec<pb::CheckpointFolder>) -> Result<Vec<ShardState>, ConvertError> {
    let length = folders.iter().map(|folder| folder.shards.len()).sum::<usize>().max(folders.len());
    if length > MAX_SHARDS {
        return Err(ConvertError::TooMany { field: "checkpoints", length, max: MAX_SHARDS });
    }
    let mut states = Vec::new();
    for pb::CheckpointFolder { dir: path, shards } in folders {
        let dir = dir(path)?;
        for wire in shards {
            states.push(shard_state(dir.clone(), wire)?);
        }
    }
    // More than an agent sends.
    let kept: usize = self::folders(states.clone()).iter().map(|folder| folder.shards.len()).sum();
    if kept < states.len() {
        return Err(ConvertError::TooMany { field: "checkpoints", length: states.len(), max: kept });
    }
    Ok(states)
}

fn shard_state(dir: Dir, wire: pb::ShardState) -> Result<ShardState, ConvertError> {
    let (shard, n_shards) = part(wire.shard, wire.n_shards)?;
    let (rank, world) = place(wire.rank, wire.world)?;
    Ok(ShardState {
        dir,
        shard,
        n_shards,
        replicated: wire.replicated,
        world,
        rank,
        steps: steps(wire.steps, "steps")?,
        wishes: steps(wire.wishes, "wishes")?,
        disk_step: wire.disk_step.map(step).transpose()?,
        replicas: below(wire.replicas, MAX_REPLICAS + 1, "replicas", "at most 16")?,
        is_replica: wire.is_replica,
        layout_id: wire.layout_id,
        bytes: slot_bytes(wire.bytes)?,
        endpoint: wire.endpoint.map(endpoint).transpose()?,
        round: wire.round,
        awaits_fetches: wire.awaits_fetches,
    })
}

fn endpoint(wire: pb::CheckpointEndpoint) -> Result<Endpoint, ConvertError> {
    let expected = "1 to 65535";
    let port = u16::try_from(wire.port).ok().filter(|port| *port > 0);
    let out_of_range = ConvertError::Range { field: "endpoint.port", value: u64::from(wire.port), expected };
    let ticket = limited(wire.ticket, MAX_TICKET, "endpoint.ticket")?;
    Ok(Endpoint { port: port.ok_or(out_of_range)?, ticket })
}

fn endpoint_of(Endpoint { port, ticket }: Endpoint) -> pb::CheckpointEndpoint {
    pb::CheckpointEndpoint { port: u32::from(port), ticket }
}

fn slot_bytes(value: u64) -> Result<u64, ConvertError> {
    let expected = "at most 17592186044416";
    let range = ConvertError::Range { field: "bytes", value, expected };
    (value <= MAX_SLOT_BYTES).then_some(value).ok_or(range)
}

fn fetch(wire: pb::ShardFetch) -> Result<Fetch, ConvertError> {
    let (shard, n_shards) = part(wire.shard, wire.n_shards)?;
    let endpoint = endpoint(wire.endpoint.ok_or(ConvertError::Missing { field: "fetch.endpoint" })?)?;
    Ok(Fetch {
        shard,
        n_shards,
        replicated: wire.replicated,
        layout_id: wire.layout_id,
        bytes: slot_bytes(wire.bytes)?,
        is_replica: wire.is_replica,
        given_up: wire.given_up,
        from: FetchSource {
            address: limited(wire.address, MAX_TEXT, "fetch.address")?,
            port: endpoint.port,
            ticket: endpoint.ticket,
        },
    })
}

fn fetch_of(fetch: Fetch) -> pb::ShardFetch {
    let Fetch { shard, n_shards, replicated, layout_id, bytes, is_replica, given_up, from } = fetch;
    let FetchSource { address, port, ticket } = from;
    let endpoint = Some(endpoint_of(Endpoint { port, ticket }));
    pb::ShardFetch { shard, n_shards, replicated, layout_id, bytes, is_replica, given_up, address, endpoint }
}

fn steps(steps: Vec<u64>, field: &'static str) -> Result<Vec<u64>, ConvertError> {
    if steps.len() > MAX_STEPS {
        return Err(ConvertError::TooMany { field, length: steps.len(), max: MAX_STEPS });
    }
    if let Some(pair) = steps.windows(2).find(|pair| pair[0] >= pair[1]) {
        let value = pair[1];
        return Err(ConvertError::Range { field, value, expected: "more than the step before it" });
    }
    steps.into_iter().map(step).collect()
}

fn dir(path: String) -> Result<Dir, ConvertError> {
    let path = limited(path, MAX_PATH, "dir")?;
    Dir::try_from(path).map_err(|error| ConvertError::Document { field: "dir", reason: error.to_string() })
}

fn step(value: u64) -> Result<u64, ConvertError> {
    let expected = "at most 9007199254740991";
    (value <= MAX_STEP).then_some(value).ok_or(ConvertError::Range { field: "step", value, expected })
}

fn below(value: u32, end: u32, field: &'static str, expected: &'static str) -> Result<u32, ConvertError> {
    (value < end).then_some(value).ok_or(ConvertError::Range { field, value: u64::from(value), expected })
}

/// A shard's number, and how many there are.
fn part(shard: u32, n_shards: u32) -> Result<(u32, u32), ConvertError> {
    let n_shards = sized(n_shards, "n_shards")?;
    Ok((below(shard, n_shards, "shard", "below n_shards")?, n_shards))
}

/// A rank, and the size of its world.
fn place(rank: u32, world: u32) -> Result<(u32, u32), ConvertError> {
    let world = sized(world, "world")?;
    Ok((below(rank, world, "rank", "below world")?, world))
}

fn sized(value: u32, field: &'static str) -> Result<u32, ConvertError> {
    let expected = "1 to 1048576";
    let is_valid = (1..=MAX_WORLD).contains(&value);
    is_valid.then_some(value).ok_or(ConvertError::Range { field, value: u64::from(value), expected })
}

fn format(format: pb::CheckpointFormat) -> Result<Format, ConvertError> {
    Ok(match format {
        pb::CheckpointFormat::Pt => Format::Pt,
        pb::CheckpointFormat::Dcp => Format::Dcp,
        pb::CheckpointFormat::Safetensors => Format::Safetensors,
        pb::CheckpointFormat::Unspecified => return Err(ConvertError::Missing { field: "format" }),
    })
}

fn format_of(format: Format) -> i32 {
    i32::from(match format {
        Format::Pt => pb::CheckpointFormat::Pt,
        Format::Dcp => pb::CheckpointFormat::Dcp,
        Format::Safetensors => pb::CheckpointFormat::Safetensors,
    })
}

impl TryFrom<pb::ShardFile> for ShardFile {
    type Error = ConvertError;

    fn try_from(wire: pb::ShardFile) -> Result<Self, ConvertError> {
        let format = format(wire.format())?;
        let (shard, n_shards) = part(wire.shard, wire.n_shards)?;
        let (rank, world) = place(wire.rank, wire.world)?;
        if wire.also.len() > MAX_ALSO {
            let length = wire.also.len();
            return Err(ConvertError::TooMany { field: "also", length, max: MAX_ALSO });
        }
        let first = sum(wire.file.ok_or(ConvertError::Missing { field: "file" })?)?;
        let FileSum { file, bytes, chunk_bytes, crc32 } = first;
        let also = wire.also.into_iter().map(sum).collect::<Result<_, _>>()?;
        let replicated = wire.replicated;
        Ok(Self { shard, rank, n_shards, world, replicated, format, file, bytes, chunk_bytes, crc32, also })
    }
}

impl From<ShardFile> for pb::ShardFile {
    fn from(shard: ShardFile) -> Self {
        let ShardFile {
            shard,
            rank,
            n_shards,
            world,
            replicated,
            format,
            file,
            bytes,
            chunk_bytes,
            crc32,
            also,
        } = shard;
        let file = Some(sum_of(FileSum { file, bytes, chunk_bytes, crc32 }));
        let (format, also) = (format_of(format), also.into_iter().map(sum_of).collect());
        Self { shard, rank, n_shards, world, replicated, format, file, also }
    }
}

fn sum(wire: pb::FileSum) -> Result<FileSum, ConvertError> {
    let pb::FileSum { file, bytes, chunk_bytes, crc32 } = wire;
    if file.is_empty() {
        return Err(ConvertError::Missing { field: "file.file" });
    }
    if crc32.len() > MAX_CHUNKS {
        let length = crc32.len();
        return Err(ConvertError::TooMany { field: "file.crc32", length, max: MAX_CHUNKS });
    }
    Ok(FileSum { file: limited(file, MAX_PATH, "file.file")?, bytes, chunk_bytes, crc32 })
}

fn sum_of(FileSum { file, bytes, chunk_bytes, crc32 }: FileSum) -> pb::FileSum {
    pb::FileSum { file, bytes, chunk_bytes, crc32 }
}

impl From<Order> for pb::CheckpointOrder {
    fn from(order: Order) -> Self {
        use pb::checkpoint_order::Order as Wire;
        let (dir, step, order) = match order {
            Order::Commit { dir, step, manifest } => {
                // The time is the one at which it is written.
                let Manifest {
                    version,
                    step: _,
                    world,
                    n_shards,
                    replicated,
                    format,
                    time: _,
                    saved_in,
                    shards,
                } = *manifest;
                let shards = shards.into_iter().map(pb::ShardFile::from).collect();
                let format = format_of(format);
                (
                    dir,
                    step,
                    Wire::Commit(pb::Manifest {
                        version,
                        world,
                        n_shards,
                        replicated,
                        format,
                        shards,
                        saved_in,
                    }),
                )
            }
            Order::Committed { dir, step } => (dir, step, Wire::Committed(pb::StepCommitted {})),
            Order::Persist { dir, step, replicas } => {
                (dir, step, Wire::Persist(pb::PersistStep { replicas }))
            }
            Order::Fetch { round, dir, step, fetch } => {
                let fetch = Some(fetch_of(*fetch));
                (dir, step, Wire::Fetch(pb::FetchShard { round, fetch }))
            }
            Order::Fetched { round, dir, step } => (dir, step, Wire::Fetched(pb::StepFetched { round })),
            Order::NotFetched { round, dir, step, reason } => {
                (dir, step, Wire::NotFetched(pb::StepNotFetched { round, reason: cut(reason) }))
            }
            Order::Fail { dir, step, saved_in, given_up, reason } => {
                (dir, step, Wire::Fail(pb::StepFailed { reason: cut(reason), saved_in, given_up }))
            }
        };
        Self { dir: dir.into(), step, order: Some(order) }
    }
}

impl TryFrom<pb::CheckpointOrder> for Order {
    type Error = ConvertError;

    fn try_from(wire: pb::CheckpointOrder) -> Result<Self, ConvertError> {
        use pb::checkpoint_order::Order as Wire;
        let (dir, step) = (dir(wire.dir)?, step(wire.step)?);
        Ok(match wire.order.ok_or(ConvertError::Missing { field: "checkpoint.order" })? {
            Wire::Commit(manifest) => {
                let format = format(manifest.format())?;
                let pb::Manifest { version, world, n_shards, replicated, shards, saved_in, .. } = manifest;
                let shards = shards.into_iter().map(ShardFile::try_from).collect::<Result<_, _>>()?;
                let (world, n_shards) = (sized(world, "world")?, sized(n_shards, "n_shards")?);
                let saved_in = saved_in.map(|it| round(it, "saved_in")).transpose()?.map(|Round(it)| it);
                let time = None;
                let manifest =
                    Manifest { version, step, world, n_shards, replicated, format, time, saved_in, shards };
                Self::Commit { dir, step, manifest: Box::new(manifest) }
            }
            Wire::Committed(pb::StepCommitted {}) => Self::Committed { dir, step },
            Wire::Persist(pb::PersistStep { replicas }) => {
                if replicas.len() > MAX_FETCHES {
                    let length = replicas.len();
                    return Err(ConvertError::TooMany { field: "replicas", length, max: MAX_FETCHES });
                }
                Self::Persist { dir, step, replicas }
            }
            Wire::Fetch(pb::FetchShard { round: number, fetch: wire }) => {
                let wire = wire.ok_or(ConvertError::Missing { field: "fetch" })?;
                let round = round(number, "fetch.round")?.0;
                Self::Fetch { round, dir, step, fetch: Box::new(fetch(wire)?) }
            }
            Wire::Fetched(pb::StepFetched { round: number }) => {
                Self::Fetched { round: round(number, "fetched.round")?.0, dir, step }
            }
            Wire::NotFetched(pb::StepNotFetched { round: number, reason }) => {
                Self::NotFetched { round: round(number, "not_fetched.round")?.0, dir, step, reason }
            }
            Wire::Fail(pb::StepFailed { reason, saved_in, given_up }) => {
                Self::Fail { dir, step, saved_in, given_up, reason }
            }
        })
    }
}

pub(super) fn restored(points: Vec<RestorePoint>) -> Vec<pb::RestorePoint> {
    let fetched = |FetchedStep { step, fetches, void }| pb::FetchedStep {
        step,
        fetches: fetches.into_iter().map(|(_, fetch)| fetch_of(fetch)).collect(),
        void: !void.is_empty(),
    };
    let point = |RestorePoint { dir, step, source, pending, given_up, fetched: step_of }: RestorePoint| {
        let source = match source {
            RestoreSource::Memory => pb::RestoreSource::Memory,
            RestoreSource::Disk => pb::RestoreSource::Disk,
        };
        let fetched = step_of.map(fetched);
        pb::RestorePoint { dir: dir.into(), step, source: source.into(), pending, given_up, fetched }
    };
    points.into_iter().take(MAX_RESTORED).map(point).collect()
}

/// The fetches are those of the node of `first_rank`, for which they are.
pub(super) fn restore_points(
    wire: Vec<pb::RestorePoint>,
    first_rank: u32,
) -> Result<Vec<RestorePoint>, ConvertError> {
    if wire.len() > MAX_RESTORED {
        let length = wire.len();
        return Err(ConvertError::TooMany { field: "assignment.restore", length, max: MAX_RESTORED });
    }
    let point = |wire: pb::RestorePoint| {
        let source = match wire.source() {
            pb::RestoreSource::Memory => RestoreSource::Memory,
            pb::RestoreSource::Disk => RestoreSource::Disk,
            pb::RestoreSource::Unspecified => {
                return Err(ConvertError::Missing { field: "assignment.restore.source" });
            }
        };
        let pending = wire.pending.map(step).transpose()?;
        let given_up = wire.given_up;
        let fetched = wire.fetched.map(|wire| fetched_step(wire, first_rank)).transpose()?;
        Ok(RestorePoint { dir: dir(wire.dir)?, step: step(wire.step)?, source, pending, given_up, fetched })
    };
    wire.into_iter().map(point).collect()
}

fn fetched_step(wire: pb::FetchedStep, first_rank: u32) -> Result<FetchedStep, ConvertError> {
    if wire.fetches.len() > MAX_FETCHES {
        let length = wire.fetches.len();
        return Err(ConvertError::TooMany { field: "assignment.restore.fetches", length, max: MAX_FETCHES });
    }
    let fetches = wire.fetches.into_iter().map(|wire| Ok((first_rank, fetch(wire)?)));
    let void = if wire.void { vec![first_rank] } else { Vec::new() };
    Ok(FetchedStep { step: step(wire.step)?, fetches: fetches.collect::<Result<_, _>>()?, void })
}
