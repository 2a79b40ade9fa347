//! The sky between hosts: every packet that one sends another passes through this process, which may lose it, keep it
//! for a while, or drop it for its size, one way or both. The kernel's own means for this (`tc ... netem`) is missing
//! in many kernels; a TUN device in each host's namespace is not.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{fs::OpenOptionsExt as _, net::UnixStream},
    },
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dlrover_sim::prng::Prng;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, setns},
};

/// The interface by which a host sees the others.
pub(super) const INTERFACE: &str = "weather";

/// What happens to packets that go one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weather {
    /// Nothing gets through.
    pub(super) is_cut: bool,
    /// So many of a thousand are lost.
    pub(super) lost: u32,
    /// So long they take, and up to so much longer.
    pub(super) delay: (Duration, Duration),
    /// Larger packets are lost silently.
    pub(super) most_bytes: Option<usize>,
}

impl Weather {
    /// Both at once.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            is_cut: self.is_cut || other.is_cut,
            lost: self.lost.max(other.lost),
            delay: self.delay.max(other.delay),
            most_bytes: match (self.most_bytes, other.most_bytes) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
        }
    }
}

/// From a host to another.
pub(super) type Way = (usize, usize);

/// Where the weather is not clear, and how many packets it has taken.
#[derive(Debug, Default)]
struct Network {
    ways: BTreeMap<Way, Weather>,
    taken: u64,
}

/// Hosts' packets on their way. Dropped, it ends, and the hosts' interfaces with it.
#[derive(Debug)]
pub(super) struct Relay {
    network: Arc<Mutex<Network>>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Between the hosts with the namespaces that these processes hold.
    pub(super) fn between(holders: &[u32], seed: u64) -> Result<Self, String> {
        let open = |holder: &u32| open_tun(*holder).map_err(|error| format!("no TUN device: {error}"));
        let hosts: Vec<File> = holders.iter().map(open).collect::<Result<_, _>>()?;
        let (stop, stopped) = UnixStream::pair().map_err(|error| error.to_string())?;
        let network = Arc::<Mutex<Network>>::default();
        let mut carrier = Carrier {
            network: Arc::clone(&network),
            hosts,
            prng: Prng::new(seed),
            under_way: BinaryHeap::new(),
            carried: 0,
        };
        let thread = thread::Builder::new().name("relay".into()).spawn(move || carrier.run(&stopped));
        Ok(Self { network, stop: Some(stop), thread: Some(thread.map_err(|error| error.to_string())?) })
    }

    /// From now on the weather is like this, and clear where nothing is said.
    pub(super) fn set(&self, ways: BTreeMap<Way, Weather>) {
        self.network.lock().expect("the relay does not panic").ways = ways;
    }

    /// How many packets did not come because of the weather.
    pub(super) fn taken(&self) -> u64 {
        self.network.lock().expect("the relay does not panic").taken
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the relay failed");
        }
    }
}

/// The address of a host behind the relay.
pub(super) fn address(host: usize) -> String {
    format!("10.80.0.{}", host + 1)
}

/// A packet in flight: when it arrives, its number, its destination.
type UnderWay = Reverse<(Instant, u64, usize, Vec<u8>)>;

struct Carrier {
    network: Arc<Mutex<Network>>,
    hosts: Vec<File>,
    prng: Prng,
    under_way: BinaryHeap<UnderWay>,
    carried: u64,
}

impl Carrier {
    fn run(&mut self, stopped: &UnixStream) {
        let mut packet = vec![0; 65_536];
        loop {
            let next =
                self.under_way.peek().map(|Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
            // A whole number of milliseconds, and rather one too many than none.
            let timeout = next.map_or(PollTimeout::NONE, |next| {
                PollTimeout::try_from(next + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
            let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
            fds.extend(self.hosts.iter().map(|host| PollFd::new(host.as_fd(), PollFlags::POLLIN)));
            if poll(&mut fds, timeout).is_err_and(|error| error != nix::errno::Errno::EINTR) {
                return;
            }
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
            if ready[0] {
                return;
            }
            for host in (0..self.hosts.len()).filter(|host| ready[host + 1]) {
                while let Ok(length) = self.hosts[host].read(&mut packet) {
                    self.take(host, &packet[..length]);
                }
            }
            self.deliver();
        }
    }

    fn take(&mut self, from: usize, packet: &[u8]) {
        // IPv4 to 10.80.0.N; a host sends more than that when its interface comes up.
        let [0x45..=0x4f, ..] = packet else { return };
        let Some(&[10, 80, 0, number]) = packet.get(16..20) else { return };
        let Some(to) = usize::from(number).checked_sub(1).filter(|to| *to < self.hosts.len()) else { return };
        let mut network = self.network.lock().expect("not poisoned");
        let weather = network.ways.get(&(from, to)).copied().unwrap_or_default();
        let is_lost = self.prng.chance(weather.lost);
        if weather.is_cut || is_lost || weather.most_bytes.is_some_and(|most| packet.len() > most) {
            network.taken += 1;
            return;
        }
        drop(network);
        let (delay, more) = weather.delay;
        let more = Duration::from_micros(self.prng.between(0, u64::try_from(more.as_micros()).unwrap_or(0)));
        self.carried += 1;
        self.under_way.push(Reverse((Instant::now() + delay + more, self.carried, to, packet.to_vec())));
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, ..))) = self.under_way.peek()
            && *due <= now
            && let Some(Reverse((_, _, to, packet))) = self.under_way.pop()
        {
            // A host that is being removed takes none, and a full queue loses some, as on any network.
            let _lost = self.hosts[to].write(&packet);
        }
    }
}

/// A TUN device in the network namespace that this process holds. Only its thread enters it.
fn open_tun(holder: u32) -> io::Result<File> {
    let open = move || {
        let namespace = File::open(format!("/proc/{holder}/ns/net"))?;
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        let tun =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: it is plain data, for which zeros are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(INTERFACE.bytes()) {
            *place = byte.cast_signed() as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).expect("they are small");
        // SAFETY: the descriptor is open, and the kernel reads and writes one `ifreq`, which lives.
        if unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(tun)
    };
    thread::spawn(open).join().map_err(|_| io::Error::other("its thread panicked"))?
}
