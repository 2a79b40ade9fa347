//! Files as other programs read them: Python's zipfile and pickle, and torch where `TORCH_PYTHON` names an
//! interpreter that has it.

#![expect(clippy::unwrap_used, reason = "tests may panic, their helpers too")]
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a pure crate, but its files are read by others"
)]

mod case;
mod python;
mod torch;
mod trees;
