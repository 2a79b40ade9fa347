//! Those that have connected and are not known yet: how many there may be, and which of them goes when there are too
//! many. A node is known within moments of its connection, so whoever stays unknown longest, and comes from where most
//! of the unknown come from, is the one that can be spared.

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

/// From then on one that has said nothing may have to go for another. A node speaks at once.
pub const SILENT_FOR: Duration = Duration::from_secs(1);

/// An address with no more unknown connections than this may wait for room. Many launchers may share one address, and thousands
/// of nodes may come at once.
const FEW: usize = 16;

/// The same for one that speaks and has no part in the job. A node may check itself before it joins.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// It has said nothing that makes sense.
const SILENT: u8 = 0;
/// It speaks.
const SPEAKS: u8 = 1;
/// It is known: it counts no more.
const KNOWN: u8 = 2;
/// It has ended, or was told to.
const GONE: u8 = 3;

/// How many connections are unknown.
#[derive(Debug, Default)]
struct Unknown {
    count: AtomicUsize,
    fewer: Notify,
}

/// What is known of one connection.
#[derive(Debug)]
struct ConnectionState {
    is: AtomicU8,
    all: Arc<Unknown>,
}

impl ConnectionState {
    /// It only ever grows.
    fn becomes(&self, workers_state: u8) {
        let before = self.is.fetch_max(workers_state, Ordering::Relaxed);
        if before < KNOWN && workers_state >= KNOWN {
            self.all.count.fetch_sub(1, Ordering::Relaxed);
            self.all.fewer.notify_one();
        }
    }
}

/// What others see of a connection in the crowd.
#[derive(Debug, Clone)]
pub struct Face(Arc<ConnectionState>);

impl Face {
    /// It has said something that makes sense.
    pub fn speaks(&self) {
        self.0.becomes(SPEAKS);
    }

    /// It is one of those for whom there is a reserve.
    pub fn is_known(&self) {
        self.0.becomes(KNOWN);
    }
}

/// A connection's place in the crowd, for as long as it lives.
#[derive(Debug)]
pub struct Place {
    face: Face,
    /// Resolves when it must go.
    pub evicted: Evicted,
}

/// Resolves when a connection must go for another; never where that can no more happen. May be polled again.
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
            // It is known, so it is in the crowd no more. A receiver must not be asked again.
            Poll::Ready(Err(_)) => {
                self.0 = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Place {
    /// What others may know it by.
    #[must_use]
    pub fn face(&self) -> Face {
        self.face.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.face.0.becomes(GONE);
    }
}

#[derive(Debug)]
struct Entry {
    ip: IpAddr,
    since: Instant,
    workers_state: Arc<ConnectionState>,
    evict: Option<oneshot::Sender<()>>,
}

impl Entry {
    fn is(&self) -> u8 {
        self.workers_state.is.load(Ordering::Relaxed)
    }
}

/// There is no place, and no connection that can be spared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// There may be one soon: see [`Crowd::fewer`].
    Wait,
    /// The newcomer's address has enough of them already.
    Enough,
}

/// All connections that are not known yet.
#[derive(Debug)]
pub struct Crowd {
    most: usize,
    unknown: Arc<Unknown>,
    /// The oldest first. Those that are known or gone are cleared away now and then.
    entries: VecDeque<Entry>,
}

