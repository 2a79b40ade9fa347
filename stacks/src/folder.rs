//! The directory for the stacks of a job.

use std::path::{Path, PathBuf};

/// A directory for stacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StackFolder {
    /// It was named for this job, whose stacks are in it.
    Named(PathBuf),
    /// One for all jobs: the stacks of each are in a directory of its own below it.
    Shared(PathBuf),
}

impl StackFolder {
    /// Where the stacks of a job are. `job` is a file name.
    #[must_use]
    pub fn of_job(&self, job: &str) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Shared(path) => path.join(job),
        }
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Shared(path) => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_jobs_in_a_shared_folder_have_one_of_their_own() {
        let path = PathBuf::from("/root/timeline");
        assert_eq!(StackFolder::Named(path.clone()).of_job("llm-7b"), path);
        assert_eq!(StackFolder::Shared(path).of_job("llm-7b"), Path::new("/root/timeline/llm-7b"));
    }
}
