//! The journal's bytes, so that they can be cut anywhere: length, checksum, record.

use rules::{
    Moment,
    job::{Event, Job, Policy},
};

const HEAD: usize = 8;

/// The durable part: the last snapshot, and the records after it.
#[derive(Debug, Clone)]
pub struct Journal {
    policy: Policy,
    snapshot: Option<Vec<u8>>,
    /// The moment of the last record that the snapshot contains.
    snapshot_at: Moment,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// The contents for a restarted master.
#[derive(Debug)]
pub struct Recovered {
    /// The job after all whole records.
    pub job: Job,
    /// The moment of the last of them.
    pub last: Moment,
    /// How many there are since the snapshot.
    pub records: usize,
}

impl Journal {
    /// Nothing was written yet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, snapshot: None, snapshot_at: Moment::START, bytes: Vec::new(), ends: Vec::new() }
    }

    /// One more record.
    pub fn append(&mut self, at: Moment, event: &Event) {
        self.bytes.extend(framed(at, event));
        self.ends.push(self.bytes.len());
    }

    /// The first bytes of a record whose writing was cut short.
    pub fn append_torn(&mut self, at: Moment, event: &Event, bytes: usize) {
        let record = framed(at, event);
        self.bytes.extend(&record[..bytes % record.len()]);
    }

    /// Drops the records; the snapshot replaces them.
    pub fn compact(&mut self, job: &Job, at: Moment) {
        self.snapshot = Some(postcard::to_stdvec(job).expect("a job can be written"));
        self.snapshot_at = at;
        self.bytes.clear();
        self.ends.clear();
    }

    /// Where each record ends.
    #[must_use]
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// The same journal, cut after so many bytes.
    #[must_use]
    pub fn cut(&self, bytes: usize) -> Self {
        let mut cut = self.clone();
        cut.bytes.truncate(bytes);
        cut
    }

    /// The job by the whole records. Whatever follows the last of them is cut off.
    pub fn recover(&mut self) -> Recovered {
        let mut job = match &self.snapshot {
            Some(bytes) => postcard::from_bytes(bytes).expect("a snapshot can be read"),
            None => Job::new(self.policy.clone()),
        };
        let (mut last, mut at) = (self.snapshot_at, 0);
        self.ends.clear();
        while let Some((moment, event, length)) = unframed(&self.bytes[at..]) {
            // The effects were carried out then, or are requested again.
            let _done = job.handle(moment, event);
            (last, at) = (moment, at + length);
            self.ends.push(at);
        }
        self.bytes.truncate(at);
        Recovered { job, last, records: self.ends.len() }
    }
}

fn framed(at: Moment, event: &Event) -> Vec<u8> {
    let body = postcard::to_stdvec(&(at, event)).expect("a record can be written");
    let length = u32::try_from(body.len()).expect("a record is small");
    let mut record = Vec::with_capacity(HEAD + body.len());
    record.extend(length.to_le_bytes());
    record.extend(checksum(&body).to_le_bytes());
    record.extend(body);
    record
}

fn unframed(bytes: &[u8]) -> Option<(Moment, Event, usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (length, sum) = head.split_at_checked(4)?;
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    let body = rest.get(..length)?;
    if u32::from_le_bytes(sum.try_into().ok()?) != checksum(body) {
        return None;
    }
    let (at, event) = postcard::from_bytes(body).ok()?;
    Some((at, event, HEAD + length))
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811C_9DC5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
