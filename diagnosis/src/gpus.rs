//! The accelerators of a node: the facts ([`Inventory`]), and whether they can be used ([`health`]).

pub mod health;
mod inventory;
pub mod share;
mod xid;

pub use inventory::{
    CgroupLimits, Gpu, GpuLink, GpuProcess, GpuTrouble, GpuUse, Host, Inventory, MAX_GPUS, NvLink,
    RemappedRows, Vendor,
};
pub use xid::{Xid, xid_name};

/// Bytes in GB (10^9), to a tenth, for people.
#[must_use]
pub fn gigabytes(bytes: u64) -> String {
    format!("{}.{}", bytes / 1_000_000_000, bytes / 100_000_000 % 10)
}