impl Crowd {
    /// At most so many, at least one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), unknown: Arc::default(), entries: VecDeque::new() }
    }

    /// Ends when there are fewer than there were, or at once if that was so since the last time. Needs no borrow: the
    /// crowd may be asked meanwhile.
    pub fn fewer(&self) -> impl Future<Output = ()> + Send + 'static {
        let all = Arc::clone(&self.unknown);
        async move { all.fewer.notified().await }
    }

    /// A place for a connection from `ip`.
    ///
    /// # Errors
    /// When there is none.
    pub fn admit(&mut self, ip: IpAddr, now: Instant) -> Result<Place, Full> {
        if self.unknown.count.load(Ordering::Relaxed) >= self.most {
            self.make_room(ip, now)?;
        }
        if self.entries.len() >= 2 * self.most {
            self.entries.retain(|entry| entry.is() < KNOWN);
        }
        self.unknown.count.fetch_add(1, Ordering::Relaxed);
        let workers_state =
            Arc::new(ConnectionState { is: AtomicU8::new(SILENT), all: Arc::clone(&self.unknown) });
        let (evict, evicted) = oneshot::channel();
        let entry = Entry { ip, since: now, workers_state: Arc::clone(&workers_state), evict: Some(evict) };
        self.entries.push_back(entry);
        Ok(Place { face: Face(workers_state), evicted: Evicted(Some(evicted)) })
    }

    /// Of the address that most of the unknown come from, whoever is silent, and has been for longest. Not one that
    /// has only just come, unless the newcomer's address has far fewer.
    fn make_room(&mut self, newcomer: IpAddr, now: Instant) -> Result<(), Full> {
        self.entries.retain(|entry| entry.is() < KNOWN);
        let mut from: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in &self.entries {
            *from.entry(entry.ip).or_default() += 1;
        }
        let of_newcomer = from.get(&newcomer).copied().unwrap_or_default();
        let full = if of_newcomer < FEW { Full::Wait } else { Full::Enough };
        let (crowded, most) = from.into_iter().max_by_key(|(_, count)| *count).ok_or(full)?;
        let is_unfair = most / 2 > of_newcomer;
        let may_go = |entry: &Entry| {
            let timeout = if entry.is() == SILENT { SILENT_FOR } else { IDLE_FOR };
            entry.ip == crowded && (is_unfair || now.saturating_duration_since(entry.since) >= timeout)
        };
        let silent = self.entries.iter().position(|entry| entry.is() == SILENT && may_go(entry));
        let goes = silent.or_else(|| self.entries.iter().position(may_go)).ok_or(full)?;
        let mut entry = self.entries.remove(goes).ok_or(full)?;
        entry.workers_state.becomes(GONE);
        if let Some(evict) = entry.evict.take() {
            // Its connection may have ended just now.
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

    fn is_evicted(place: &mut Place) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut place.evicted).poll(&mut cx).is_ready()
    }

    #[test]
    fn whoever_is_silent_for_longest_goes_for_another() {
        let start = Instant::now();
        let mut crowd = Crowd::new(3);
        let mut places: Vec<Place> = (0..3).map(|_| crowd.admit(ip(1), start).unwrap()).collect();
        places[0].face().speaks();
        assert_eq!(crowd.admit(ip(1), start).unwrap_err(), Full::Wait, "they have only just come");
        let _fourth = crowd.admit(ip(1), start + SILENT_FOR).unwrap();
        assert_eq!(places.iter_mut().map(is_evicted).collect::<Vec<_>>(), [false, true, false]);
        let _fifth = crowd.admit(ip(1), start + SILENT_FOR).unwrap();
        assert!(is_evicted(&mut places[2]));
        assert!(crowd.admit(ip(1), start + SILENT_FOR).is_err());
        let _sixth = crowd.admit(ip(1), start + IDLE_FOR).unwrap();
        assert!(!is_evicted(&mut places[0]), "a silent one goes first");
    }

    #[test]
    fn an_address_that_has_few_gets_in_at_once_where_another_has_many() {
        let start = Instant::now();
        let mut crowd = Crowd::new(4);
        let mut many: Vec<Place> = (0..4).map(|_| crowd.admit(ip(1), start).unwrap()).collect();
        let _one = crowd.admit(ip(2), start).unwrap();
        assert!(is_evicted(&mut many[0]));
        assert!(crowd.admit(ip(1), start).is_err());
    }

    #[test]
    fn one_that_is_known_never_has_to_go_however_often_that_is_asked() {
        let start = Instant::now();
        let mut crowd = Crowd::new(1);
        let mut known = crowd.admit(ip(1), start).unwrap();
        known.face().is_known();
        for _ in 0..3 {
            drop(crowd.admit(ip(2), start).unwrap());
        }
        assert!(!is_evicted(&mut known) && !is_evicted(&mut known));
    }

    #[tokio::test]
    async fn one_of_few_from_its_address_may_wait_until_there_are_fewer() {
        let start = Instant::now();
        let mut crowd = Crowd::new(FEW);
        let mut places: Vec<Place> = (0..FEW).map(|_| crowd.admit(ip(1), start).unwrap()).collect();
        assert_eq!(crowd.admit(ip(1), start).unwrap_err(), Full::Enough);
        places.iter().for_each(|place| place.face().speaks());
        let one = places.pop().unwrap();
        drop(one);
        crowd.fewer().await;
        places.push(crowd.admit(ip(1), start).unwrap());
        places.pop().unwrap().face().is_known();
        crowd.fewer().await;
        assert!(crowd.admit(ip(2), start).is_ok());
    }

    #[test]
    fn the_known_and_the_gone_take_no_room() {
        let start = Instant::now();
        let mut crowd = Crowd::new(1);
        for _ in 0..10 {
            let known = crowd.admit(ip(1), start).unwrap();
            known.face().is_known();
            known.face().speaks();
            drop(crowd.admit(ip(1), start).unwrap());
            drop(known);
        }
        let _one = crowd.admit(ip(1), start).unwrap();
        assert!(crowd.admit(ip(1), start).is_err());
    }
}
