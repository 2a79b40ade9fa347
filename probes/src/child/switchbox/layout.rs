//! Which accelerator is on which socket, from MetaX's driver.
//!
//! `class/mxcd/mxcd/layout/properties` has a line `num_cpu_nodes N`. Each `layout/nodes/D/properties` of an
//! accelerator has a line `mgpu_id SOCKET`, and its number is then D - N; nodes of processors have none.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Longer than any such file.
const LONGEST: u64 = 64 << 10;

/// Accelerators by socket.
pub(super) type Sockets = BTreeMap<u32, u32>;

/// Why the driver's tree cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LayoutError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A number is missing.
    #[error("{} has no usable line `{key} N`", path.display())]
    NoNumber {
        path: PathBuf,
        /// The name of the line.
        key: &'static str,
    },
    /// The number of an accelerator is below the first one.
    #[error("{} has an mgpu_id, but its number {node} is below num_cpu_nodes {cpus}", path.display())]
    Below {
        path: PathBuf,
        node: u32,
        /// The number of processor nodes.
        cpus: u32,
    },
    /// Two accelerators on one socket.
    #[error("socket {socket} belongs to GPU {first} and to GPU {second}, according to {}", path.display())]
    Twice {
        socket: u32,
        first: u32,
        second: u32,
        /// The file that names it again.
        path: PathBuf,
    },
}

/// The driver's directory.
pub(super) fn driver(sysfs: &Path) -> PathBuf {
    sysfs.join("class/mxcd/mxcd")
}

/// Returns the accelerators by socket. `None`: the driver shows no layout.
///
/// # Errors
/// When the layout cannot be read, or contradicts itself.
pub(super) fn sockets(sysfs: &Path) -> Result<Option<Sockets>, LayoutError> {
    let layout = driver(sysfs).join("layout");
    let properties = layout.join("properties");
    let text = match read(&properties) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(LayoutError::Read { path: properties, source }),
    };
    let key = "num_cpu_nodes";
    let cpus = number(&text, key).flatten().ok_or(LayoutError::NoNumber { path: properties, key })?;
    let folder = layout.join("nodes");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LayoutError::Read { path, source }
    };
    let mut nodes = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
        let name = entry.map_err(failed(&folder))?.file_name();
        nodes.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    nodes.sort_unstable();
    let mut sockets = Sockets::new();
    for node in nodes {
        let path = folder.join(node.to_string()).join("properties");
        let text = read(&path).map_err(failed(&path))?;
        let key = "mgpu_id";
        let Some(socket) = number(&text, key) else { continue };
        let Some(socket) = socket else { return Err(LayoutError::NoNumber { path, key }) };
        let Some(gpu) = node.checked_sub(cpus) else { return Err(LayoutError::Below { path, node, cpus }) };
        if let Some(first) = sockets.insert(socket, gpu) {
            return Err(LayoutError::Twice { socket, first, second: gpu, path });
        }
    }
    Ok(Some(sockets))
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The number of the first line with this name. `None`: no such line; `Some(None)`: not a number.
pub(crate) fn number(text: &str, key: &str) -> Option<Option<u32>> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix([' ', '\t']))?;
    Some(line.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these nodes and the contents of their files.
    fn tree(properties: &str, nodes: &[(u32, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let layout = driver(root.path()).join("layout");
        for (node, text) in nodes {
            let folder = layout.join("nodes").join(node.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("properties"), text).unwrap();
        }
        fs::create_dir_all(layout.join("nodes/not-a-number")).unwrap();
        fs::write(layout.join("properties"), properties).unwrap();
        root
    }

    #[test]
    fn accelerators_are_numbered_after_processors_and_mapped_to_sockets() {
        let root = tree(
            "platform x\nnum_cpu_nodes 2\n",
            &[
                (0, "cpu_cores 64\n"),
                (1, ""),
                (2, "a 1\nmgpu_id 5\n"),
                (3, "mgpu_id\t0\n"),
                (10, "mgpu_id 7"),
            ],
        );
        let found = sockets(root.path()).unwrap().unwrap();
        assert_eq!(found, Sockets::from([(5, 0), (0, 1), (7, 8)]));
    }

    #[test]
    fn without_the_driver_there_is_no_layout() {
        assert!(sockets(tempfile::tempdir().unwrap().path()).unwrap().is_none());
    }

    #[test]
    fn a_tree_that_contradicts_itself_is_refused_with_its_file() {
        let twice = tree("num_cpu_nodes 1\n", &[(1, "mgpu_id 3\n"), (2, "mgpu_id 3\n")]);
        let message = sockets(twice.path()).unwrap_err().to_string();
        assert!(message.starts_with("socket 3 belongs to GPU 0 and to GPU 1, according to /"), "{message}");
        for (properties, node, expected) in [
            ("nothing\n", "", "has no usable line `num_cpu_nodes N`"),
            ("num_cpu_nodes many\n", "", "has no usable line `num_cpu_nodes N`"),
            ("num_cpu_nodes 1\n", "mgpu_id -1\n", "has no usable line `mgpu_id N`"),
            ("num_cpu_nodes 2\n", "mgpu_id 0\n", "its number 1 is below num_cpu_nodes 2"),
        ] {
            let message = sockets(tree(properties, &[(1, node)]).path()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_flooding_file_is_read_to_a_bound() {
        let root = tree(&"x 1\n".repeat(100_000), &[(0, "")]);
        assert!(matches!(sockets(root.path()), Err(LayoutError::NoNumber { .. })));
    }
}
