//! Nodes report their accelerators. Nothing is decided by it; it is for the operator.

use super::{Effect, Job, Log};
use crate::ids::NodeId;
use diagnosis::gpus::Inventory;

impl Job {
    /// A line in the log where something needs attention, once for each new thing.
    pub(super) fn on_inventory_reported(&mut self, node: &NodeId, inventory: Box<Inventory>) -> Vec<Effect> {
        let before = self.inventories.get(node).map(|before| before.troubles()).unwrap_or_default();
        let news: Vec<String> =
            inventory.troubles().into_iter().filter(|trouble| !before.contains(trouble)).collect();
        self.inventories.insert(node.clone(), inventory);
        match &news[..] {
            [] => Vec::new(),
            news => {
                vec![Effect::Log(Log::Accelerators { node: self.name_of(node), message: news.join("; ") })]
            }
        }
    }
}
