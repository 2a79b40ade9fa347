//! The inventory of a node's accelerators. A JSON document, because it is only copied into reports.

use diagnosis::gpus::Inventory;
use rules::job::Event;

use super::{ConvertError, limited, node_id};
use crate::{MAX_REQUEST_BYTES, pb};

/// With room for the rest of the message.
const MAX_JSON: usize = MAX_REQUEST_BYTES - 1024;

/// The report of a node's accelerators; only the outline when there are very many.
#[must_use]
pub fn inventory_report(node_id: String, inventory: &Inventory) -> pb::InventoryReport {
    // Plain data: this cannot fail.
    let json = |inventory: &Inventory| serde_json::to_string(inventory).unwrap_or_default();
    let whole = json(inventory);
    let json = if whole.len() <= MAX_JSON { whole } else { json(&inventory.clone().outline()) };
    pb::InventoryReport { node_id, json }
}

impl TryFrom<pb::InventoryReport> for Event {
    type Error = ConvertError;

    fn try_from(wire: pb::InventoryReport) -> Result<Self, ConvertError> {
        let node = node_id(wire.node_id, "node_id")?;
        let json = limited(wire.json, MAX_JSON, "json")?;
        let inventory: Inventory = serde_json::from_str(&json)
            .map_err(|error| ConvertError::Document { field: "json", reason: error.to_string() })?;
        Ok(Self::InventoryReported { node, inventory: Box::new(inventory.bounded()) })
    }
}
