//! The thread that makes events durable: all that are queued become one commit, with one sync.

use std::{
    fs::File,
    io::Write as _,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use rules::{Moment, job::Event};
use tokio::sync::{mpsc as tokio_mpsc, oneshot};

use super::{Entry, JournalError, Snapshot, crash, folder::Folder, frame::Header};

/// Appended bytes that are always tolerated before the journal is compacted.
const SMALL: usize = 1 << 20;

/// Records in one commit; bounds its memory.
const RECORDS: usize = 16_384;

/// Small: the buffers are on the heap.
const STACK: usize = 256 << 10;

enum Command {
    Append { lsn: u64, at: Moment, events: Vec<Event> },
    Compact(Box<Snapshot>),
    Clear(oneshot::Sender<()>),
}

/// How far the journal has come.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Everything up to this log sequence number is durable.
    Durable {
        /// As [`Journal::append`] gave it.
        lsn: u64,
        /// The file has grown: it is time for [`Journal::compact`].
        is_large: bool,
    },
    /// Writing failed; nothing follows.
    Failed(JournalError),
}

/// The journal of a running master. Dropping it writes what is queued and unlocks the directory.
#[derive(Debug)]
pub(crate) struct Journal {
    /// `None` during the drop.
    commands: Option<mpsc::Sender<Command>>,
    progress: tokio_mpsc::UnboundedReceiver<Progress>,
    thread: Option<JoinHandle<()>>,
    last_lsn: u64,
}

