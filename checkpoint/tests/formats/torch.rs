//! Stock torch reads the files: `torch.load`, `dcp.load`, `dcp_to_torch_save`, safetensors.

use std::path::Path;

use crate::{case, python};

/// Makes slots of states of a kind, writes their files, and reads these. Returns what the reader said.
fn through(kind: &str) -> Option<String> {
    let python = python::with_torch()?;
    let folder = tempfile::tempdir().unwrap();
    let script = |verb: &str| {
        let arguments = [verb.as_ref(), folder.path().as_os_str(), kind.as_ref()];
        // A test is not what the other processors of the host are for.
        python::run(&python, script_of(kind), &arguments, &[("OMP_NUM_THREADS", "1")])
    };
    script("make");
    if has_slots(folder.path()) {
        case::write_all(folder.path());
    }
    let found = script("check");
    if let Some(why) = found.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        python::skipped(why);
        return None;
    }
    Some(found)
}

fn script_of(kind: &str) -> &'static str {
    if kind == "pt" { "torch_pt.py" } else { "torch_folders.py" }
}

fn has_slots(folder: &Path) -> bool {
    folder.read_dir().unwrap().next().is_some()
}

/// Every type, views and shared storages, a model with its optimizer, odd leaves, 4000 tensors, a storage of
/// 5 GiB.
#[test]
fn torch_loads_files() {
    let Some(found) = through("pt") else { return };
    for name in ["types", "views", "model", "odd", "unsafe", "tiny 4000", "large 5368709120"] {
        assert!(found.contains(&format!("pt {name}")), "{found}");
    }
}

#[test]
fn torch_loads_folders_of_two_ranks() {
    let Some(found) = through("dcp") else { return };
    assert!(found.contains("dcp"), "{found}");
}

#[test]
fn torch_loads_a_folder_of_its_own_planner() {
    let Some(found) = through("planned") else { return };
    assert!(found.contains("dcp by the planner"), "{found}");
}

#[test]
fn safetensors_and_torch_load_shards() {
    let Some(found) = through("safetensors") else { return };
    assert!(found.contains("safetensors"), "{found}");
}
