//! Slots that other nodes fetch. Anything can connect to the port: before it has shown the ticket it gets nothing, and
//! holds one of few places for a few seconds, or until newer connections need it.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{self, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream as StdStream},
    sync::Arc,
    time::Duration,
};

use checkpoint::{
    message::{Endpoint, Level, ShardId},
    slots::{Event, SendId, Sent, SlotId},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    select,
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    input::{Input, Outcome},
    session::Session,
    slot_file::SlotFile,
    stop::Stop,
    threads::{Lane, Work},
    transfer::{Answer, Ask, IDLE, MAX_LINE, VERSION, line, write_slot},
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// How long a node may take to say what it wants.
const ASK: Duration = Duration::from_secs(5);

/// Connections that have not said yet what they want, at most. One more closes the oldest, so that idle ones keep no node
/// waiting: a saver sends its request at once.
const UNKNOWN: usize = 64;

/// Between two attempts while the process has no room for a descriptor.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Listens at any free port of all addresses. Must be called inside the runtime.
///
/// # Errors
/// When the system has no port, or no network.
pub(super) fn listen(ticket: &str, run_id: &str, inputs: &mpsc::Sender<Input>) -> io::Result<Endpoint> {
    let listener = bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))
        .or_else(|_| bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)))?;
    let listener = TcpListener::from_std(listener)?;
    let endpoint = Endpoint { port: listener.local_addr()?.port(), ticket: ticket.to_owned() };
    tokio::spawn(accept(listener, endpoint.ticket.clone(), run_id.to_owned(), inputs.clone()));
    Ok(endpoint)
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn accept(listener: TcpListener, ticket: String, run_id: String, inputs: mpsc::Sender<Input>) {
    let mut unknown = Unknown::default();
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                sleep(NO_ROOM).await;
                let text = format!("cannot accept a connection from another node: {error}; retrying");
                if inputs.send(Input::NotAccepted(text)).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let (ticket, run_id, inputs) = (ticket.clone(), run_id.clone(), inputs.clone());
        let mut replaced = unknown.admit();
        tokio::spawn(async move {
            let asked = select! {
                biased;
                asked = asked(socket, &ticket, &run_id) => asked,
                _ = &mut replaced => Err(format!(
                    "it had not sent a request, and there were {UNKNOWN} newer connections"
                )),
            };
            drop(replaced);
            let input = match asked {
                Ok((socket, ask)) => Input::Asked(socket, Box::new(ask)),
                Err(why) => Input::NotAccepted(format!(
                    "a connection from {} to the port for checkpoints was closed: {why}",
                    peer.ip().to_canonical()
                )),
            };
            let _loop_ended = inputs.send(input).await;
        });
    }
}

/// The places of connections that have not said yet what they want, the oldest first. One that is dropped closes its
/// connection.
#[derive(Default)]
struct Unknown(VecDeque<oneshot::Sender<Infallible>>);

impl Unknown {
    /// A place for one more.
    fn admit(&mut self) -> oneshot::Receiver<Infallible> {
        self.0.retain(|place| !place.is_closed());
        if self.0.len() == UNKNOWN {
            self.0.pop_front();
        }
        let (place, replaced) = oneshot::channel();
        self.0.push_back(place);
        replaced
    }
}

