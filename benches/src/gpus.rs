//! The cases of the `gpus` bench.

pub mod all_reduce;
pub mod choice;
pub mod ring;

/// 8 V100 of a DGX-1V: a cube mesh of one and two links.
pub const A: &str = include_str!("../../diagnosis/src/gpu_topology/fixtures/a_dgx1v.txt");
/// 8 A100 behind switches.
pub const C: &str = include_str!("../../diagnosis/src/gpu_topology/fixtures/c_dgx_a100.txt");
/// 8 on PCIe, two sockets.
pub const D: &str = include_str!("../../diagnosis/src/gpu_topology/fixtures/d_pcie.txt");
/// 8 MetaX C500, two islands.
pub const F: &str = include_str!("../../diagnosis/src/gpu_topology/fixtures/f_c500.txt");
