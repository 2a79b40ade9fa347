//! How far checkpoints are, for people: nothing is decided by it, and nothing of it is kept in the journal.

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::message::Dir;

use crate::{
    checkpoints::{CheckpointProgress, CheckpointReport, RunningWrite},
    ids::NodeId,
    job::Event,
    job_status::{CheckpointStatus, CheckpointWriteStatus},
};

/// What each node said last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CheckpointWatch {
    nodes: BTreeMap<NodeId, NodeWatch>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct NodeWatch {
    /// The newest step in memory, by directory.
    memory: BTreeMap<Dir, u64>,
    /// By directory and shard.
    writes: BTreeMap<(Dir, u32), RunningWrite>,
}

impl CheckpointWatch {
    /// A node of the job reports progress.
    pub(crate) fn reported(&mut self, node: NodeId, progress: CheckpointProgress) {
        let watch = self.nodes.entry(node).or_default();
        match progress {
            CheckpointProgress::InMemory { steps } => watch.memory = steps.into_iter().collect(),
            CheckpointProgress::Writing(write) => {
                watch.writes.insert((write.dir.clone(), write.shard), write);
            }
        }
    }

    /// What is recorded ends what was reported before.
    pub(crate) fn recorded(&mut self, event: &Event) {
        let (node, report) = match event {
            Event::CheckpointReported { node, report } => (node, report),
            Event::NodeLost { node, .. } => {
                self.nodes.remove(node);
                return;
            }
            _ => return,
        };
        let Some(watch) = self.nodes.get_mut(node) else { return };
        match &**report {
            CheckpointReport::Persisted { dir, shard, .. } => {
                watch.writes.remove(&(dir.clone(), shard.shard));
            }
            CheckpointReport::Failed { dir, shard: Some(shard), .. } => {
                watch.writes.remove(&(dir.clone(), *shard));
            }
            CheckpointReport::Closed => {
                self.nodes.remove(node);
            }
            CheckpointReport::Kept
            | CheckpointReport::InMemory { .. }
            | CheckpointReport::Committed { .. }
            | CheckpointReport::FetchFailed { .. }
            | CheckpointReport::WrittenAlone { .. }
            | CheckpointReport::Failed { shard: None, .. } => {}
        }
    }

    /// By directory. `on_disk` is the newest step of one that is complete there.
    pub(crate) fn status(&self, on_disk: impl Fn(&Dir) -> Option<u64>) -> Vec<CheckpointStatus> {
        let memory = self.nodes.values().flat_map(|watch| watch.memory.keys());
        let written = self.nodes.values().flat_map(|watch| watch.writes.keys().map(|(dir, _)| dir));
        let folders: BTreeSet<&Dir> = memory.chain(written).collect();
        let status = |dir: &Dir| CheckpointStatus {
            folder: dir.to_string(),
            memory_step: self.nodes.values().filter_map(|watch| watch.memory.get(dir)).min().copied(),
            disk_step: on_disk(dir),
            writing: self.writing(dir),
        };
        folders.into_iter().map(status).collect()
    }

    /// The newest step that is being written, and how far all nodes together are.
    fn writing(&self, dir: &Dir) -> Option<CheckpointWriteStatus> {
        let writes =
            || self.nodes.values().flat_map(|watch| watch.writes.values()).filter(|it| it.dir == *dir);
        let step = writes().map(|write| write.step).max()?;
        let of_step = || writes().filter(|write| write.step == step);
        Some(CheckpointWriteStatus {
            step,
            bytes: of_step().map(|write| write.bytes).fold(0, u64::saturating_add),
            total_bytes: of_step().map(|write| write.of).fold(0, u64::saturating_add),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_in_memory_is_that_of_the_slowest_node_and_writes_are_summed_up() {
        let (dir, node) = (|| Dir::try_from("/ckpt").unwrap(), |name: &str| NodeId(name.into()));
        let mut watch = CheckpointWatch::default();
        for (name, step, bytes) in [("a", 40, 5), ("b", 30, 7)] {
            watch.reported(node(name), CheckpointProgress::InMemory { steps: vec![(dir(), step)] });
            let write = RunningWrite { dir: dir(), shard: 0, step: 20, bytes, of: 10 };
            watch.reported(node(name), CheckpointProgress::Writing(write));
        }
        let status = watch.status(|_| Some(10));
        let writing = CheckpointWriteStatus { step: 20, bytes: 12, total_bytes: 20 };
        let expected = CheckpointStatus {
            folder: "/ckpt".into(),
            memory_step: Some(30),
            disk_step: Some(10),
            writing: Some(writing),
        };
        assert_eq!(status, [expected]);
        let report = Box::new(CheckpointReport::Closed);
        for name in ["a", "b"] {
            watch.recorded(&Event::CheckpointReported { node: node(name), report: report.clone() });
        }
        assert_eq!(watch.status(|_| None), []);
    }
}
