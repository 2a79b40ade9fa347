//! Tells the sources which commit and target they are built for: `DLROVER_BUILD`, which `--version` prints.
//!
//! A build without git sets DLROVER_BUILD_COMMIT. Without both the commit is left out.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo::rerun-if-env-changed=DLROVER_BUILD_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var("DLROVER_BUILD_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(of_this_checkout);
    let target = env::var("TARGET").unwrap_or_else(|_| "unknown target".to_owned());
    let build = commit.into_iter().chain([target]).collect::<Vec<_>>().join(", ");
    println!("cargo::rustc-env=DLROVER_BUILD={build}");
}

/// The commit that is checked out, if this directory belongs to a checkout of this project and not of one around it.
fn of_this_checkout() -> Option<String> {
    let tree = fs::canonicalize(Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).parent()?).ok()?;
    let top = PathBuf::from(git(&tree, &["rev-parse", "--show-toplevel"])?);
    if fs::canonicalize(top).ok()? != tree {
        return None;
    }
    // A commit changes the file of the branch; another branch changes HEAD. Nothing else starts a build.
    watch(&tree, "HEAD");
    if let Some(branch) = git(&tree, &["symbolic-ref", "--quiet", "HEAD"]) {
        watch(&tree, &branch);
    }
    git(&tree, &["rev-parse", "--short=12", "HEAD"])
}

/// Runs this script again when a file of git changes. One that is not there yet, such as a packed branch's, would run
/// it every time: the directory is watched instead, in which it will be made.
fn watch(tree: &Path, name: &str) {
    let Some(path) = git(tree, &["rev-parse", "--git-path", name]).map(|path| tree.join(path)) else {
        return;
    };
    if let Some(there) = path.ancestors().find(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", there.display());
    }
}

fn git(tree: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(tree).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}
