//! Jobs that hang, and jobs that do not: what is declared, which ranks are named, and why; and what follows.

mod case;
mod corpus;
mod nodes;
mod observed;
mod outcomes;
mod policy;
mod score;

use std::ffi::OsString;

/// The interpreter that has torch, if there is one.
fn torch_python() -> Option<OsString> {
    std::env::var_os("TORCH_PYTHON").filter(|python| !python.is_empty())
}
