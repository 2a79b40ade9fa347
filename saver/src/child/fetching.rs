//! Slots that come from other nodes.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use checkpoint::{
    header::{HEADER_LEN, Header},
    slots::{Event, FetchId, FetchOrder, Fetched, Sent},
};

use super::{
    persist::{fetch, read_header},
    session::Session,
    slot_file::SlotFile,
    threads::Lane,
    transfer::{Answer, Ask, IDLE, MAX_LINE, line, read_slot},
};

/// How long one address of a node may take to answer.
const CONNECT: Duration = Duration::from_secs(5);

impl Session {
    pub(super) fn fetch_slot(&mut self, order: FetchOrder) {
        let id = order.id;
        let is_cancelled = Arc::new(AtomicBool::new(false));
        self.fetches.insert(id, Arc::clone(&is_cancelled));
        let file = self.slots.get(&order.slot).cloned();
        let (run_id, epoch) = (self.run_id.clone(), self.epoch);
        let run = move || {
            if is_cancelled.load(Ordering::SeqCst) {
                return Err("it is no longer needed".to_owned());
            }
            let file = file.ok_or("its slot is no longer there")?;
            fetch_from(&order, &run_id, epoch, &file, &is_cancelled).map(Box::new)
        };
        self.answer(Lane::Fetch, move |result| Event::FetchEnded { fetch: id, result }, run);
    }

    pub(super) fn cancel_fetch(&self, fetch: FetchId) {
        if let Some(is_cancelled) = self.fetches.get(&fetch) {
            is_cancelled.store(true, Ordering::SeqCst);
        }
    }
}

fn fetch_from(
    order: &FetchOrder,
    run_id: &str,
    epoch: u64,
    file: &SlotFile,
    is_cancelled: &AtomicBool,
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
    let socket = connect(order).map_err(|error| format!("cannot connect to {place}: {error}"))?;
    let ask = line(&Ask::new(order, run_id));
    (&socket).write_all(ask.as_bytes()).map_err(from)?;
    let mut reader = BufReader::with_capacity(256 << 10, &socket);
    let sent = answer(&mut reader).map_err(from)?.map_err(|refused| format!("{place}: {refused}"))?;
    read_slot(&mut reader, file, is_cancelled).map_err(from)?;
    Ok(Fetched { sent, header: own(file, epoch)? })
}

fn connect(order: &FetchOrder) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name does not resolve to any address");
    for address in (order.from.address.as_str(), order.from.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(socket) => {
                socket.set_read_timeout(Some(IDLE))?;
                socket.set_write_timeout(Some(IDLE))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
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
