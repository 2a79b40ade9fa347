//! Where the stacks of jobs are written.

use super::*;

fn named(id: &str) -> Option<RunId> {
    Some(RunId(id.to_owned()))
}

#[test]
fn jobs_share_no_folder_unless_it_is_named_for_them() {
    let root = tempfile::tempdir().unwrap();
    let shared = StackFolder::Shared(root.path().join("shared"));
    let write_of = |folder: &StackFolder, job: &Option<RunId>, world_size| {
        let folder = folder.of_job(&job_folder(job.as_ref()));
        let written = write(&[RankDump::gone(0, world_size)], std::slice::from_ref(&folder));
        assert_eq!(Path::new(&written), folder);
        folder
    };
    let [one, other, unnamed] =
        [named("a"), named("../b"), named(RunId::UNNAMED)].map(|job| write_of(&shared, &job, 1));
    assert_eq!(one, shared.path().join("a"));
    assert_eq!(other, shared.path().join("_._b"));
    assert_eq!(unnamed, shared.path().join(format!("none-{}", process::id())));
    assert_eq!(job_folder(None), job_folder(named(RunId::UNNAMED).as_ref()), "no node has joined yet");
    assert!(one.join("py_stack").exists() && one.join("00000-00001.stacktrace").exists());

    let own = StackFolder::Named(root.path().join("own"));
    assert_eq!(write_of(&own, &named("a"), 2), own.path());
}

#[test]
fn the_first_folder_that_takes_files_is_used() {
    let root = tempfile::tempdir().unwrap();
    let folders = [PathBuf::from("/proc/self/none"), root.path().join("second")];
    assert_eq!(Path::new(&write(&[RankDump::gone(0, 1)], &folders)), folders[1]);
    assert_eq!(write(&[RankDump::gone(0, 1)], &folders[..1]), "");
}
