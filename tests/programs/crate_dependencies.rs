//! The dependencies that are allowed between crates, and between the three parts of `probes`.

use std::{collections::BTreeSet, fs, path::Path};

/// Each crate, and the crates of the workspace that it may depend on. Pure crates do not depend on shells.
const CRATES: [(&str, &[&str]); 15] = [
    ("diagnosis", &[]),
    ("rules", &["checkpoint", "diagnosis"]),
    ("stacks", &[]),
    ("checkpoint", &[]),
    ("saver", &["checkpoint", "processes", "rules"]),
    ("store", &[]),
    ("processes", &["rules"]),
    ("master-proto", &["checkpoint", "diagnosis", "rules"]),
    ("probes", &["diagnosis", "processes", "rules", "stacks"]),
    (
        "agent",
        &[
            "checkpoint",
            "diagnosis",
            "master-proto",
            "probes",
            "processes",
            "rules",
            "saver",
            "stacks",
            "store",
        ],
    ),
    ("master", &["checkpoint", "diagnosis", "master-proto", "processes", "rules", "stacks"]),
    ("launcher", &["agent", "diagnosis", "master", "master-proto", "probes", "processes", "rules", "saver"]),
    (
        "dlrover-diag",
        &["agent", "diagnosis", "launcher", "master-proto", "probes", "processes", "rules", "stacks"],
    ),
    ("packaging/wheel", &["dlrover-diag", "launcher"]),
    ("benches", &["agent", "diagnosis", "launcher", "master", "master-proto", "rules", "stacks", "store"]),
];

fn tree() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the crates of the workspace in the `[dependencies]` of a manifest.
fn named(manifest: &str) -> BTreeSet<&str> {
    let section =
        manifest.split("\n[").find_map(|part| part.strip_prefix("dependencies]")).unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| CRATES.iter().any(|(known, _)| known == name)).collect()
}

/// Returns the lines of code in a file or directory of the tree that contain one of `words`.
fn lines_with(under: &Path, words: &[&str], found: &mut Vec<String>) {
    if under.is_dir() {
        for entry in fs::read_dir(under).unwrap() {
            lines_with(&entry.unwrap().path(), words, found);
        }
    } else if under.extension().is_some_and(|extension| extension == "rs") {
        for line in fs::read_to_string(under).unwrap().lines() {
            let is_code = !line.trim_start().starts_with("//");
            if is_code && words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}: {line}", under.display()));
            }
        }
    }
}

#[test]
fn every_crate_depends_only_on_allowed_crates() {
    for (name, may) in CRATES {
        let manifest = fs::read_to_string(tree().join(name).join("Cargo.toml")).unwrap();
        let may: BTreeSet<&str> = may.iter().copied().collect();
        let beyond: Vec<&str> = named(&manifest).difference(&may).copied().collect();
        assert!(beyond.is_empty(), "{name} may not depend on {beyond:?}");
    }
}

#[test]
fn pure_crates_have_the_same_clippy_configuration() {
    let fence = |name: &str| fs::read_to_string(tree().join(name).join("clippy.toml")).unwrap();
    assert_eq!(fence("rules"), fence("diagnosis"));
    assert_eq!(fence("rules"), fence("stacks"));
    assert_eq!(fence("rules"), fence("checkpoint"));
}

#[test]
fn the_parts_of_probes_share_only_wire() {
    let source = tree().join("probes/src");
    let mut found = Vec::new();
    for (room, others) in [
        ("child.rs", &["crate::parent"][..]),
        ("child", &["crate::parent"]),
        ("parent.rs", &["crate::child"]),
        ("parent", &["crate::child"]),
        ("wire.rs", &["crate::child", "crate::parent"]),
        ("wire", &["crate::child", "crate::parent"]),
    ] {
        lines_with(&source.join(room), others, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}
