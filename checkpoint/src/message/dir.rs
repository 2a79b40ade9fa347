//! Checkpoint directories and paths, as clients name them.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, Visitor},
};

use super::limits::MAX_PATH;

/// Why a path cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path is empty")]
    Empty,
    #[error("the path `{path}` is relative; give an absolute path")]
    Relative { path: String },
    #[error("the path `{path}` contains `..`; give the path without it")]
    Up { path: String },
    #[error("the path has {bytes} bytes (maximum: {MAX_PATH})")]
    TooLong { bytes: usize },
    #[error("the path `{}` contains a control character", .path.escape_debug())]
    Control { path: String },
}

/// An absolute path without `..`, `.`, empty components and a slash at the end: two names of one directory are equal,
/// links aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Dir(String);

/// The journal has another value than an absolute path. By hand, because a derived `try_from` hides the type's
/// name from what follows the shape of the journal.
impl<'de> Deserialize<'de> for Dir {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DirVisitor;
        impl<'de> Visitor<'de> for DirVisitor {
            type Value = Dir;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an absolute path")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Dir, D::Error> {
                Dir::try_from(String::deserialize(inner)?).map_err(D::Error::custom)
            }
        }
        deserializer.deserialize_newtype_struct("Dir", DirVisitor)
    }
}

impl Dir {
    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of something in the directory.
    #[must_use]
    pub fn join(&self, relative: &str) -> String {
        if self.0 == "/" { format!("/{relative}") } else { format!("{}/{relative}", self.0) }
    }

    /// The path from this directory on, when `path` is below it.
    #[must_use]
    pub fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = if self.0 == "/" { path } else { path.strip_prefix(self.0.as_str())? };
        rest.strip_prefix('/').filter(|rest| !rest.is_empty())
    }
}

impl fmt::Display for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Dir {
    type Error = PathError;

    fn try_from(path: String) -> Result<Self, PathError> {
        absolute(&path).map(Self)
    }
}

impl From<Dir> for String {
    fn from(dir: Dir) -> Self {
        dir.0
    }
}

impl TryFrom<&str> for Dir {
    type Error = PathError;

    fn try_from(path: &str) -> Result<Self, PathError> {
        absolute(path).map(Self)
    }
}

/// Returns an absolute path without `.`, empty components and a slash at the end.
///
/// # Errors
/// When the path is empty, relative, longer than [`MAX_PATH`] bytes, goes up, or has a control character, which no line
/// of a log can hold.
pub fn absolute(path: &str) -> Result<String, PathError> {
    if path.is_empty() {
        return Err(PathError::Empty);
    }
    if path.len() > MAX_PATH {
        return Err(PathError::TooLong { bytes: path.len() });
    }
    if path.chars().any(char::is_control) {
        return Err(PathError::Control { path: path.to_owned() });
    }
    if !path.starts_with('/') {
        return Err(PathError::Relative { path: path.to_owned() });
    }
    let mut clean = String::with_capacity(path.len());
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => return Err(PathError::Up { path: path.to_owned() }),
            name => {
                clean.push('/');
                clean.push_str(name);
            }
        }
    }
    if clean.is_empty() {
        clean.push('/');
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_of_a_folder_are_equal() {
        let plain = Dir::try_from("/ckpt/run").unwrap();
        assert_eq!(Dir::try_from("//ckpt/./run/").unwrap(), plain);
        assert_eq!(Dir::try_from("/").unwrap().join("a"), "/a");
        assert_eq!(plain.join("7.json"), "/ckpt/run/7.json");
    }

    #[test]
    fn only_what_is_below_a_folder_is_relative_to_it() {
        let dir = Dir::try_from("/ckpt").unwrap();
        assert_eq!(dir.strip("/ckpt/5/rank_0.pt"), Some("5/rank_0.pt"));
        assert_eq!(dir.strip("/ckpt2/x"), None);
        assert_eq!(dir.strip("/ckpt"), None);
        assert_eq!(Dir::try_from("/").unwrap().strip("/x"), Some("x"));
    }

    #[test]
    fn a_path_that_cannot_be_used_is_named() {
        let error = |path: &str| absolute(path).unwrap_err().to_string();
        assert_eq!(error(""), "the path is empty");
        assert_eq!(error("a/b"), "the path `a/b` is relative; give an absolute path");
        assert_eq!(error("/a/../b"), "the path `/a/../b` contains `..`; give the path without it");
        assert_eq!(error("/a\n"), "the path `/a\\n` contains a control character");
        assert_eq!(error(&format!("/{}", "a".repeat(4096))), "the path has 4097 bytes (maximum: 4096)");
        assert!(serde_json::from_str::<Dir>("\"a\"").is_err());
    }
}
