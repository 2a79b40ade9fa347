//! Slots that come from other nodes.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use checkpoint::{
    header::{HEADER_LEN, Header},
    slots::{Event, FetchId, FetchOrder, Fetched, Sent},
};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{
    persist::{fetch, read_header},
    session::Session,
    slot_file::SlotFile,
    stop::Stop,
    threads::Lane,
    transfer::{Answer, Ask, IDLE, MAX_LINE, line, read_slot},
};

/// How long one address of a node may take to answer.
const CONNECT: Duration = Duration::from_secs(5);

impl Session {
    pub(super) fn fetch_slot(&mut self, order: FetchOrder) {
        let id = order.id;
        let stop = Arc::<Stop>::default();
        self.fetches.insert(id, Arc::clone(&stop));
        let file = self.slots.get(&order.slot).cloned();
        let (run_id, epoch) = (self.run_id.clone(), self.epoch);
        let run = move || {
            let file = file.ok_or("its slot no longer exists")?;
            fetch_from(&order, &run_id, epoch, &file, &stop).map(Box::new)
        };
        self.answer(Lane::Fetch, move |result| Event::FetchEnded { fetch: id, result }, run);
    }

    pub(super) fn cancel_fetch(&self, fetch: FetchId) {
        if let Some(stop) = self.fetches.get(&fetch) {
            stop.set();
        }
    }
}

fn fetch_from(
    order: &FetchOrder,
    run_id: &str,
    epoch: u64,
    file: &SlotFile,
    stop: &Stop,
) -> Result<Fetched, String> {
    let place = format!("{}:{}", order.from.address, order.from.port);
    let from = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("{place} sent nothing for {} s", IDLE.as_secs())
        }
        io::ErrorKind::UnexpectedEof => {
            format!("{place} closed the connection; a save may have taken the slot")
        }
        _ => format!("{place}: {error}"),
    };
    let socket = connect(order, stop).map_err(|error| format!("cannot connect to {place}: {error}"))?;
    let ask = line(&Ask::new(order, run_id));
    stop.or_stopped((&socket).write_all(ask.as_bytes())).map_err(from)?;
    let mut reader = BufReader::with_capacity(256 << 10, &socket);
    let sent = stop
        .or_stopped(answer(&mut reader))
        .map_err(from)?
        .map_err(|refused| format!("{place}: {refused}"))?;
    stop.or_stopped(read_slot(&mut reader, file, stop)).map_err(from)?;
    Ok(Fetched { sent, header: own(file, epoch)? })
}

fn connect(order: &FetchOrder, stop: &Stop) -> io::Result<TcpStream> {
    stop.check()?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name does not resolve to any address");
    for address in (order.from.address.as_str(), order.from.port).to_socket_addrs()? {
        stop.check()?;
        match connect_to(address, stop) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_to(address: SocketAddr, stop: &Stop) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    let socket = TcpStream::from(socket);
    // Before it connects: an address that does not answer would hold a fetch that is given up.
    stop.watch(&socket)?;
    stop.or_stopped(SockRef::from(&socket).connect_timeout(&address.into(), CONNECT))?;
    stop.check()?;
    socket.set_read_timeout(Some(IDLE))?;
    socket.set_write_timeout(Some(IDLE))?;
    Ok(socket)
}

fn answer(reader: &mut BufReader<&TcpStream>) -> io::Result<Result<Sent, String>> {
    let mut first = Vec::new();
    reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut first)?;
    if first.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match serde_json::from_slice(&first) {
        Ok(Answer::Sent(sent)) => Ok(Ok(sent)),
        Ok(Answer::Error(reason)) => Ok(Err(checkpoint::message::cut(&reason))),
        Err(error) => Err(io::Error::other(format!("its answer cannot be read: {error}"))),
    }
}

/// Makes the slot one of this saver: its clients compare the epoch. Returns the header.
fn own(file: &SlotFile, epoch: u64) -> Result<Header, String> {
    let (header, _) = read_header(file)?;
    let meta = fetch(file, header.meta_range())?;
    let header = Header { epoch, ..header };
    let first = header.to_bytes(&meta);
    debug_assert_eq!(first.len(), HEADER_LEN);
    file.write_all_at(&first, 0).map_err(|error| format!("cannot write into the slot: {error}"))?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, thread};

    use checkpoint::{
        message::{Dir, FetchSource, ShardId},
        slots::SlotId,
    };

    use super::*;

    fn order(port: u16) -> FetchOrder {
        FetchOrder {
            id: FetchId(1),
            slot: SlotId(1),
            shard: ShardId { dir: Dir::try_from("/ckpt").unwrap(), shard: 0 },
            step: 1,
            layout_id: 1,
            bytes: 4096,
            from: FetchSource { address: "127.0.0.1".to_owned(), port, ticket: "t".to_owned() },
        }
    }

    /// Whether this host has a connection to the port that is not answered.
    fn is_connecting(port: u16) -> bool {
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let (to, syn_sent) = (format!("0100007F:{port:04X}"), "02");
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(2..4) == Some(&[&*to, syn_sent])
        })
    }

    #[test]
    fn a_cancelled_fetch_does_not_wait_for_a_connection() {
        // Nothing more is accepted once its queue is full, and what connects then has no answer.
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let _queued = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let order = order(port);
        let (file, stop) = (SlotFile::new(order.bytes).unwrap(), Stop::default());
        thread::scope(|scope| {
            let fetch = scope.spawn(|| fetch_from(&order, "run", 1, &file, &stop));
            while !is_connecting(port) {
                assert!(!fetch.is_finished(), "it connects");
                thread::yield_now();
            }
            stop.set();
            assert!(!is_connecting(port), "it connects no more");
            let error = fetch.join().unwrap().unwrap_err();
            assert_eq!(error, format!("cannot connect to 127.0.0.1:{port}: it is no longer needed"));
        });
    }

    #[test]
    fn a_cancelled_fetch_does_not_wait_for_the_other_node() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let order = order(port);
        let (file, stop) = (SlotFile::new(order.bytes).unwrap(), Stop::default());
        thread::scope(|scope| {
            let fetch = scope.spawn(|| fetch_from(&order, "run", 1, &file, &stop));
            let (mut silent, _) = listener.accept().unwrap();
            assert_ne!(silent.read(&mut [0; 100]).unwrap(), 0, "the other node was asked");
            stop.set();
            let error = fetch.join().unwrap().unwrap_err();
            assert_eq!(error, format!("127.0.0.1:{port}: it is no longer needed"));
        });
    }
}
