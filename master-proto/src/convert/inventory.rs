//! What a node's accelerators are. A document, because it is only handed on: into reports, for people.

use diagnosis::gpus::Inventory;
use rules::job::Event;

use super::{ConvertError, limited, node_id};
use crate::{MOST_REQUEST_BYTES, pb};

/// The message's other bytes are few.
const MOST_JSON: usize = MOST_REQUEST_BYTES - 1024;

/// What a node says of its accelerators; of very many only the outline.
#[must_use]
pub fn inventory_report(node_id: String, inventory: &Inventory) -> pb::InventoryReport {
    // Plain numbers and words: there is nothing in it that JSON could not hold.
    let json = |inventory: &Inventory| serde_json::to_string(inventory).unwrap_or_default();
    let whole = json(inventory);
    let json = if whole.len() <= MOST_JSON { whole } else { json(&inventory.clone().outline()) };
    pb::InventoryReport { node_id, json }
}

impl TryFrom<pb::InventoryReport> for Event {
    type Error = ConvertError;

    fn try_from(wire: pb::InventoryReport) -> Result<Self, ConvertError> {
        let node = node_id(wire.node_id, "node_id")?;
        let json = limited(wire.json, MOST_JSON, "json")?;
        let inventory: Inventory = serde_json::from_str(&json)
            .map_err(|error| ConvertError::Document { field: "json", reason: error.to_string() })?;
        Ok(Self::InventoryReported { node, inventory: Box::new(inventory.bounded()) })
    }
}
