//! Recovers the job of the last master from its journal.

use std::path::Path;

use rules::{Moment, job::Job};

use super::{
    Entry, JournalError, Snapshot,
    folder::Folder,
    frame::{BadHeader, FORMAT, FrameAt, HEADER, Header, RELEASE},
};

/// The state that was recovered.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The number of that master's life, from 1.
    pub(crate) life: u64,
    /// The job and its policy after the last event.
    pub(crate) last: Snapshot,
    /// Bytes of an incomplete commit at the end: not written completely, or truncated or changed since.
    pub(crate) torn_bytes: usize,
}

impl Recovered {
    /// Reads the journal; `None` when there is none.
    ///
    /// # Errors
    /// It cannot be read, it is damaged, or another release wrote it.
    pub(crate) fn read(folder: &Folder) -> Result<Option<Self>, JournalError> {
        let Some(file) = folder.read()? else { return Ok(None) };
        replay(&folder.path(), &file).map(Some)
    }
}

pub(super) fn replay(path: &Path, file: &[u8]) -> Result<Recovered, JournalError> {
    let damaged = |offset, what| JournalError::Damaged { path: path.to_owned(), offset, what };
    let header = Header::from_bytes(file).map_err(|bad| match bad {
        BadHeader::Damaged => damaged(0, "its header is truncated or does not match its checksum"),
        BadHeader::Other { release, format } => JournalError::OtherRelease {
            path: path.to_owned(),
            theirs: release,
            their_format: format,
            ours: RELEASE,
            our_format: FORMAT,
        },
    })?;
    let (mut offset, mut last, mut torn_bytes) = (HEADER, None, 0);
    while offset < file.len() {
        let payload = match header.at(file, offset) {
            FrameAt::Frame(payload) => payload,
            FrameAt::Torn => {
                torn_bytes = file.len() - offset;
                break;
            }
            FrameAt::Damaged => return Err(damaged(offset, "the record there does not match its checksum")),
        };
        let end = payload.end;
        // The checksum is valid, so this was written, perhaps by a build with other records.
        let unknown = |_| damaged(offset, "the record there is unknown to this master");
        match (postcard::from_bytes(&file[payload]).map_err(unknown)?, &mut last) {
            (Entry::Snapshot(snapshot), _) => last = Some(*snapshot),
            (Entry::Events(records), Some(Snapshot { at, job, .. })) => {
                for (moment, event) in records {
                    // The effects were carried out in that life, or the nodes ask for them again.
                    let _done = job.handle(moment, event);
                    *at = moment.max(*at);
                }
            }
            (Entry::Events(_), None) => {
                return Err(damaged(offset, "it does not begin with a snapshot"));
            }
        }
        offset = end;
    }
    // The first frame was durable before the file was renamed.
    let last = last.ok_or_else(|| damaged(HEADER, "its snapshot is incomplete"))?;
    Ok(Recovered { life: header.life, last, torn_bytes })
}

impl Snapshot {
    /// A job without nodes.
    pub(crate) fn new(policy: rules::job::Policy) -> Self {
        Self { at: Moment::START, job: Job::new(policy.clone()), policy }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::{
        super::{Journal, Progress, testing},
        *,
    };

    /// A journal of three commits, and the job after each number of them.
    async fn written(dir: &Path) -> (PathBuf, Vec<Job>) {
        let mut journal =
            Journal::start(Folder::hold(dir).unwrap(), 1, Snapshot::new(testing::policy())).unwrap();
        let mut job = Job::new(testing::policy());
        let mut jobs = vec![job.clone()];
        for node in ["a", "b", "c"] {
            let (at, event) = (Moment::at_secs(jobs.len() as u64), testing::joined(node));
            let _effects = job.handle(at, event.clone());
            let lsn = journal.append(at, vec![event]);
            while !matches!(journal.progress().await, Progress::Durable { lsn: durable, .. } if durable == lsn)
            {
            }
            jobs.push(job.clone());
        }
        (dir.join("journal"), jobs)
    }

    #[tokio::test]
    async fn a_file_that_is_truncated_anywhere_gives_the_last_complete_commit() {
        let dir = tempfile::tempdir().unwrap();
        let (path, jobs) = written(dir.path()).await;
        let whole = fs::read(&path).unwrap();
        assert_eq!(replay(&path, &whole).unwrap().last.job, jobs[3]);
        let mut seen = Vec::new();
        let header = Header::from_bytes(&whole).unwrap();
        let FrameAt::Frame(first) = header.at(&whole, HEADER) else { panic!("the first record is whole") };
        for cut in first.end..whole.len() {
            let recovered = replay(&path, &whole[..cut]).unwrap();
            let commits = jobs.iter().position(|job| *job == recovered.last.job).expect("one of the jobs");
            assert_eq!(recovered.last.at, Moment::at_secs(commits as u64));
            seen.push(commits);
        }
        assert!(seen.is_sorted());
        assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&2)));
        // A file with an incomplete first record was never renamed.
        for cut in 0..first.end {
            assert!(
                matches!(replay(&path, &whole[..cut]), Err(JournalError::Damaged { .. })),
                "cut at {cut}"
            );
        }
    }

    #[tokio::test]
    async fn a_changed_byte_is_refused_with_file_offset_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = written(dir.path()).await;
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            let refused = replay(&path, &changed).expect_err("damage is seen");
            let text = refused.to_string();
            assert!(text.contains("journal is damaged at byte "), "byte {at}: {text}");
            assert!(text.contains("move the file away"), "{text}");
        }
    }

    #[test]
    fn a_folder_without_a_journal_is_a_new_job() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Recovered::read(&Folder::hold(dir.path()).unwrap()).unwrap().is_none());
    }
}
