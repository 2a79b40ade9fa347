//! What a test usually takes, so that a slow one is known.

use std::collections::{BTreeMap, BTreeSet};

use super::{TestRecord, ratio};

/// Who took part in a test, and its time in seconds.
type Timed = (Vec<u32>, f64);

/// What tests of one class usually take: of each node the middle of its times, so that one that is tested again and
/// again because it is slow does not become the measure.
pub(super) struct Usual {
    /// How many there are.
    pub(super) tests: usize,
    /// By node: where in `others` it stands, and its tests.
    nodes: BTreeMap<u32, (usize, Vec<Timed>)>,
    others: ratio::Others,
}

impl Usual {
    pub(super) fn of<'a>(tests: impl Iterator<Item = (&'a TestRecord, f64)>) -> Self {
        let mut nodes: BTreeMap<u32, (usize, Vec<Timed>)> = BTreeMap::new();
        let mut count = 0;
        for (test, seconds) in tests {
            count += 1;
            for member in &test.members {
                nodes.entry(*member).or_default().1.push((test.members.clone(), seconds));
            }
        }
        let mut values = Vec::with_capacity(nodes.len());
        for (place, (of_node, tests)) in nodes.values_mut().enumerate() {
            *of_node = place;
            values.extend(middle(tests, &[]));
        }
        Self { tests: count, nodes, others: ratio::Others::new(&values) }
    }

    /// A test's time over the mean of the nodes that took no part in it. Of those that its members met at other times
    /// only what they did with others counts: a slow member makes all of these slow.
    pub(super) fn ratio(&self, test: &TestRecord, seconds: f64) -> f64 {
        let of = |node: &u32| self.nodes.get(node);
        let mut touched: BTreeSet<u32> = test.members.iter().copied().collect();
        for (_, tests) in test.members.iter().filter_map(of) {
            touched.extend(tests.iter().flat_map(|(members, _)| members));
        }
        let without: Vec<usize> = touched.iter().filter_map(of).map(|(place, _)| *place).collect();
        let partners = touched.iter().filter(|node| !test.members.contains(node)).filter_map(of);
        let mut more: Vec<f64> = partners.filter_map(|(_, tests)| middle(tests, &test.members)).collect();
        self.others.ratio(seconds, &without, &mut more)
    }
}

/// Of the tests in which none of these took part.
fn middle(tests: &[Timed], without: &[u32]) -> Option<f64> {
    let is_apart = |(members, _): &&Timed| !members.iter().any(|member| without.contains(member));
    ratio::middle(&mut tests.iter().filter(is_apart).map(|(_, seconds)| *seconds).collect::<Vec<f64>>())
}
