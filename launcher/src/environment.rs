//! The environment: a list that is read once, in `main`.

use std::ffi::{OsStr, OsString};

/// A view of the environment's variables.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a>(pub &'a [(OsString, OsString)]);

impl<'a> Environment<'a> {
    /// The value of a variable. Of several with one name the first counts, as in Python.
    pub fn get(self, name: &str) -> Option<&'a OsStr> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }

    /// The value of a variable that is set to something.
    pub fn get_filled(self, name: &str) -> Option<&'a OsStr> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// The directories of vendors' tools; empty: none.
    pub fn tool_path(self) -> &'a OsStr {
        self.get("PATH").unwrap_or_default()
    }
}
