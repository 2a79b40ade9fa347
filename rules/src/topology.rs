//! Which nodes hang under which switch, and the order of ranks that follows.
//!
//! The file is the guide's ConfigMap `node-topology-config`: one node per line, `asw psw ip`, where `asw` is the
//! switch that the node is connected to, and `psw` the one above. Blank lines and lines that start with `#` are
//! skipped. Ranks follow `asw` alone; a network check uses both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The switches above each node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Topology {
    /// By address, in its canonical form.
    places: BTreeMap<String, Place>,
}

/// The switches of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Its access switch, `asw`: its rack.
    pub switch: String,
    /// The switch above that one, `psw`: its pod.
    pub pod_switch: String,
}

/// What is wrong with a topology file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Not three columns.
    #[error("line {line} has {} instead of 3, `asw psw ip`: `{text}`", diagnosis::counted::counted(*.columns, "column"))]
    Columns {
        /// Counted from 1.
        line: usize,
        /// How many there are.
        columns: usize,
        text: String,
    },
    /// The third column is not an IP address.
    #[error("line {line}: `{text}` is not an IP address")]
    Address {
        /// Counted from 1.
        line: usize,
        /// The third column.
        text: String,
    },
    /// One address under two switches, or listed twice.
    #[error("line {line} lists {address} again; it is already on line {first}")]
    Twice {
        /// Counted from 1.
        line: usize,
        /// The line before it.
        first: usize,
        /// The address.
        address: String,
    },
}

/// Nodes in the order of their ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Indices into the given addresses, by new rank.
    pub by_rank: Vec<usize>,
    /// The place of each, by new rank; `None` when the file does not list it.
    pub places: Vec<Option<Place>>,
}

impl Topology {
    /// Parses the text of a topology file. An empty one lists no nodes, and changes no order.
    ///
    /// # Errors
    /// The first bad line, with its number.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let mut places = BTreeMap::new();
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let columns: Vec<&str> = text.split_whitespace().collect();
            let [switch, pod_switch, address] = columns[..] else {
                return Err(TopologyError::Columns { line, columns: columns.len(), text: shortened(text) });
            };
            let Some(address) = canonical(address) else {
                return Err(TopologyError::Address { line, text: shortened(address) });
            };
            if let Some(first) = lines.insert(address.clone(), line) {
                return Err(TopologyError::Twice { line, first, address });
            }
            let place = Place { switch: switch.to_owned(), pod_switch: pod_switch.to_owned() };
            places.insert(address, place);
        }
        Ok(Self { places })
    }

    /// Whether the file lists no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Orders nodes so that those under one switch are consecutive. Switches come in the order in which they appear,
    /// and nodes under one keep theirs; nodes that are not listed come last.
    #[must_use]
    pub fn order<'a>(&self, addresses: impl IntoIterator<Item = &'a str>) -> Order {
        let place = |address: &str| {
            let address = canonical(address).unwrap_or_else(|| address.to_owned());
            self.places.get(&address).cloned()
        };
        let places: Vec<Option<Place>> = addresses.into_iter().map(place).collect();
        let mut appearance: BTreeMap<&str, usize> = BTreeMap::new();
        for place in places.iter().flatten() {
            let next = appearance.len();
            appearance.entry(&place.switch).or_insert(next);
        }
        let group = |index: &usize| match &places[*index] {
            Some(place) => appearance.get(&*place.switch).copied().unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let mut by_rank: Vec<usize> = (0..places.len()).collect();
        by_rank.sort_by_key(group);
        let places = by_rank.iter().map(|index| places[*index].clone()).collect();
        Order { by_rank, places }
    }
}

/// One form for each address.
fn canonical(address: &str) -> Option<String> {
    address.parse::<std::net::IpAddr>().ok().map(|ip| ip.to_string())
}

/// A line of a wrong file can be very long.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The guide's file: ten nodes, node i under switch i mod 4.
    fn guide() -> String {
        (0..10).map(|node| format!("asw-{} psw-0 192.168.0.{node}\r\n", node % 4)).collect()
    }

    fn ordered(text: &str, last: &[u32]) -> Vec<u32> {
        let addresses: Vec<String> = last.iter().map(|node| format!("192.168.0.{node}")).collect();
        let order = Topology::parse(text).unwrap().order(addresses.iter().map(String::as_str));
        order.by_rank.into_iter().map(|index| last[index]).collect()
    }

    #[test]
    fn the_guides_ten_nodes_come_out_in_its_order() {
        let all: Vec<u32> = (0..10).collect();
        assert_eq!(ordered(&guide(), &all), [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]);
        assert_eq!(ordered(&guide(), &[0, 1, 2, 3, 5, 6, 7, 8, 9]), [0, 8, 1, 5, 9, 2, 6, 3, 7]);
    }

    #[test]
    fn unlisted_nodes_come_last_and_an_empty_file_changes_nothing() {
        assert_eq!(ordered(&guide(), &[77, 0, 1, 78, 4]), [0, 4, 1, 77, 78]);
        assert_eq!(ordered("# nothing\n\n", &[3, 1, 2]), [3, 1, 2]);
        assert!(Topology::parse(" \n").unwrap().is_empty());
    }

    #[test]
    fn both_switches_of_a_node_are_read() {
        let text = "s1 p1 10.0.0.1\ns2 p1 10.0.0.2\ns1 p2 10.0.0.3";
        let order = Topology::parse(text).unwrap().order(["10.0.0.2", "10.0.0.9", "10.0.0.3", "10.0.0.1"]);
        let place = |it: &Option<Place>| it.as_ref().map(|it| format!("{}/{}", it.pod_switch, it.switch));
        let places: Vec<Option<String>> = order.places.iter().map(place).collect();
        let listed = |name: &str| Some(name.to_owned());
        assert_eq!(order.by_rank, [0, 2, 3, 1]);
        assert_eq!(places, [listed("p1/s2"), listed("p2/s1"), listed("p1/s1"), None]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("asw psw 10.0.0.1\nasw 10.0.0.2\n"),
            "line 2 has 2 columns instead of 3, `asw psw ip`: `asw 10.0.0.2`"
        );
        assert_eq!(error("\n\nasw psw host-a"), "line 3: `host-a` is not an IP address");
        assert_eq!(
            error("a p 10.0.0.1\nb p 10.0.0.1"),
            "line 2 lists 10.0.0.1 again; it is already on line 1"
        );
    }

    proptest! {
        #[test]
        fn every_node_keeps_a_rank_and_switches_stay_together(
            under in proptest::collection::vec(proptest::option::of(0_u8..4), 0..20)
        ) {
            let address = |node: usize| format!("10.0.0.{node}");
            let text: String = under.iter().enumerate()
                .filter_map(|(node, switch)| Some(format!("s{} p {}\n", (*switch)?, address(node))))
                .collect();
            let addresses: Vec<String> = (0..under.len()).map(address).collect();
            let order = Topology::parse(&text).unwrap().order(addresses.iter().map(String::as_str));
            let mut by_rank = order.by_rank.clone();
            by_rank.sort_unstable();
            prop_assert_eq!(by_rank, (0..under.len()).collect::<Vec<_>>());
            let mut switches: Vec<_> = order.places.into_iter().map(|it| it.map(|it| it.switch)).collect();
            switches.dedup();
            let mut distinct = switches.clone();
            distinct.sort();
            distinct.dedup();
            prop_assert_eq!(switches.len(), distinct.len());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _either = Topology::parse(&text);
        }
    }
}
