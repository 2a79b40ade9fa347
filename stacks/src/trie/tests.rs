//! The rule of upstream: small cases, its own output on random tries, and a second way to compute the same.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

fn words(stack: &str) -> Vec<String> {
    stack.split(';').map(str::to_owned).collect()
}

#[test]
fn a_stack_is_cut_before_lto_priv() {
    let mut trie = Trie::new(1);
    trie.insert(words("main@a;work.lto_priv.0@b;leaf@c"), 0);
    trie.insert(words("x.lto_priv.1@b"), 0);
    assert_eq!(trie.text(), "main@a@0| 1\n");
}

#[test]
fn a_stack_that_is_the_beginning_of_another_has_its_own_line() {
    let mut trie = Trie::new(2);
    trie.insert(words("main@a;work@b"), 0);
    trie.insert(words("main@a"), 1);
    assert_eq!(trie.text(), "main@a@0-1| 1\nmain@a@0-1|;work@b@0|1 1\n");
}

#[test]
fn no_stack_gives_no_line() {
    let mut trie = Trie::new(2);
    trie.insert(Vec::new(), 0);
    assert!(trie.is_empty());
    assert_eq!(trie.text(), "");
}

#[test]
fn a_runaway_recursion_is_cut() {
    let mut trie = Trie::new(1);
    trie.insert((0..MAX_DEPTH + 1000).map(|_| "f@a.py:1".to_owned()), 0);
    let text = trie.text();
    assert_eq!(text.lines().count(), 1);
    assert_eq!(text.matches("f@a.py:1").count(), MAX_DEPTH);
    assert!(text.ends_with(";...@deeper@0| 1\n"));
}

/// A rank beyond the world, as a foreign file may have it, is shown and is in no rest.
#[test]
fn a_rank_outside_of_the_world_is_shown() {
    let mut trie = Trie::new(2);
    trie.insert(words("main@a"), 7);
    assert_eq!(trie.text(), "main@a@7|0-1 1\n");
}

/// What upstream's own class has printed for stacks of a generator; it was run once, outside of this tree.
#[derive(Deserialize)]
struct Upstream {
    world_size: u32,
    stacks: Vec<(u32, String)>,
    text: String,
}

#[test]
fn the_text_is_that_of_upstream() {
    let cases: Vec<Upstream> = serde_json::from_str(include_str!("upstream.json")).unwrap();
    assert_eq!(cases.len(), 200);
    for case in cases {
        let mut trie = Trie::new(case.world_size);
        for (rank, stack) in &case.stacks {
            trie.insert(stack.split(';').filter(|word| !word.is_empty()).map(str::to_owned), *rank);
        }
        assert_eq!(trie.text(), case.text, "{:?}", case.stacks);
    }
}

/// The rule without a trie: a line for each distinct stack, with the ranks of each beginning of it, in the order in which
/// a walk meets them, children in the order in which they came.
fn naive(world_size: u32, stacks: &[(Vec<String>, u32)]) -> String {
    let cut = |stack: &[String]| -> Vec<String> {
        stack.iter().take_while(|word| !word.contains("lto_priv")).cloned().collect()
    };
    let stacks: Vec<(Vec<String>, u32)> = stacks.iter().map(|(stack, rank)| (cut(stack), *rank)).collect();
    let mut beginnings: Vec<Vec<String>> = Vec::new();
    for (stack, _) in &stacks {
        for length in 1..=stack.len() {
            if !beginnings.contains(&stack[..length].to_vec()) {
                beginnings.push(stack[..length].to_vec());
            }
        }
    }
    let came = |beginning: &[String]| beginnings.iter().position(|other| other == beginning);
    let mut ends: Vec<&Vec<String>> =
        beginnings.iter().filter(|beginning| stacks.iter().any(|(stack, _)| stack == *beginning)).collect();
    ends.sort_by_key(|end| (1..=end.len()).map(|length| came(&end[..length])).collect::<Vec<_>>());
    let fold = |ranks: &BTreeSet<u32>| {
        let starts = ranks.iter().filter(|rank| **rank == 0 || !ranks.contains(&(**rank - 1)));
        let run = |first: &u32| {
            let last = (*first..).take_while(|rank| ranks.contains(rank)).last().unwrap_or(*first);
            if last == *first { format!("{first}") } else { format!("{first}-{last}") }
        };
        starts.map(run).collect::<Vec<_>>().join("/")
    };
    let mut text = String::new();
    for end in ends {
        let words: Vec<String> = (1..=end.len())
            .map(|length| {
                let has = |(stack, _): &&(Vec<String>, u32)| stack.starts_with(&end[..length]);
                let stuck: BTreeSet<u32> = stacks.iter().filter(has).map(|(_, rank)| *rank).collect();
                let leak = (0..world_size).filter(|rank| !stuck.contains(rank)).collect();
                format!("{}@{}|{}", end[length - 1], fold(&stuck), fold(&leak))
            })
            .collect();
        text.push_str(&format!("{} 1\n", words.join(";")));
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_trie_is_the_naive_rule(
        stacks in prop::collection::vec((prop::collection::vec("[ab]@[xy]|f.lto_priv.0@z", 0..5), 0_u32..9), 0..16),
        world_size in 0_u32..9,
    ) {
        let mut trie = Trie::new(world_size);
        for (stack, rank) in &stacks {
            trie.insert(stack.iter().cloned(), *rank);
        }
        prop_assert_eq!(trie.text(), naive(world_size, &stacks));
    }

    /// Each stack ends in one line, and a rank is in every word of its own stacks.
    #[test]
    fn every_stack_is_found_again(
        stacks in prop::collection::vec((prop::collection::vec("[a-c]@[xy]", 1..5), 0_u32..9), 0..16)
    ) {
        let mut trie = Trie::new(9);
        for (stack, rank) in &stacks {
            trie.insert(stack.iter().cloned(), *rank);
        }
        let text = trie.text();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.trim_end_matches(" 1").split(';').collect()).collect();
        let distinct: BTreeSet<&Vec<String>> = stacks.iter().map(|(stack, _)| stack).collect();
        prop_assert_eq!(lines.len(), distinct.len());
        for (stack, rank) in &stacks {
            let is_it = |line: &&Vec<&str>| {
                line.len() == stack.len() && line.iter().zip(stack).all(|(word, token)| word.starts_with(&format!("{token}@")))
            };
            let line = lines.iter().find(is_it).expect("the line of this stack");
            for word in line {
                let stuck = word.rsplit_once('@').and_then(|(_, ranks)| ranks.split_once('|')).expect("ranks").0;
                prop_assert!(Ranks::parse(stuck).expect("folded ranks").contains(*rank));
            }
        }
    }
}
