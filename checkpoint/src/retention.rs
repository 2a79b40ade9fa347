//! Which steps on disk are deleted.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    manifest::Manifest,
    message::{Dir, Keep},
};

/// A step to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    pub step: u64,
    /// Absolute. Only files below the directory, and none that a step that stays names too.
    pub files: Vec<String>,
}

/// Returns what `keep` deletes of the manifests of `dir`, oldest first. Never the committed step, one newer than it, or
/// one of `busy`, which are being written, loaded or waited for.
///
/// `Latest(n)` keeps the n newest committed steps. `Interval(n)` keeps the multiples of n; the committed step stays
/// until a newer one is committed. Only steps with a manifest are deleted: what is not of this program stays.
#[must_use]
pub fn deletions(
    dir: &Dir,
    manifests: &BTreeMap<u64, Manifest>,
    committed: u64,
    busy: &BTreeSet<u64>,
    keep: Keep,
) -> Vec<Deletion> {
    let older: Vec<u64> = manifests.range(..committed).map(|(step, _)| *step).collect();
    let goes = |index: usize, step: u64| match keep {
        // The committed step is one of those that are kept.
        Keep::Latest(count) => ((older.len() - index) as u64) >= count.max(1),
        Keep::Interval(steps) => !step.is_multiple_of(steps.max(1)),
    };
    let gone: BTreeSet<u64> = older
        .iter()
        .enumerate()
        .filter(|(index, step)| goes(*index, **step) && !busy.contains(step))
        .map(|(_, step)| *step)
        .collect();
    let stays = |step: &u64| !gone.contains(step);
    let named: BTreeSet<String> = manifests
        .iter()
        .filter(|(step, _)| stays(step))
        .flat_map(|(_, manifest)| manifest.paths(dir).map(|file| file.path))
        .collect();
    let deletion = |step: &u64| {
        let files = manifests.get(step).into_iter().flat_map(|manifest| manifest.paths(dir));
        let files = files.filter(|file| file.is_below && !named.contains(&file.path)).map(|file| file.path);
        Deletion { step: *step, files: files.collect() }
    };
    gone.iter().map(deletion).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Format, ShardFile};

    fn dir() -> Dir {
        Dir::try_from("/ckpt").unwrap()
    }

    fn manifest(step: u64, file: &str) -> Manifest {
        let shard = ShardFile {
            shard: 0,
            rank: 0,
            n_shards: 1,
            world: 1,
            replicated: true,
            format: Format::Pt,
            file: file.to_owned(),
            bytes: 1,
            chunk_bytes: 64 << 20,
            crc32: vec![0],
            also: Vec::new(),
        };
        let (version, format, time, shards) = (1, Format::Pt, None, vec![shard]);
        let (world, n_shards, replicated, saved_in) = (1, 1, true, None);
        Manifest { version, step, world, n_shards, replicated, format, time, saved_in, shards }
    }

    fn manifests(steps: &[u64]) -> BTreeMap<u64, Manifest> {
        steps.iter().map(|step| (*step, manifest(*step, &format!("{step}/rank_0.pt")))).collect()
    }

    fn steps(deletions: &[Deletion]) -> Vec<u64> {
        deletions.iter().map(|deletion| deletion.step).collect()
    }

    #[test]
    fn the_newest_stay() {
        let all = manifests(&[10, 20, 30, 40]);
        let gone = |committed, keep, busy: &[u64]| {
            let busy = busy.iter().copied().collect();
            steps(&deletions(&dir(), &all, committed, &busy, Keep::Latest(keep)))
        };
        assert_eq!(gone(40, 1, &[]), [10, 20, 30]);
        assert_eq!(gone(40, 3, &[]), [10]);
        assert_eq!(gone(40, 4, &[]), [0; 0]);
        assert_eq!(gone(40, u64::MAX, &[]), [0; 0]);
        // Not the committed one, one that is newer, or one that is being read.
        assert_eq!(gone(30, 0, &[]), [10, 20]);
        assert_eq!(gone(40, 1, &[20]), [10, 30]);
        assert_eq!(gone(5, 1, &[]), [0; 0]);
    }

    #[test]
    fn multiples_stay() {
        let all = manifests(&[10, 20, 25, 30, 40, 45]);
        let gone = |committed, steps_between| {
            let keep = Keep::Interval(steps_between);
            steps(&deletions(&dir(), &all, committed, &BTreeSet::new(), keep))
        };
        assert_eq!(gone(45, 20), [10, 25, 30]);
        assert_eq!(gone(30, 20), [10, 25]);
        assert_eq!(gone(45, 0), [0; 0]);
    }

    #[test]
    fn only_files_in_the_folder_that_no_other_step_names_are_deleted() {
        let mut all = manifests(&[10, 20]);
        all.insert(5, manifest(5, "last.pt"));
        all.insert(6, manifest(6, "/elsewhere/6.pt"));
        all.insert(20, manifest(20, "last.pt"));
        let gone = deletions(&dir(), &all, 20, &BTreeSet::new(), Keep::Latest(1));
        let of = |step, files: &[&str]| Deletion {
            step,
            files: files.iter().map(|&file| file.to_owned()).collect(),
        };
        assert_eq!(gone, [of(5, &[]), of(6, &[]), of(10, &["/ckpt/10/rank_0.pt"])]);
    }
}
