//! What is remembered of steps: of the last few, since there may be any number of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A value for each of the `MOST` steps that were set last. The one that was set first goes first, whatever its number:
/// training that continues from an older step comes to lower numbers again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recent<V, const MOST: usize> {
    /// Each with a running number, which says which was set first.
    values: BTreeMap<u64, (u64, V)>,
    count: u64,
}

impl<V, const MOST: usize> Default for Recent<V, MOST> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), count: 0 }
    }
}

impl<V, const MOST: usize> Recent<V, MOST> {
    pub(crate) fn set(&mut self, step: u64, value: V) {
        self.count += 1;
        self.values.insert(step, (self.count, value));
        if self.values.len() > MOST {
            let first = self.values.iter().min_by_key(|(_, (count, _))| *count).map(|(step, _)| *step);
            first.and_then(|step| self.values.remove(&step));
        }
    }

    pub(crate) fn get(&self, step: u64) -> Option<&V> {
        self.values.get(&step).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, step: u64) -> Option<&mut V> {
        self.values.get_mut(&step).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, step: u64) {
        self.values.remove(&step);
    }

    /// In the order of the steps.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &V)> {
        self.values.iter().map(|(step, (_, value))| (*step, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.values_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_that_was_set_first_goes_first() {
        let mut recent: Recent<char, 3> = Recent::default();
        for (step, value) in [(70, 'a'), (80, 'b'), (90, 'c'), (70, 'd'), (4, 'e')] {
            recent.set(step, value);
        }
        assert_eq!(recent.iter().collect::<Vec<_>>(), [(4, &'e'), (70, &'d'), (90, &'c')]);
        recent.remove(90);
        recent.set(5, 'f');
        assert_eq!(recent.iter().collect::<Vec<_>>(), [(4, &'e'), (5, &'f'), (70, &'d')]);
    }
}
