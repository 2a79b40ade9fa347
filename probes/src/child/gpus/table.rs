//! The topology table that vendors' tools print: `nvidia-smi topo -m`, `mx-smi topo -m`.

use std::path::Path;

use diagnosis::{
    gpu_topology::{BadMatrix, Matrix},
    gpus::{GpuLink, Inventory},
};

use super::Collector;

/// Adds the links between all accelerators found so far, and their NUMA nodes if the table has them.
pub(super) fn take(collector: &mut Collector<'_>, tool: &Path) {
    let count = collector.inventory.gpus.len();
    if count < 2 {
        return;
    }
    let Some(matrix) = collector.ask(tool, &["topo", "-m"], |text| read(text, count)) else { return };
    let Inventory { gpus, links, .. } = &mut collector.inventory;
    for (place, gpu) in gpus.iter_mut().enumerate() {
        gpu.numa_node = matrix.numa(place).or(gpu.numa_node);
    }
    for (one, a) in gpus.iter().enumerate() {
        for (other, b) in gpus.iter().enumerate().skip(one + 1) {
            let link = matrix.link(one, other);
            links.extend(link.map(|link| GpuLink { a: a.index, b: b.index, link }));
        }
    }
}

/// Parses a table of `count` accelerators.
pub(crate) fn read(text: &str, count: usize) -> Result<Matrix, String> {
    let matrix = Matrix::parse(text).map_err(|why| why.to_string())?;
    if matrix.size() != count {
        let size = matrix.size();
        return Err(format!("the number of GPUs in the topology is {size}, but this node has {count}"));
    }
    // Numbers of a measurement, which no tool prints.
    matrix.link(0, 0).ok_or_else(|| BadMatrix::NoTable.to_string())?;
    Ok(matrix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_another_size_is_refused() {
        let table = include_str!("../../../../diagnosis/src/gpu_topology/fixtures/f_c500.txt");
        assert_eq!(read(table, 8).unwrap().link(0, 1).unwrap().to_string(), "MX");
        for (text, count, message) in [
            (table, 4, "the number of GPUs in the topology is 8, but this node has 4"),
            ("no table", 2, "no topology table found"),
            ("", 2, "no topology table found"),
            ("0,9\n9,0\n", 2, "no topology table found"),
            (&table[..300], 8, "the topology table is not square"),
        ] {
            let why = read(text, count).unwrap_err();
            assert!(why.starts_with(message), "{why}");
        }
    }
}