/// What a connection asks for, if it may.
async fn asked(mut socket: TcpStream, ticket: &str, run_id: &str) -> Result<(StdStream, Ask), String> {
    let mut received = Vec::new();
    let read = async {
        while !received.contains(&b'\n') {
            if received.len() > MAX_LINE {
                return Err(format!("its first line has more than {MAX_LINE} bytes"));
            }
            match socket.read_buf(&mut received).await {
                Ok(0) => return Err("it was closed before it sent a request".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    };
    let late = |_| Err(format!("it sent no request within {} s", ASK.as_secs()));
    timeout(ASK, read).await.unwrap_or_else(late)?;
    let first = received.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let ask: Ask = serde_json::from_slice(first).map_err(|_| "it does not speak this protocol".to_owned())?;
    if ask.v != VERSION {
        return Err(format!(
            "it uses protocol version {}, this saver version {VERSION}; install the same release on every node",
            ask.v
        ));
    }
    if !is_same(&ask.ticket, ticket) || ask.run_id != run_id {
        return Err(
            "it does not show this job's run id and this saver's ticket: it belongs to another job, or wants an \
             earlier saver"
                .to_owned()
        );
    }
    let blocking = |socket: TcpStream| -> io::Result<StdStream> {
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(IDLE))?;
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    Ok((blocking(socket).map_err(|error| error.to_string())?, ask))
}

/// Without telling by the time that it takes how many letters fit.
fn is_same(said: &str, ticket: &str) -> bool {
    let differ = said.bytes().zip(ticket.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    said.len() == ticket.len() && differ == 0
}

/// A node that has shown the ticket.
#[derive(Debug)]
pub(super) struct Asker {
    /// Until something is sent.
    socket: Option<StdStream>,
    stop: Arc<Stop>,
}

impl Session {
    pub(super) fn asked(&mut self, socket: StdStream, ask: Ask) -> Event {
        self.sends += 1;
        let send = SendId(self.sends);
        let asker = Asker { socket: Some(socket), stop: Arc::default() };
        self.askers.insert(send, asker);
        let Ask { dir, shard, step, layout_id, bytes, .. } = ask;
        Event::Asked { send, shard: ShardId { dir, shard }, step, layout_id, bytes }
    }

    pub(super) fn send_slot(&mut self, send: SendId, slot: SlotId, sent: Sent) {
        let asker = self.askers.get_mut(&send);
        let socket = asker.and_then(|asker| Some((asker.socket.take()?, Arc::clone(&asker.stop))));
        let file = self.slots.get(&slot).cloned();
        let ended = move || Outcome::from(Event::SendEnded { send });
        let run = move || {
            let Some(((socket, stop), file)) = socket.zip(file) else { return ended() };
            let step = sent.step;
            match send_to(&socket, &file, sent, &stop) {
                Ok(()) => ended(),
                // The slot was needed for a save, which is as it should be.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => ended(),
                Err(error) => {
                    let peer =
                        socket.peer_addr().map_or_else(|_| "a node".to_owned(), |it| it.ip().to_string());
                    let text = format!("sending step {step} to {peer} failed: {error}");
                    Outcome { logs: vec![(Level::Info, text)], ..ended() }
                }
            }
        };
        self.threads.push(Lane::Send, Work { run: Box::new(run), failed: Arc::new(move |_| ended()) });
    }

    pub(super) fn refuse_send(&mut self, send: SendId, reason: String) {
        let Some(socket) = self.askers.remove(&send).and_then(|asker| asker.socket) else { return };
        // A new connection has room for the line, and a node that is gone needs none.
        let _gone = socket.set_nonblocking(true).and_then(|()| {
            let mut socket = &socket;
            socket.write_all(line(&Answer::Error(reason)).as_bytes())
        });
    }

    pub(super) fn cancel_send(&self, send: SendId) {
        if let Some(asker) = self.askers.get(&send) {
            asker.stop.set();
        }
    }
}

fn send_to(mut socket: &StdStream, file: &SlotFile, sent: Sent, stop: &Stop) -> io::Result<()> {
    stop.watch(socket)?;
    let first = line(&Answer::Sent(sent));
    stop.or_stopped(socket.write_all(first.as_bytes()).and_then(|()| write_slot(file, &mut socket, stop)))
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, net::TcpListener, thread};

    use checkpoint::message::{Dir, Format};
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn idle_connections_keep_no_node_waiting() {
        let (inputs, mut received) = mpsc::channel(100);
        let endpoint = listen("ticket", "run", &inputs).unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", endpoint.port));
        let mut idle = Vec::new();
        for _ in 0..2 * UNKNOWN {
            idle.push(connect().await.unwrap());
        }
        let ask = Ask {
            v: VERSION,
            ticket: "ticket".to_owned(),
            run_id: "run".to_owned(),
            dir: Dir::try_from("/ckpt").unwrap(),
            shard: 0,
            step: 1,
            layout_id: 1,
            bytes: 4096,
        };
        let mut node = connect().await.unwrap();
        node.write_all(line(&ask).as_bytes()).await.unwrap();
        let mut closed = Vec::new();
        let asked = loop {
            match received.recv().await.unwrap() {
                Input::NotAccepted(text) => closed.push(text),
                Input::Asked(_, asked) => break asked,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(*asked, ask);
        // The oldest, not one whose time was over.
        let text = "a connection from 127.0.0.1 to the port for checkpoints was closed: it had not sent a \
                    request, and there were 64 newer connections";
        assert!(closed.iter().all(|closed| closed == text) && closed.len() > UNKNOWN, "{closed:?}");
        drop(idle);
    }

    #[test]
    fn a_cancelled_send_does_not_wait_for_the_other_node() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut slow = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        // More than the buffers of two sockets.
        let (file, stop) = (SlotFile::new(64 << 20).unwrap(), Stop::default());
        let sent = Sent { step: 1, saved_in: 0, rank: 0, world: 1, format: Format::Pt, path: String::new() };
        thread::scope(|scope| {
            let send = scope.spawn(|| send_to(&socket, &file, sent, &stop));
            assert_ne!(slow.read(&mut [0; 100]).unwrap(), 0, "sending has begun");
            stop.set();
            assert_eq!(send.join().unwrap().unwrap_err().kind(), io::ErrorKind::Interrupted);
        });
    }
}