impl Journal {
    /// Starts a new file with `snapshot`, which replaces the old one. Waits for the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn start(folder: Folder, life: u64, snapshot: Snapshot) -> Result<Self, JournalError> {
        let mut writer = Writer { folder, life, file: None, snapshot_bytes: 0, appended_bytes: 0 };
        writer.compact(snapshot)?;
        let (commands, inbox) = mpsc::channel();
        let (sender, progress) = tokio_mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name("journal".into())
            .stack_size(STACK)
            .spawn(move || {
                if let Err(error) = writer.run(&inbox, &sender) {
                    let _gone = sender.send(Progress::Failed(error));
                }
            })
            .map_err(JournalError::Thread)?;
        Ok(Self { commands: Some(commands), progress, thread: Some(thread), last_lsn: 0 })
    }

    /// Queues events. They are durable when [`Self::progress`] returns this log sequence number (LSN) or a later one.
    pub(crate) fn append(&mut self, at: Moment, events: Vec<Event>) -> u64 {
        self.last_lsn += 1;
        self.send(Command::Append { lsn: self.last_lsn, at, events });
        self.last_lsn
    }

    /// Replaces all that was appended by a snapshot.
    pub(crate) fn compact(&self, snapshot: Snapshot) {
        self.send(Command::Compact(Box::new(snapshot)));
    }

    /// Waits for the next step. Cancel-safe.
    pub(crate) async fn progress(&mut self) -> Progress {
        self.progress.recv().await.unwrap_or(Progress::Failed(JournalError::Gone))
    }

    /// Removes the state of a job that is over, and unlocks the directory.
    ///
    /// # Errors
    /// The file cannot be removed; the next master with it finds the job over.
    pub(crate) async fn clear(mut self) -> Result<(), JournalError> {
        let (done, is_done) = oneshot::channel();
        self.send(Command::Clear(done));
        if is_done.await.is_ok() {
            return Ok(());
        }
        loop {
            if let Progress::Failed(error) = self.progress().await {
                return Err(error);
            }
        }
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // A thread that has ended has sent the reason as `progress`.
            let _gone = commands.send(command);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

#[derive(Debug)]
struct Writer {
    folder: Folder,
    life: u64,
    file: Option<(File, Header)>,
    snapshot_bytes: usize,
    appended_bytes: usize,
}

impl Writer {
    fn run(
        mut self,
        inbox: &mpsc::Receiver<Command>,
        sender: &tokio_mpsc::UnboundedSender<Progress>,
    ) -> Result<(), JournalError> {
        let (mut last, mut records) = (0, Vec::new());
        let mut next = inbox.recv().ok();
        while let Some(command) = next {
            let mut other = None;
            match command {
                Command::Append { lsn, at, events } => {
                    last = lsn;
                    records.extend(events.into_iter().map(|event| (at, event)));
                }
                command => other = Some(command),
            }
            next = inbox.try_recv().ok();
            let is_more = matches!(next, Some(Command::Append { .. })) && records.len() < RECORDS;
            if !records.is_empty() && (!is_more || other.is_some()) {
                self.commit(Entry::Events(std::mem::take(&mut records)))?;
            }
            match other {
                None if is_more => continue,
                None => {}
                Some(Command::Compact(snapshot)) => self.compact(*snapshot)?,
                Some(Command::Clear(done)) => {
                    self.folder.clear()?;
                    drop(self);
                    let _gone = done.send(());
                    return Ok(());
                }
                Some(Command::Append { .. }) => {}
            }
            let is_large = self.appended_bytes > self.snapshot_bytes.max(SMALL);
            let _gone = sender.send(Progress::Durable { lsn: last, is_large });
            next = next.or_else(|| inbox.recv().ok());
        }
        Ok(())
    }

    /// One write and one sync, whatever the number of records.
    fn commit(&mut self, entry: Entry) -> Result<(), JournalError> {
        let Some((file, header)) = &mut self.file else { return Err(JournalError::Gone) };
        let write = |error| JournalError::Write { path: self.folder.path(), error };
        let frame = framed(*header, &entry)?;
        crash::point("before-write");
        let (first, second) = frame.split_at(frame.len() / 2);
        if crash::is_near("mid-write") {
            file.write_all(first).map_err(write)?;
            crash::point("mid-write");
            file.write_all(second).map_err(write)?;
        } else {
            file.write_all(&frame).map_err(write)?;
        }
        crash::point("after-write");
        file.sync_data().map_err(write)?;
        crash::point("after-sync");
        self.appended_bytes += frame.len();
        Ok(())
    }

    fn compact(&mut self, snapshot: Snapshot) -> Result<(), JournalError> {
        let header = Header::new(self.life);
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(framed(header, &Entry::Snapshot(Box::new(snapshot)))?);
        let file = self.folder.replace(&bytes)?;
        self.file = Some((file, header));
        (self.snapshot_bytes, self.appended_bytes) = (bytes.len(), 0);
        Ok(())
    }
}

fn framed(header: Header, entry: &Entry) -> Result<Vec<u8>, JournalError> {
    let payload = postcard::to_stdvec(entry).map_err(JournalError::Encode)?;
    header.frame(&payload).ok_or(JournalError::Encode(postcard::Error::SerializeBufferFull))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{recovery::Recovered, testing},
        *,
    };

    async fn until(journal: &mut Journal, wanted: u64) -> bool {
        loop {
            match journal.progress().await {
                Progress::Durable { lsn, is_large } if lsn >= wanted => return is_large,
                Progress::Durable { .. } => {}
                Progress::Failed(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn a_large_journal_is_small_again_once_compacted() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = Snapshot::new(testing::policy());
        let mut job = snapshot.job.clone();
        let mut journal = Journal::start(Folder::hold(dir.path()).unwrap(), 3, snapshot).unwrap();
        let mut is_large = false;
        for number in 0..100_000_u64 {
            let (at, event) = (Moment::at_millis(number), testing::failed("a", 1000));
            let _effects = job.handle(at, event.clone());
            let lsn = journal.append(at, vec![event]);
            is_large = number % 100 == 99 && until(&mut journal, lsn).await;
            if is_large {
                journal.compact(Snapshot { at, policy: testing::policy(), job: job.clone() });
                break;
            }
        }
        assert!(is_large);
        let lsn = journal.append(Moment::at_secs(900), vec![testing::joined("b")]);
        assert!(!until(&mut journal, lsn).await);
        drop(journal);
        let _effects = job.handle(Moment::at_secs(900), testing::joined("b"));
        let recovered = Recovered::read(&Folder::hold(dir.path()).unwrap()).unwrap().unwrap();
        assert_eq!((recovered.life, recovered.torn_bytes), (3, 0));
        assert_eq!((recovered.last.at, recovered.last.job), (Moment::at_secs(900), job));
    }

    #[tokio::test]
    async fn the_state_of_a_job_that_is_over_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = Snapshot::new(testing::policy());
        let mut journal = Journal::start(Folder::hold(dir.path()).unwrap(), 1, snapshot).unwrap();
        journal.append(Moment::START, vec![testing::joined("b")]);
        journal.clear().await.unwrap();
        let folder = Folder::hold(dir.path()).expect("the directory is free");
        assert!(Recovered::read(&folder).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::hold(dir.path()).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let file = Some((full, Header::new(1)));
        let mut writer = Writer { folder, life: 1, file, snapshot_bytes: 0, appended_bytes: 0 };
        let refused = writer.commit(Entry::Events(vec![(Moment::START, testing::joined("a"))])).unwrap_err();
        let text = refused.to_string();
        assert!(text.starts_with("cannot write the journal") && text.contains("disk space"), "{text}");
    }
}
