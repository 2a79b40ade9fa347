//! The baseline of tests, by which slow ones are recognized.
//!
//! A test takes as long as the slower of its ends. So a node is judged by its shorter times, whatever partners it
//! had; and each node counts once, so that one which is tested again and again because it is slow does not become the
//! baseline.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    TestRecord,
    ratio::{self, Mean},
};

/// A test that did not fail.
#[derive(Debug)]
struct Timed {
    members: Vec<u32>,
    seconds: f64,
}

/// A node in such tests.
#[derive(Debug, Default)]
struct Seen {
    /// Its place among the nodes.
    place: usize,
    /// The places of its tests among the tests.
    tests: Vec<usize>,
}

/// The times of nodes in some of their tests.
#[derive(Debug)]
pub(super) struct TransferTimes {
    tests: Vec<Timed>,
    nodes: BTreeMap<u32, Seen>,
    values: ratio::Others,
}

impl TransferTimes {
    /// Of these nodes in these tests.
    pub(super) fn of<'a>(
        tests: impl Iterator<Item = (&'a TestRecord, f64)>,
        is_asked: impl Fn(u32) -> bool,
    ) -> Self {
        let tests: Vec<Timed> =
            tests.map(|(test, seconds)| Timed { members: test.members.clone(), seconds }).collect();
        let mut nodes: BTreeMap<u32, Seen> = BTreeMap::new();
        for (place, test) in tests.iter().enumerate() {
            for member in test.members.iter().filter(|member| is_asked(**member)) {
                nodes.entry(*member).or_default().tests.push(place);
            }
        }
        let mut values = Vec::with_capacity(nodes.len());
        for (place, seen) in nodes.values_mut().enumerate() {
            seen.place = place;
            let own = seen.tests.iter().filter_map(|test| Some(tests.get(*test)?.seconds));
            values.extend(ratio::own_time(own.collect()));
        }
        Self { tests, nodes, values: ratio::Others::new(&values) }
    }

    /// The mean time of the nodes that were not in this test, without outliers. A node does not count if each of its
    /// tests was with a member of this test and took more than half as long: it is unknown which of them was slow.
    pub(super) fn mean_for(&self, test: &TestRecord, seconds: f64) -> Option<Mean> {
        let members = || test.members.iter().filter_map(|member| self.nodes.get(member));
        let is_like_it = |own: &usize| self.tests.get(*own).is_some_and(|own| own.seconds * 2.0 > seconds);
        let own: BTreeSet<usize> =
            members().flat_map(|seen| seen.tests.iter().copied()).filter(is_like_it).collect();
        let met = own.iter().filter_map(|place| self.tests.get(*place)).flat_map(|own| &own.members);
        let met: BTreeSet<u32> = met.copied().collect();
        let is_known_by_them = |seen: &&Seen| seen.tests.iter().all(|test| own.contains(test));
        let unknown = met.iter().filter_map(|node| self.nodes.get(node)).filter(is_known_by_them);
        let without: Vec<usize> = members().chain(unknown).map(|seen| seen.place).collect();
        // Of two in the middle the lower: a partner makes a time longer, and nothing makes it shorter.
        self.values.mean_without(&without, |_, low, _| Some(low))
    }
}
