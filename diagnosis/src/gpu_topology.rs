//! How the accelerators of one node are connected, and which of them a job should get.
//!
//! * [`LinkKind`]: the link between two of them, and its assumed bandwidth in MB/s.
//! * [`Matrix`]: all pairs of one node; from the table of the vendor's tool ([`Matrix::parse`]) or from measurements.
//! * [`mod@choose`]: the best `k` of those that are free; exact for up to 16.
//! * [`mod@arrange`]: the list that workers see in the end, with a reason.
//!
//! **The model.** Collective operations use rings. On direct links (`NVLink` of a cube mesh, `MetaXLink`) a set of
//! devices carries as many rings as there are edge-disjoint Hamiltonian cycles among its links, each with the
//! bandwidth of one link. Where no ring of links exists, the ring with the best slowest hop counts, with that hop's
//! bandwidth. Behind a switch every device has the same links to all others, and that is the bandwidth of its ring.

mod arrange;
mod choose;
mod gpu_set;
mod link_kind;
mod matrix;
mod measured;
mod packing;
mod rings;
mod sums;
mod text;

pub use self::{
    arrange::{Allowed, Arranged, CannotArrange, GpuRequest, absent, allowed, arrange},
    choose::{CannotChoose, Choice, Objective, Ranked, choose, ranking},
    gpu_set::{GpuSet, MAX_GPUS},
    link_kind::{LinkKind, PciPath, UnknownLink},
    matrix::{BadMatrix, Matrix},
    rings::Score,
};

#[cfg(test)]
mod tests;
