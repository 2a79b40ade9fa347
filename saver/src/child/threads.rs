//! Work that may block: on disks, file servers, and large memory. Each piece of it has a thread of its own, so that one
//! that hangs holds nothing but the work behind it in its lane.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
};

use checkpoint::message::Dir;
use tokio::sync::mpsc;

use super::input::{Input, Outcome};

/// Enough for files, and for descriptions of states, which are at most so deep.
const STACK_BYTES: usize = 1 << 20;

/// Writes to disk at the same time. More do not make a disk faster.
const WRITES: usize = 2;

/// Checks of files at the same time.
const CHECKS: usize = 2;

/// Slots that are fetched from other nodes at the same time: few are as fast as the network.
const FETCHES: usize = 4;

/// Slots that are sent to other nodes at the same time. No more are begun, so that none waits here while the other node
/// waits for its first byte.
const SENDS: usize = checkpoint::slots::MAX_SENDS;

/// Everything else that is short, at the same time.
const SHORT: usize = 8;

/// The nice value of threads in the background.
const NICE: libc::c_int = 10;

/// Work of the same lane is done in its order, up to a number at the same time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Slots that are written to disk.
    Write,
    /// Files that are read before a load.
    Check,
    /// Documents of one directory, one after the other.
    Folder(Dir),
    /// Memory that is allocated, one after the other: what is left is looked at before.
    Memory,
    /// Slots that other nodes fetch.
    Send,
    /// Slots that are fetched from other nodes.
    Fetch,
    /// Headers that are read.
    Short,
}

impl Lane {
    fn width(&self) -> usize {
        match self {
            Self::Write => WRITES,
            Self::Check => CHECKS,
            Self::Folder(_) | Self::Memory => 1,
            Self::Send => SENDS,
            Self::Fetch => FETCHES,
            Self::Short => SHORT,
        }
    }

    /// Work for which no worker waits, or all do.
    fn is_background(&self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::Fetch)
    }
}

/// What is to be done.
pub(super) struct Work {
    pub(super) run: Box<dyn FnOnce() -> Outcome + Send>,
    /// The outcome when there is no thread for it, or it panicked: why.
    pub(super) failed: Arc<dyn Fn(String) -> Outcome + Send + Sync>,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// The work that runs, and that waits. Lanes without any are not kept.
#[derive(Debug)]
pub(super) struct Threads {
    inputs: mpsc::Sender<Input>,
    lanes: BTreeMap<Lane, Queue>,
    /// Outcomes of work that has no thread.
    failed: VecDeque<Outcome>,
}

#[derive(Debug, Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<Work>,
}

impl Threads {
    pub(super) fn new(inputs: mpsc::Sender<Input>) -> Self {
        Self { inputs, lanes: BTreeMap::new(), failed: VecDeque::new() }
    }

    /// Does the work when it is its turn. Its outcome comes as [`Input::Worked`], after which [`Threads::ended`] is to
    /// be called, or by [`Threads::failed`].
    pub(super) fn push(&mut self, lane: Lane, work: Work) {
        self.lanes.entry(lane.clone()).or_default().waiting.push_back(work);
        self.start(&lane);
    }

    /// Work of this lane has ended: the next one starts.
    pub(super) fn ended(&mut self, lane: &Lane) {
        if let Some(queue) = self.lanes.get_mut(lane) {
            queue.running = queue.running.saturating_sub(1);
        }
        self.start(lane);
    }

    /// What was done at once has this outcome: as with [`Threads::failed`].
    pub(super) fn done(&mut self, outcome: Outcome) {
        self.failed.push_back(outcome);
    }

    /// The next outcome of work that could not be started, or needed no thread.
    pub(super) fn failed(&mut self) -> Option<Outcome> {
        self.failed.pop_front()
    }

    fn start(&mut self, lane: &Lane) {
        let Some(queue) = self.lanes.get_mut(lane) else { return };
        while queue.running < lane.width()
            && let Some(work) = queue.waiting.pop_front()
        {
            let failed = Arc::clone(&work.failed);
            match spawn(lane.clone(), work, self.inputs.clone()) {
                Ok(()) => queue.running += 1,
                Err(error) => self.failed.push_back(failed(format!("cannot start a thread: {error}"))),
            }
        }
        if queue.running == 0 {
            self.lanes.remove(lane);
        }
    }
}

fn spawn(lane: Lane, work: Work, inputs: mpsc::Sender<Input>) -> io::Result<()> {
    let run = move || {
        if lane.is_background() {
            yield_to_training();
        }
        let Work { run, failed } = work;
        let outcome = panic::catch_unwind(AssertUnwindSafe(run));
        let outcome = outcome.unwrap_or_else(|_| failed("the thread panicked".into()));
        // Without a loop the process is ending.
        let _loop_ended = inputs.blocking_send(Input::Worked(lane, outcome));
    };
    thread::Builder::new().name("saver-work".into()).stack_size(STACK_BYTES).spawn(run).map(drop)
}

/// Lets this thread run behind workers, whose every step waits for their threads: copying and checksums of a write to
/// disk take a core for seconds, and nothing waits for them. `SCHED_BATCH` takes away the bonus of a thread that has
/// slept, so that it never preempts a worker when the disk is ready; a nice value of 10 leaves it a tenth of a core
/// that a worker wants. `SCHED_IDLE` would leave it a third of a percent: with data loaders on all cores, no save
/// would end.
fn yield_to_training() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is valid for the call; 0 is this thread.
    let _same_as_before = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) };
    // SAFETY: plain numbers; on Linux 0 is this thread.
    let _same_as_before = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use checkpoint::slots::{Event, Process};
    use tokio::{runtime, time::timeout};

    use super::*;

    fn work(number: u64, run: impl FnOnce() + Send + 'static) -> Work {
        let event = |number| Outcome::from(Event::ProcessDied { process: Process(number) });
        Work {
            run: Box::new(move || {
                run();
                event(number)
            }),
            failed: Arc::new(move |_| event(number + 100)),
        }
    }

    fn number(input: &Input) -> u64 {
        match input {
            Input::Worked(_, Outcome { event: Some(Event::ProcessDied { process }), .. }) => process.0,
            other => panic!("{other:?}"),
        }
    }

    async fn next(inputs: &mut mpsc::Receiver<Input>) -> Input {
        timeout(Duration::from_secs(60), inputs.recv()).await.unwrap().unwrap()
    }

    #[test]
    fn work_that_hangs_holds_only_its_lane_and_a_panic_is_an_outcome() {
        runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
            let (sender, mut inputs) = mpsc::channel(8);
            let mut threads = Threads::new(sender);
            let (release, hangs) = std::sync::mpsc::channel::<()>();
            threads.push(Lane::Memory, work(1, move || assert!(hangs.recv().is_err())));
            threads.push(Lane::Memory, work(2, || {}));
            threads.push(Lane::Write, work(3, || panic!("on purpose")));
            let input = next(&mut inputs).await;
            assert_eq!(number(&input), 103);
            threads.ended(&Lane::Write);
            drop(release);
            for expected in [1, 2] {
                assert_eq!(number(&next(&mut inputs).await), expected);
                threads.ended(&Lane::Memory);
            }
            assert!(threads.lanes.is_empty() && threads.failed().is_none());
        });
    }
}
