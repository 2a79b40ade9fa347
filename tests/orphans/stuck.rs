//! A process in uninterruptible sleep: a worker that writes to a frozen file system cannot even be killed.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::launch::Launch;
use support::{launcher, trainer};

/// A frozen file system of our own; thawed and gone when dropped.
struct Frozen {
    folder: PathBuf,
    image: PathBuf,
}

impl Frozen {
    /// `Err`: what this host lacks.
    fn new(under: &Path) -> Result<Self, String> {
        let (folder, image) = (under.join("frozen"), under.join("image"));
        std::fs::create_dir(&folder).map_err(|error| error.to_string())?;
        run("truncate", &["-s", "16M", text(&image)])?;
        run("mkfs.ext4", &["-q", text(&image)])?;
        run("mount", &["-o", "loop", text(&image), text(&folder)])?;
        let frozen = Self { folder, image };
        run("fsfreeze", &["-f", text(&frozen.folder)])?;
        Ok(frozen)
    }

    fn thaw(&self) {
        let _not_frozen = run("fsfreeze", &["-u", text(&self.folder)]);
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        // A process that slept in it needs some time to leave.
        let unmounted = (0..100).any(|_| run("umount", &[text(&self.folder)]).is_ok());
        if !unmounted {
            let _last_resort = run("umount", &["-l", text(&self.folder)]);
        }
        let _gone_with_the_folder = std::fs::remove_file(&self.image);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

#[test]
fn a_worker_that_cannot_be_killed_does_not_hang_the_launcher() {
    let launcher = launcher!();
    if launcher.is_torchrun {
        return crate::show("torchrun waits for ever: skipped\n");
    }
    let home = tempfile::tempdir().expect("a temporary directory");
    let frozen = match Frozen::new(home.path()) {
        Ok(frozen) => frozen,
        Err(why) => return crate::show(&format!("this host cannot freeze a file system ({why}): skipped\n")),
    };
    let target = frozen.folder.join("x");
    let mut run = Launch::new(launcher)
        .flags(["--standalone", "--nproc-per-node=2", "--shutdown-timeout=1"])
        .script(trainer("stuck.py"))
        .args([text(&target)])
        .start();
    run.wait();
    frozen.thaw();
    let run = run.finish_whatever_is_left().expect_code(1);
    assert!(run.stderr.contains("could not be killed:\n  pid "), "{run:#?}");
    assert!(run.stderr.contains(", state D"), "{run:#?}");
    assert!(run.stderr.contains("rank      : 0 (local_rank: 0)\n  exitcode  : 3"), "{run:#?}");
}
