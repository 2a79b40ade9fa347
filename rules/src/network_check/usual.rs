//! What a test usually takes, so that a slow one is known.
//!
//! A test takes as long as the slower of its ends. So a node that met slow partners and one that is not is known by its
//! shorter times, and one that is tested again and again because it is slow does not become the measure.

use std::collections::{BTreeMap, BTreeSet};

use super::{TestRecord, ratio};

/// Times the mean is taken anew. More of them move it by less than 2 % where times scatter by 0.5.
const STEPS: usize = 3;

/// A test that did not fail.
#[derive(Debug)]
struct Timed {
    members: Vec<u32>,
    seconds: f64,
}

/// A node in such tests.
#[derive(Debug, Default)]
struct Seen {
    /// Where it stands among the nodes.
    place: usize,
    /// Where its tests stand among the tests.
    tests: Vec<usize>,
}

/// What tests of one class usually take.
#[derive(Debug)]
pub(super) struct Usual {
    tests: Vec<Timed>,
    nodes: BTreeMap<u32, Seen>,
    /// What each node takes by itself: the lower quartile of its times.
    paces: ratio::Others,
    /// What each test took.
    times: ratio::Others,
}

impl Usual {
    pub(super) fn of<'a>(tests: impl Iterator<Item = (&'a TestRecord, f64)>) -> Self {
        let tests: Vec<Timed> =
            tests.map(|(test, seconds)| Timed { members: test.members.clone(), seconds }).collect();
        let times: Vec<f64> = tests.iter().map(|test| test.seconds).collect();
        let mut nodes: BTreeMap<u32, Seen> = BTreeMap::new();
        for (place, test) in tests.iter().enumerate() {
            for member in &test.members {
                nodes.entry(*member).or_default().tests.push(place);
            }
        }
        let mut paces = Vec::with_capacity(nodes.len());
        for (place, seen) in nodes.values_mut().enumerate() {
            seen.place = place;
            let mut own: Vec<f64> = seen.tests.iter().filter_map(|test| times.get(*test)).copied().collect();
            paces.extend(ratio::lower_quartile(&mut own));
        }
        Self { tests, nodes, paces: ratio::Others::new(&paces), times: ratio::Others::new(&times) }
    }

    /// A test's time over the mean of the tests in which none of its members took part, or which were twice as fast: a
    /// slow member makes all of its own slow. Of these the ones above twice what a node in the middle takes do not count.
    pub(super) fn ratio(&self, test: &TestRecord, seconds: f64) -> f64 {
        let members = || test.members.iter().filter_map(|member| self.nodes.get(member));
        let is_like_it = |test: &usize| self.tests.get(*test).is_some_and(|own| own.seconds * 2.0 > seconds);
        let own_tests: BTreeSet<usize> =
            members().flat_map(|seen| seen.tests.iter().copied()).filter(is_like_it).collect();
        let own_tests: Vec<usize> = own_tests.into_iter().collect();
        // Who was tested with them and nobody else is known by their times, not by its own.
        let met: BTreeSet<u32> = own_tests
            .iter()
            .filter_map(|place| self.tests.get(*place))
            .flat_map(|test| test.members.iter().copied())
            .collect();
        let is_known_by_them =
            |seen: &&Seen| seen.tests.iter().all(|test| own_tests.binary_search(test).is_ok());
        let seen = met.iter().filter_map(|node| self.nodes.get(node));
        let without: Vec<usize> = seen.filter(is_known_by_them).map(|seen| seen.place).collect();
        // Where as many are slow as are not, the slow ones are not the measure.
        let middle = self.paces.middle_without(&without).map(|(low, _)| low);
        // Shorter times are below the mean of those that scatter, so from there on in steps.
        let step = |usual: f64| {
            let mean = self.times.mean_without(&own_tests, 2.0 * usual);
            mean.map_or(usual, |mean| mean.max(usual))
        };
        ratio::over(seconds, middle.map(|middle| (0..STEPS).fold(middle, |usual, _| step(usual))))
    }
}
