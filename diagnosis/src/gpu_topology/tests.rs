//! Real boxes, small matrices against brute force, and tables that are none.

mod boxes;
mod brute_force;
mod busy;
mod lists;
mod tables;

use super::*;

/// 8 V100, wiring A (DGX-1V).
const A: &str = include_str!("fixtures/a_dgx1v.txt");
/// 8 V100, wiring B.
const B: &str = include_str!("fixtures/b_v100.txt");
/// 8 A100 behind switches.
const C: &str = include_str!("fixtures/c_dgx_a100.txt");
/// 8 on PCIe alone, two sockets.
const D: &str = include_str!("fixtures/d_pcie.txt");
/// 8 with bridges between pairs.
const E: &str = include_str!("fixtures/e_bridges.txt");
/// 4 with bridges between pairs that are not neighbours.
const E4: &str = include_str!("fixtures/e_bridges_4.txt");
/// 8 C500 on PCIe, two islands of `MetaXLink`.
const F: &str = include_str!("fixtures/f_c500.txt");
/// 8 C550, `MetaXLink` between all.
const G: &str = include_str!("fixtures/g_c550.txt");

fn matrix(text: &str) -> Matrix {
    Matrix::parse(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

fn set(gpus: &[usize]) -> GpuSet {
    gpus.iter().copied().collect()
}

fn all(matrix: &Matrix) -> GpuSet {
    GpuSet::first(matrix.size())
}

fn best(matrix: &Matrix, free: GpuSet, wanted: usize) -> Choice {
    let choice = choose(matrix, free, wanted, Objective::Topology).unwrap();
    assert!(choice.is_proven);
    choice
}
