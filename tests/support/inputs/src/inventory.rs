//! A node's accelerators as a document: from a node, from a probe, from a file (`dlrover-diag gpus --from`); and the
//! report of a check with it. Other programs read such a report: it is JSON in any case.

use diagnosis::gpus::Inventory;
use master_proto::convert::inventory_report;
use rules::{job::Event, taint_report::TaintReport};

/// What is read can be sent to the master, and arrives unchanged; any report is a document and a table.
pub(crate) fn inventory(bytes: &[u8]) {
    if let Ok(inventory) = serde_json::from_slice::<Inventory>(bytes) {
        let inventory = inventory.bounded();
        assert_eq!(inventory.clone().bounded(), inventory);
        let _words = inventory.troubles();
        let told = inventory_report("n".to_owned(), &inventory);
        let Event::InventoryReported { inventory: came, .. } =
            Event::try_from(told).expect("a node may tell it")
        else {
            unreachable!("an inventory")
        };
        assert!(*came == inventory || came.notes.is_empty());
    }
    if let Ok(report) = serde_json::from_slice::<TaintReport>(bytes) {
        let document = master::taint_document(&report, "k", 0);
        let _read: serde_json::Value = serde_json::from_str(&document).expect("a document");
        assert!(!report.to_string().is_empty());
    }
}
