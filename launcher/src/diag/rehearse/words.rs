//! Words that several reports share.

use rules::network_check::Element;

/// `1 node`, `2 nodes`.
pub(super) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// An element of a fabric by its name.
pub(super) fn element(element: Element) -> String {
    match element {
        Element::Node(node) => format!("node {node}"),
        Element::Link(a, b) => format!("link {a}-{b}"),
        Element::RackPair(a, b) => format!("path between rack {a} and rack {b}"),
        Element::Uplink(rack) => format!("uplink of rack {rack}"),
        Element::PartialUplink(rack) => format!("part of the uplinks of rack {rack}"),
        Element::Leaf(rack) => format!("switch of rack {rack}"),
        Element::Pod(pod) => format!("pod {pod}"),
    }
}

/// Elements, of which one is broken.
pub(super) fn either(elements: &[Element]) -> String {
    let names: Vec<String> = elements.iter().copied().map(element).collect();
    names.join(" or ")
}
