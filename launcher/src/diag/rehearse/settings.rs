//! What `dlrover-diag rehearse` is asked for, checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use clap::ArgMatches;
use rules::network_check::{Policy, rehearsal::Cluster};

/// Nodes that are imagined at most.
const MOST_NODES: u32 = 65_536;

/// An option that makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("--{option} {value}: must be {range}")]
pub(super) struct Wrong {
    option: &'static str,
    /// As it was given.
    value: String,
    range: String,
}

/// What is asked for.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) cluster: Cluster,
    pub(super) policy: Policy,
    pub(super) json: bool,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// The first option that makes no sense, with its value and what may stand there.
    pub(super) fn read(arguments: &ArgMatches) -> Result<Self, Wrong> {
        let read = Reader(arguments);
        let nodes = read.one("nodes", "1 to 65536", |nodes: &u32| (1..=MOST_NODES).contains(nodes))?;
        let racks = read.one("racks", &format!("1 to {nodes}"), |racks: &u32| (1..=nodes).contains(racks))?;
        let seed = read.one("seed", "0 to 18446744073709551615", |_: &u64| true)?;
        let cluster = Cluster {
            nodes,
            racks,
            seed,
            noise: read.one("noise", "0 to 2", |noise: &f64| (0.0..=2.0).contains(noise))?,
            faulty: read.numbers("faulty", "nodes", nodes)?,
            local_fault: read.numbers("local-fault", "nodes", nodes)?,
            lost: read.numbers("lost", "nodes", nodes)?,
            dead_links: read.pairs("dead-link", "nodes", nodes)?,
            dead_rack_pairs: read.pairs("dead-rack-pair", "racks", racks)?,
            dead_uplinks: read.numbers("dead-uplink", "racks", racks)?,
            slow_nic: read.factors("slow-nic", nodes, FACTOR)?,
            slow_links: read.slow_links(nodes)?,
            slow_compute: read.factors("slow-compute", nodes, FACTOR)?,
            other_kind: BTreeSet::new(),
            flaky: read.factors("flaky", nodes, PROBABILITY)?,
            ..Cluster::healthy(nodes, racks)
        };
        let ratio =
            read.one("straggler-ratio", "above 1, at most 1000000", |it: &f64| *it > 1.0 && *it <= 1e6)?;
        let guard = read.one("taint-guard", "0 to 1", |share: &f64| (0.0..=1.0).contains(share))?;
        let policy = Policy {
            max_rounds: read.one("max-rounds", "1 to 4294967295", |rounds: &u32| *rounds > 0)?,
            exclude_straggler: arguments.get_flag("exclude-straggler"),
            straggler_permille: permille(ratio),
            taint_guard_permille: permille(guard),
            ..Policy::new(seed)
        };
        Ok(Self { cluster, policy, json: arguments.get_flag("json") })
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10^9, checked before")]
fn permille(ratio: f64) -> u32 {
    (ratio * 1000.0).round() as u32
}

/// What the number behind a node may be.
#[derive(Clone, Copy)]
struct Range {
    letter: &'static str,
    words: &'static str,
    most: f64,
    may_be_zero: bool,
}

const FACTOR: Range = Range { letter: "X", words: "above 0, at most 1000000", most: 1e6, may_be_zero: false };
const PROBABILITY: Range = Range { letter: "P", words: "from 0 to 1", most: 1.0, may_be_zero: true };

impl Range {
    fn read(self, text: &str) -> Option<f64> {
        let is_fit =
            |number: &f64| *number <= self.most && (*number > 0.0 || self.may_be_zero && *number >= 0.0);
        text.parse().ok().filter(is_fit)
    }
}

/// The options' values.
struct Reader<'a>(&'a ArgMatches);

impl Reader<'_> {
    fn one<T: FromStr>(
        &self,
        option: &'static str,
        range: &str,
        is_fit: impl Fn(&T) -> bool,
    ) -> Result<T, Wrong> {
        let value = self.0.get_one::<String>(option).cloned().unwrap_or_default();
        match value.parse().ok().filter(is_fit) {
            Some(number) => Ok(number),
            None => Err(Wrong { option, value, range: range.to_owned() }),
        }
    }

    fn list<T>(
        &self,
        option: &'static str,
        range: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, Wrong> {
        let values = self.0.get_many::<String>(option).into_iter().flatten();
        let read = |value: &String| {
            read(value.trim()).ok_or_else(|| Wrong { option, value: value.clone(), range: range.to_owned() })
        };
        values.map(read).collect()
    }

    fn numbers(&self, option: &'static str, what: &str, count: u32) -> Result<BTreeSet<u32>, Wrong> {
        let range = format!("{what}, 0 to {}", count - 1);
        let numbers = self.list(option, &range, |value| number(value, count))?;
        Ok(numbers.into_iter().collect())
    }

    /// The lower first.
    fn pairs(&self, option: &'static str, what: &str, count: u32) -> Result<BTreeSet<(u32, u32)>, Wrong> {
        let range = format!("A:B with two different {what}, 0 to {}", count - 1);
        Ok(self.list(option, &range, |value| pair(value, count))?.into_iter().collect())
    }

    fn slow_links(&self, nodes: u32) -> Result<BTreeMap<(u32, u32), f64>, Wrong> {
        let words = format!("A:B:X with two different nodes, 0 to {}, and X {}", nodes - 1, FACTOR.words);
        let read = |value: &str| {
            let (ends, factor) = value.rsplit_once(':')?;
            Some((pair(ends, nodes)?, FACTOR.read(factor)?))
        };
        Ok(self.list("slow-link", &words, read)?.into_iter().collect())
    }

    fn factors(&self, option: &'static str, nodes: u32, range: Range) -> Result<BTreeMap<u32, f64>, Wrong> {
        let Range { letter, words, .. } = range;
        let words = format!("NODE:{letter} with a node, 0 to {}, and {letter} {words}", nodes - 1);
        let read = |value: &str| {
            let (node, factor) = value.split_once(':')?;
            Some((number(node, nodes)?, range.read(factor)?))
        };
        Ok(self.list(option, &words, read)?.into_iter().collect())
    }
}

