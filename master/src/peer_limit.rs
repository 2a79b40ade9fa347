//! Limits the connections of unidentified peers, and chooses which to evict when there are too many: a node identifies
//! itself soon after it connects, so the one that is evicted has been unidentified for longest, and is from the address
//! that has the most of them.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, oneshot};

/// After this time without a valid call a connection may be evicted. A node calls at once.
pub const SILENT_TIMEOUT: Duration = Duration::from_secs(1);

/// An address with no more unidentified connections than this waits for a free slot instead of being refused. Many
/// launchers may share one address, and thousands of nodes may connect at once.
const FAIR_SHARE: usize = 16;

/// The same for a peer that makes calls and has not joined the job. A node may check itself before it joins.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// It has made no valid call.
const SILENT: u8 = 0;
/// It has made a valid call.
const ACTIVE: u8 = 1;
/// It is a node of the job, and no longer counted.
const MEMBER: u8 = 2;
/// It has ended, or was evicted.
const CLOSED: u8 = 3;

/// The number of unidentified connections.
#[derive(Debug, Default)]
struct Unidentified {
    count: AtomicUsize,
    slot_freed: Notify,
}

/// The state of one connection.
#[derive(Debug)]
struct ConnectionState {
    value: AtomicU8,
    all: Arc<Unidentified>,
}

impl ConnectionState {
    /// The state never goes back.
    fn advance(&self, state: u8) {
        let before = self.value.fetch_max(state, Ordering::Relaxed);
        if before < MEMBER && state >= MEMBER {
            self.all.count.fetch_sub(1, Ordering::Relaxed);
            self.all.slot_freed.notify_one();
        }
    }
}

/// Reports the progress of a connection to its [`PeerLimit`].
#[derive(Debug, Clone)]
pub struct PeerHandle(Arc<ConnectionState>);

impl PeerHandle {
    /// The peer has made a valid call.
    pub fn mark_active(&self) {
        self.0.advance(ACTIVE);
    }

    /// The peer is a node of the job, and no longer counted.
    pub fn mark_member(&self) {
        self.0.advance(MEMBER);
    }
}

/// The slot that a connection holds for as long as it lives.
#[derive(Debug)]
pub struct Slot {
    handle: PeerHandle,
    /// Resolves when the connection is evicted.
    pub evicted: Evicted,
}

/// Resolves when a connection is evicted; never once it is a member. May be polled again.
#[derive(Debug)]
pub struct Evicted(Option<oneshot::Receiver<()>>);

impl Future for Evicted {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(receiver) = &mut self.0 else { return Poll::Pending };
        match Pin::new(receiver).poll(cx) {
            Poll::Ready(Ok(())) => {
                self.0 = None;
                Poll::Ready(())
            }
            // It is a member, so its entry is gone. The receiver must not be polled again.
            Poll::Ready(Err(_)) => {
                self.0 = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Slot {
    /// Returns a handle to report progress with.
    #[must_use]
    pub fn handle(&self) -> PeerHandle {
        self.handle.clone()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.handle.0.advance(CLOSED);
    }
}

#[derive(Debug)]
struct Entry {
    ip: IpAddr,
    since: Instant,
    state: Arc<ConnectionState>,
    evict: Option<oneshot::Sender<()>>,
}

impl Entry {
    fn is(&self) -> u8 {
        self.state.value.load(Ordering::Relaxed)
    }
}

/// There is no free slot, and no connection to evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// There may be a slot soon: see [`PeerLimit::slot_freed`].
    Wait,
    /// The newcomer's address has too many of them.
    TooMany,
}

/// All connections of unidentified peers.
#[derive(Debug)]
pub struct PeerLimit {
    max: usize,
    unidentified: Arc<Unidentified>,
    /// The oldest first. Members and closed connections are removed now and then.
    entries: VecDeque<Entry>,
}

impl PeerLimit {
    /// Creates a limit of `max` connections, at least 1.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max: max.max(1), unidentified: Arc::default(), entries: VecDeque::new() }
    }

    /// Waits until a slot was freed since the last wait. Does not borrow the limit.
    pub fn slot_freed(&self) -> impl Future<Output = ()> + Send + 'static {
        let all = Arc::clone(&self.unidentified);
        async move { all.slot_freed.notified().await }
    }

    /// Returns a slot for a connection from `ip`.
    ///
    /// # Errors
    /// There is no slot.
    pub fn admit(&mut self, ip: IpAddr, now: Instant) -> Result<Slot, Full> {
        if self.unidentified.count.load(Ordering::Relaxed) >= self.max {
            self.evict_one(ip, now)?;
        }
        if self.entries.len() >= 2 * self.max {
            self.entries.retain(|entry| entry.is() < MEMBER);
        }
        self.unidentified.count.fetch_add(1, Ordering::Relaxed);
        let state =
            Arc::new(ConnectionState { value: AtomicU8::new(SILENT), all: Arc::clone(&self.unidentified) });
        let (evict, evicted) = oneshot::channel();
        let entry = Entry { ip, since: now, state: Arc::clone(&state), evict: Some(evict) };
        self.entries.push_back(entry);
        Ok(Slot { handle: PeerHandle(state), evicted: Evicted(Some(evicted)) })
    }

