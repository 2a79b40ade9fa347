//! Texts of vendors' tools, and the topology file.

use diagnosis::{
    gpu_topology::{GpuSet, Matrix, Objective, choose},
    gpus::{Inventory, MAX_GPUS},
};
use probes::readers;
use rules::topology::Topology;

/// `nvidia-smi --query-gpu`: the devices are in order, and can be reported.
pub(crate) fn nvidia_smi(bytes: &[u8]) {
    if let Ok(gpus) = readers::nvidia_smi(&String::from_utf8_lossy(bytes)) {
        assert!(gpus.len() <= MAX_GPUS && !gpus.is_empty());
        assert!((0..).zip(&gpus).all(|(index, gpu)| gpu.index == index));
        let _bounded = Inventory { gpus, ..Inventory::default() }.bounded();
    }
}

/// `mx-smi -L`, a line of dashes, and `mx-smi --show-memory`.
pub(crate) fn mx_smi(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (list, memory) = text.split_once("----\n").unwrap_or((&text, ""));
    let (gpus, _notes) = readers::mx_smi(list, memory);
    assert!(gpus.len() <= MAX_GPUS && gpus.iter().all(|gpu| (gpu.index as usize) < MAX_GPUS));
}

/// `nvidia-smi topo -m`, `mx-smi topo -m` and tables of bandwidths: links are symmetric, and a choice is valid.
pub(crate) fn gpu_topology(bytes: &[u8]) {
    let Some((wanted, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    let Ok(matrix) = Matrix::parse(&text) else { return };
    let size = matrix.size();
    for (one, other) in (0..size).flat_map(|one| (0..size).map(move |other| (one, other))) {
        assert_eq!(matrix.link(one, other), matrix.link(other, one));
        assert_eq!(matrix.mbps(one, other), matrix.mbps(other, one));
    }
    assert_eq!(readers::topology_table(&text, size).is_ok(), !matrix.is_measured());
    let wanted = usize::from(*wanted) % (size + 2);
    let free = GpuSet::first(size);
    for objective in [Objective::Topology, Objective::Pack] {
        match choose(&matrix, free, wanted, objective) {
            Ok(choice) => {
                assert_eq!(choice.set.len(), wanted);
                assert!(choice.score >= choice.first_score || objective == Objective::Pack);
            }
            Err(_) => assert!(wanted == 0 || wanted > size),
        }
    }
}

/// The topology file: every node gets a rank, whichever are listed.
pub(crate) fn topology(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let addresses: Vec<&str> = text.split_whitespace().take(64).collect();
    if let Ok(topology) = Topology::parse(&text) {
        let mut by_rank = topology.order(addresses.iter().copied()).by_rank;
        by_rank.sort_unstable();
        assert!(by_rank.into_iter().eq(0..addresses.len()));
    }
}
