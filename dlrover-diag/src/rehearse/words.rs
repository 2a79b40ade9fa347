//! Phrases that several reports share.

pub(super) use diagnosis::counted::counted as count;
use diagnosis::network_check::NetworkElement;

/// An element of a fabric by its name.
pub(super) fn element(element: NetworkElement) -> String {
    match element {
        NetworkElement::Node(node) => format!("node {node}"),
        NetworkElement::Link(a, b) => format!("link {a}-{b}"),
        NetworkElement::RackPair(a, b) => format!("path between rack {a} and rack {b}"),
        NetworkElement::Uplink(rack) => format!("uplink of rack {rack}"),
        NetworkElement::PartialUplink(rack) => format!("some uplinks of rack {rack}"),
        NetworkElement::Leaf(rack) => format!("switch of rack {rack}"),
        NetworkElement::Pod(pod) => format!("pod {pod}"),
    }
}

/// Elements, of which one is broken.
pub(super) fn either(elements: &[NetworkElement]) -> String {
    let names: Vec<String> = elements.iter().copied().map(element).collect();
    names.join(" or ")
}

/// Ascending numbers, those in a row together: `0 to 7, 9`.
pub(super) fn in_a_row(numbers: &[u32]) -> String {
    let rows = numbers.chunk_by(|one, next| one + 1 == *next).map(|row| match row {
        [first, .., last] if row.len() > 2 => format!("{first} to {last}"),
        few => few.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    });
    rows.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_are_merged() {
        assert_eq!(in_a_row(&[0, 1, 2, 3, 5, 6, 9]), "0 to 3, 5, 6, 9");
        assert_eq!(in_a_row(&[4]), "4");
        assert_eq!(in_a_row(&[]), "");
    }
}