/// `A:B`, the lower first.
fn pair(text: &str, count: u32) -> Option<(u32, u32)> {
    let (a, b) = text.split_once(':')?;
    let (a, b) = (number(a, count)?, number(b, count)?);
    (a != b).then_some((a.min(b), a.max(b)))
}

fn number(text: &str, count: u32) -> Option<u32> {
    text.parse().ok().filter(|number| *number < count)
}

#[cfg(test)]
mod tests {
    use super::{super::arguments::command, *};

    fn read(line: &str) -> Result<Settings, Wrong> {
        let words = std::iter::once("rehearse").chain(line.split_whitespace());
        Settings::read(&command().try_get_matches_from(words).unwrap())
    }

    #[test]
    fn a_whole_line_is_read() {
        let line = "--nodes 16 --racks 4 --faulty 3,9 --faulty 2 --local-fault 4 --lost 5 --dead-link 9:5 \
                    --dead-rack-pair 0:3 --slow-nic 12:4.0 --slow-link 3:1:5 --slow-compute 7:2.5 --flaky 8:0.5 --noise 0.2 --seed 7 \
                    --exclude-straggler --max-rounds 8 --json";
        let settings = read(line).unwrap();
        let cluster = Cluster {
            nodes: 16,
            racks: 4,
            seed: 7,
            noise: 0.2,
            faulty: [2, 3, 9].into(),
            local_fault: [4].into(),
            lost: [5].into(),
            dead_links: [(5, 9)].into(),
            dead_rack_pairs: [(0, 3)].into(),
            dead_uplinks: BTreeSet::new(),
            slow_nic: [(12, 4.0)].into(),
            slow_links: [((1, 3), 5.0)].into(),
            slow_compute: [(7, 2.5)].into(),
            other_kind: BTreeSet::new(),
            flaky: [(8, 0.5)].into(),
            ..Cluster::healthy(16, 4)
        };
        assert_eq!(settings.cluster, cluster);
        assert_eq!(settings.policy, Policy { exclude_straggler: true, ..Policy::new(7) });
        assert!(settings.json);
        assert_eq!(read("--nodes 1").unwrap().cluster, Cluster::healthy(1, 1));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_range() {
        let node_and = "must be NODE:X with a node, 0 to 3, and X above 0, at most 1000000";
        for (line, said) in [
            ("--nodes 0", "--nodes 0: must be 1 to 65536"),
            ("--nodes 99999999999", "--nodes 99999999999: must be 1 to 65536"),
            ("--nodes 4 --racks 5", "--racks 5: must be 1 to 4"),
            ("--nodes 4 --faulty 1,4", "--faulty 4: must be nodes, 0 to 3"),
            ("--nodes 4 --lost -1", "--lost -1: must be nodes, 0 to 3"),
            ("--nodes 4 --dead-link 2:2", "--dead-link 2:2: must be A:B with two different nodes, 0 to 3"),
            ("--nodes 4 --dead-link 2", "--dead-link 2: must be A:B with two different nodes, 0 to 3"),
            ("--nodes 4 --slow-nic 2:0", &*format!("--slow-nic 2:0: {node_and}")),
            ("--nodes 4 --slow-nic 2:-1", &*format!("--slow-nic 2:-1: {node_and}")),
            (
                "--nodes 4 --flaky 2:nan",
                "--flaky 2:nan: must be NODE:P with a node, 0 to 3, and P from 0 to 1",
            ),
            ("--nodes 4 --noise inf", "--noise inf: must be 0 to 2"),
            ("--nodes 4 --seed -1", "--seed -1: must be 0 to 18446744073709551615"),
            ("--nodes 4 --straggler-ratio 1", "--straggler-ratio 1: must be above 1, at most 1000000"),
            ("--nodes 4 --max-rounds 0", "--max-rounds 0: must be 1 to 4294967295"),
        ] {
            assert_eq!(read(line).unwrap_err().to_string(), said);
        }
    }
}
