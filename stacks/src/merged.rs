//! The dumps of a job in two tries: Python's stacks and native ones.

use std::collections::BTreeSet;

use crate::{
    folding::Ranks,
    model::{RankDump, Thread},
    token,
    trie::Trie,
};

/// The merged stacks of all ranks of which there are dumps.
#[derive(Clone, Debug)]
pub struct Merged {
    pub ranks: Ranks,
    /// The sizes of the world that the dumps name. More than one: dumps of several runs are in one directory.
    pub world_sizes: BTreeSet<u32>,
    pub python: Trie,
    pub native: Trie,
}

impl Merged {
    /// Merges the dumps, whose order does not matter: it is that of their ranks, as upstream's is that of file names.
    /// The world is the largest that a dump names.
    #[must_use]
    pub fn of<'a>(dumps: impl IntoIterator<Item = &'a RankDump>) -> Self {
        let mut dumps: Vec<&RankDump> = dumps.into_iter().collect();
        dumps.sort_by_key(|dump| dump.rank);
        let world_sizes: BTreeSet<u32> = dumps.iter().map(|dump| dump.world_size).collect();
        let world_size = world_sizes.last().copied().unwrap_or(0);
        let ranks = dumps.iter().map(|dump| dump.rank).collect();
        let trie = |threads: fn(&RankDump) -> &[Thread]| {
            let mut trie = Trie::new(world_size);
            for dump in &dumps {
                // Upstream has this stack for every rank, and so in both files.
                if let Some(state) = &dump.state {
                    trie.insert([token::of_state(state)], dump.rank);
                }
                for thread in threads(dump) {
                    trie.insert(thread.frames.iter().rev().map(token::of_frame), dump.rank);
                }
            }
            trie
        };
        Self { python: trie(|dump| &dump.python), native: trie(|dump| &dump.native), ranks, world_sizes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Frame;

    fn frame(function: &str, file: &str, line: u32) -> Frame {
        Frame { function: function.to_owned(), file: file.to_owned(), line: Some(line) }
    }

    fn thread(frames: &[Frame]) -> Thread {
        Thread { name: "MainThread".to_owned(), frames: frames.to_vec() }
    }

    /// The golden text of section 4.2, which upstream's own code has written.
    #[test]
    fn eight_ranks_of_which_one_is_elsewhere() {
        let (step, module) = (frame("step", "train.py", 5), frame("<module>", "train.py", 10));
        let waiting = thread(&[frame("barrier", "dist.py", 3), step, module.clone()]);
        let elsewhere = thread(&[frame("sleep", "train.py", 9), frame("step", "train.py", 6), module]);
        let dump = |rank| RankDump {
            state: Some("S (sleeping)".to_owned()),
            python: vec![if rank == 6 { elsewhere.clone() } else { waiting.clone() }],
            ..RankDump::new(rank, 8)
        };
        let dumps: Vec<RankDump> = (0..8).rev().map(dump).collect();
        let merged = Merged::of(&dumps);
        assert_eq!(
            merged.python.text(),
            "State@S (sleeping)@0-7| 1\n\
             <module>@train.py:10@0-7|;step@train.py:5@0-5/7|6;barrier@dist.py:3@0-5/7|6 1\n\
             <module>@train.py:10@0-7|;step@train.py:6@6|0-5/7;sleep@train.py:9@6|0-5/7 1\n"
        );
        assert_eq!(merged.native.text(), "State@S (sleeping)@0-7| 1\n");
    }

    #[test]
    fn the_set_of_the_guide() {
        let ranks = [1, 2, 3, 9, 11, 12, 13, 14, 15];
        let dump =
            |rank| RankDump { python: vec![thread(&[frame("f", "a.py", 1)])], ..RankDump::new(rank, 16) };
        let dumps: Vec<RankDump> = ranks.into_iter().map(dump).collect();
        assert_eq!(Merged::of(&dumps).python.text(), "f@a.py:1@1-3/9/11-15|0/4-8/10 1\n");
    }

    #[test]
    fn a_world_of_one() {
        let dump = RankDump { python: vec![thread(&[frame("f", "a.py", 1)])], ..RankDump::new(0, 1) };
        assert_eq!(Merged::of([&dump]).python.text(), "f@a.py:1@0| 1\n");
    }

    #[test]
    fn no_dumps_give_no_text() {
        let merged = Merged::of([]);
        assert_eq!((merged.python.text(), merged.native.text()), (String::new(), String::new()));
        assert!(merged.python.is_empty() && merged.ranks.is_empty());
    }

    #[test]
    fn dumps_of_several_runs_are_noticed() {
        let merged = Merged::of([&RankDump::new(0, 4), &RankDump::new(5, 8)]);
        assert_eq!(merged.world_sizes, [4, 8].into());
        assert_eq!(merged.python.world_size(), 8);
    }
}