    /// Evicts the oldest connection of the address that has the most, silent ones first. A new connection is evicted
    /// only when the newcomer's address has far fewer.
    fn evict_one(&mut self, newcomer: IpAddr, now: Instant) -> Result<(), Full> {
        self.entries.retain(|entry| entry.is() < MEMBER);
        let mut from: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in &self.entries {
            *from.entry(entry.ip).or_default() += 1;
        }
        let from_newcomer = from.get(&newcomer).copied().unwrap_or_default();
        let full = if from_newcomer < FAIR_SHARE { Full::Wait } else { Full::TooMany };
        let (busiest, max) = from.into_iter().max_by_key(|(_, count)| *count).ok_or(full)?;
        let is_unfair = max / 2 > from_newcomer;
        let is_evictable = |entry: &Entry| {
            let timeout = if entry.is() == SILENT { SILENT_TIMEOUT } else { IDLE_TIMEOUT };
            entry.ip == busiest && (is_unfair || now.saturating_duration_since(entry.since) >= timeout)
        };
        let silent = self.entries.iter().position(|entry| entry.is() == SILENT && is_evictable(entry));
        let evicted = silent.or_else(|| self.entries.iter().position(is_evictable)).ok_or(full)?;
        let mut entry = self.entries.remove(evicted).ok_or(full)?;
        entry.state.advance(CLOSED);
        if let Some(evict) = entry.evict.take() {
            // The connection may have ended meanwhile.
            let _gone = evict.send(());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_evicted(slot: &mut Slot) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut slot.evicted).poll(&mut cx).is_ready()
    }

    #[test]
    fn the_connection_that_is_silent_for_longest_is_evicted() {
        let start = Instant::now();
        let mut limit = PeerLimit::new(3);
        let mut slots: Vec<Slot> = (0..3).map(|_| limit.admit(ip(1), start).unwrap()).collect();
        slots[0].handle().mark_active();
        assert_eq!(limit.admit(ip(1), start).unwrap_err(), Full::Wait, "all are new");
        let _fourth = limit.admit(ip(1), start + SILENT_TIMEOUT).unwrap();
        assert_eq!(slots.iter_mut().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
        let _fifth = limit.admit(ip(1), start + SILENT_TIMEOUT).unwrap();
        assert!(is_evicted(&mut slots[2]));
        assert!(limit.admit(ip(1), start + SILENT_TIMEOUT).is_err());
        let _sixth = limit.admit(ip(1), start + IDLE_TIMEOUT).unwrap();
        assert!(!is_evicted(&mut slots[0]), "silent ones are evicted first");
    }

    #[test]
    fn an_address_with_few_connections_evicts_one_of_an_address_with_many() {
        let start = Instant::now();
        let mut limit = PeerLimit::new(4);
        let mut many: Vec<Slot> = (0..4).map(|_| limit.admit(ip(1), start).unwrap()).collect();
        let _one = limit.admit(ip(2), start).unwrap();
        assert!(is_evicted(&mut many[0]));
        assert!(limit.admit(ip(1), start).is_err());
    }

    #[test]
    fn a_member_is_never_evicted() {
        let start = Instant::now();
        let mut limit = PeerLimit::new(1);
        let mut known = limit.admit(ip(1), start).unwrap();
        known.handle().mark_member();
        for _ in 0..3 {
            drop(limit.admit(ip(2), start).unwrap());
        }
        assert!(!is_evicted(&mut known) && !is_evicted(&mut known));
    }

    #[tokio::test]
    async fn an_address_with_few_connections_may_wait_for_a_slot() {
        let start = Instant::now();
        let mut limit = PeerLimit::new(FAIR_SHARE);
        let mut slots: Vec<Slot> = (0..FAIR_SHARE).map(|_| limit.admit(ip(1), start).unwrap()).collect();
        assert_eq!(limit.admit(ip(1), start).unwrap_err(), Full::TooMany);
        slots.iter().for_each(|slot| slot.handle().mark_active());
        let one = slots.pop().unwrap();
        drop(one);
        limit.slot_freed().await;
        slots.push(limit.admit(ip(1), start).unwrap());
        slots.pop().unwrap().handle().mark_member();
        limit.slot_freed().await;
        assert!(limit.admit(ip(2), start).is_ok());
    }

    #[test]
    fn members_and_closed_connections_hold_no_slot() {
        let start = Instant::now();
        let mut limit = PeerLimit::new(1);
        for _ in 0..10 {
            let known = limit.admit(ip(1), start).unwrap();
            known.handle().mark_member();
            known.handle().mark_active();
            drop(limit.admit(ip(1), start).unwrap());
            drop(known);
        }
        let _one = limit.admit(ip(1), start).unwrap();
        assert!(limit.admit(ip(1), start).is_err());
    }
}
