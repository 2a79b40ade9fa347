//! Racks and pods as numbers, with their names for reports.

use std::collections::BTreeMap;

use crate::{job::count, topology::Place};

/// The switch of nodes that the topology file does not list.
const UNLISTED: &str = "unlisted";

/// The racks and pods of the members of a check, by number, and their names. There are no names where no topology is
/// known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fabric {
    pub(super) racks: Vec<u32>,
    pub(super) pods: Vec<u32>,
    pub(super) rack_names: Vec<String>,
    pub(super) pod_names: Vec<String>,
}

impl Fabric {
    /// Numbers are given by appearance. Nodes without a known place share a rack and a pod. A rack is identified by
    /// both of its switches: a switch name in two pods stands for two racks, so no rack is in two pods.
    pub(super) fn of(places: &[Option<Place>]) -> Self {
        let (racks, rack_places) = numbered(places.iter().map(Option::as_ref));
        let pod = |place: &Option<Place>| place.as_ref().map(|place| place.pod_switch.clone());
        let (pods, pod_switches) = numbered(places.iter().map(pod));
        if places.iter().all(Option::is_none) {
            return Self { racks, pods, rack_names: Vec::new(), pod_names: Vec::new() };
        }
        let mut uses: BTreeMap<&str, u32> = BTreeMap::new();
        for place in &rack_places {
            *uses.entry(place.map_or(UNLISTED, |place| &place.switch)).or_default() += 1;
        }
        let rack_name = |place: &Option<&Place>| match place {
            None => UNLISTED.to_owned(),
            Some(Place { switch, pod_switch }) => match uses.get(&**switch) {
                Some(2..) => format!("{pod_switch}/{switch}"),
                _ => switch.clone(),
            },
        };
        let rack_names = rack_places.iter().map(rack_name).collect();
        let pod_names =
            pod_switches.into_iter().map(|switch| switch.unwrap_or_else(|| UNLISTED.to_owned())).collect();
        Self { racks, pods, rack_names, pod_names }
    }
}

/// A number for each, and its name.
fn numbered<T: Ord + Clone>(things: impl Iterator<Item = T>) -> (Vec<u32>, Vec<T>) {
    let mut known: BTreeMap<T, u32> = BTreeMap::new();
    let mut named = Vec::new();
    let numbers = things.map(|thing| {
        *known.entry(thing.clone()).or_insert_with(|| {
            named.push(thing);
            count(named.len() - 1)
        })
    });
    (numbers.collect(), named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(switch: &str, pod_switch: &str) -> Option<Place> {
        Some(Place { switch: switch.to_owned(), pod_switch: pod_switch.to_owned() })
    }

    #[test]
    fn racks_and_pods_are_numbered_by_appearance_and_unlisted_nodes_have_their_own() {
        let places = [place("s1", "p"), place("s0", "p"), None, place("s1", "p"), place("s7", "q"), None];
        let fabric = Fabric::of(&places);
        assert_eq!((fabric.racks, fabric.pods), (vec![0, 1, 2, 0, 3, 2], vec![0, 0, 1, 0, 2, 1]));
        assert_eq!(fabric.rack_names, ["s1", "s0", "unlisted", "s7"]);
        assert_eq!(fabric.pod_names, ["p", "unlisted", "q"]);
    }

    #[test]
    fn without_a_topology_there_is_one_rack_and_one_pod_without_names() {
        let fabric = Fabric::of(&[None, None]);
        assert_eq!((fabric.racks, fabric.pods), (vec![0, 0], vec![0, 0]));
        assert_eq!((fabric.rack_names.len(), fabric.pod_names.len()), (0, 0));
    }

    #[test]
    fn one_name_under_two_pods_is_two_racks() {
        let fabric = Fabric::of(&[place("s", "p"), place("s", "q"), place("t", "q"), place("s", "p")]);
        assert_eq!((fabric.racks, fabric.pods), (vec![0, 1, 2, 0], vec![0, 1, 1, 0]));
        assert_eq!(fabric.rack_names, ["p/s", "q/s", "t"]);
    }
}
