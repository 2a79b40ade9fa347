//! Launchers ask each other whether they hear the master. When that is asked, and what follows, is `rules::fence`'s.
//!
//! What is on the wire is [`master_proto::question`]'s.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use master_proto::question::{ANSWER, Key, NONCE, QUESTION, Question};
use rules::{
    NodeId, Round,
    fence::{Answer, Juror, Standpoint},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, lookup_host},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

/// Questions that are answered at once; further ones wait for their turn.
const AT_ONCE: usize = 256;

/// Connections that may wait.
const BACKLOG: i32 = 1024;

/// How long somebody who connected may take to ask, and to take the answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may take to be accepted.
const CONNECT: Duration = Duration::from_secs(1);

/// Where this node stands, for whoever asks.
#[derive(Debug, Default)]
pub struct Desk {
    /// A stream to the master is open. Written by the task that has the stream, before its first beat and at once when it
    /// gives it up: the master reckons with that.
    hears: AtomicBool,
    /// Rounds below this one are over.
    over_below: AtomicU64,
}

impl Desk {
    /// Whether a stream is open from now on.
    pub fn set_hears(&self, hears: bool) {
        self.hears.store(hears, Ordering::SeqCst);
    }

    /// Where the node stands from now on.
    pub fn set_standpoint(&self, standpoint: Standpoint) {
        self.over_below.store(standpoint.over.map_or(0, |over| u64::from(over.0) + 1), Ordering::SeqCst);
    }

    fn answer(&self, round: Round) -> Answer {
        let below = self.over_below.load(Ordering::SeqCst).checked_sub(1);
        let over = below.map(|over| Round(u32::try_from(over).unwrap_or(u32::MAX)));
        Standpoint { over }.answer(self.hears.load(Ordering::SeqCst), round)
    }
}

/// Answers questions, for as long as it is kept.
#[derive(Debug)]
pub struct Answering {
    /// Where; 0 when no port could be opened: then nobody asks here.
    pub port: u16,
    task: Option<JoinHandle<()>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Answering {
    /// Answers from the desk, at any free port of all addresses.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn start(of: NodeId, key: Key, desk: Arc<Desk>) -> io::Result<Self> {
        let listener = TcpListener::from_std(
            bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))?,
        )?;
        let port = listener.local_addr()?.port();
        Ok(Self { port, task: Some(tokio::spawn(serve(listener, of, key, desk))) })
    }

    /// Answers nobody.
    #[must_use]
    pub fn nowhere() -> Self {
        Self { port: 0, task: None }
    }
}

fn bind(address: IpAddr) -> io::Result<std::net::TcpListener> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn serve(listener: TcpListener, of: NodeId, key: Key, desk: Arc<Desk>) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        // Never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: they come back when a connection ends.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (of, key, desk) = (of.clone(), key.clone(), Arc::clone(&desk));
        open.spawn(async move {
            let _place = place;
            // Who asks nonsense, or nothing, is hung up on.
            let _answered = timeout(TIMEOUT, reply(stream, &of, &key, &desk)).await;
        });
    }
}

async fn reply(mut stream: TcpStream, of: &NodeId, key: &Key, desk: &Desk) -> io::Result<()> {
    let mut bytes = [0; QUESTION];
    stream.read_exact(&mut bytes).await?;
    if let Some(question) = key.asked(of, &bytes) {
        stream.write_all(&key.answer(&question, desk.answer(question.round))).await?;
        stream.shutdown().await?;
    }
    Ok(())
}

/// Asks all of them, each for no longer than `patience`. Gives what those said that were reached.
pub async fn ask(key: &Key, round: Round, jury: Vec<Juror>, timeout: Duration) -> Vec<Answer> {
    let mut asked = JoinSet::new();
    for juror in jury {
        let key = key.clone();
        asked.spawn(
            async move { tokio::time::timeout(timeout, ask_one(&key, round, juror)).await.ok()?.ok()? },
        );
    }
    asked.join_all().await.into_iter().flatten().collect()
}

async fn ask_one(key: &Key, round: Round, juror: Juror) -> io::Result<Option<Answer>> {
    let nonce: [u8; NONCE] = *uuid::Uuid::new_v4().as_bytes();
    let question = Question { of: juror.node, round, nonce };
    let connected =
        tokio::time::timeout(CONNECT, TcpStream::connect((juror.address.as_str(), juror.port))).await;
    let mut stream = connected.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.write_all(&key.ask(&question)).await?;
    let mut bytes = [0; ANSWER];
    stream.read_exact(&mut bytes).await?;
    Ok(key.answered(&question, &bytes))
}

/// Whether the kernel of every host that the name stands for says that nobody listens there.
pub async fn is_refused(host: &str, port: u16, timeout: Duration) -> bool {
    let asked = async {
        let Ok(found) = lookup_host((host, port)).await else { return false };
        let mut is_any = false;
        for address in found {
            match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => is_any = true,
                _ => return false,
            }
        }
        is_any
    };
    tokio::time::timeout(timeout, asked).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use master_proto::trust::Token;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn key() -> Key {
        Key::new(Some(&Token::new("s3cret").unwrap()))
    }

    fn node() -> NodeId {
        NodeId("a".into())
    }

    fn juror(answering: &Answering) -> Juror {
        Juror { node: node(), address: "127.0.0.1".into(), port: answering.port }
    }

    #[tokio::test]
    async fn it_says_what_the_desk_knows() {
        let desk = Arc::new(Desk::default());
        let answering = Answering::start(node(), key(), Arc::clone(&desk)).unwrap();
        let said = async |round| ask(&key(), Round(round), vec![juror(&answering)], LONG).await;
        assert_eq!(said(0).await, [Answer::Lost]);
        desk.set_hears(true);
        assert_eq!(said(0).await, [Answer::Hears]);
        desk.set_standpoint(Standpoint { over: Some(Round(0)) });
        assert_eq!((said(0).await, said(1).await), (vec![Answer::MovedOn], vec![Answer::Hears]));
    }

    #[tokio::test]
    async fn who_is_not_there_or_of_another_job_says_nothing() {
        let answering = Answering::start(node(), key(), Arc::default()).unwrap();
        let there = juror(&answering);
        let another = Juror { node: NodeId("b".into()), ..there.clone() };
        assert_eq!(ask(&key(), Round(0), vec![another, there.clone()], LONG).await, [Answer::Lost]);
        assert_eq!(ask(&Key::new(None), Round(0), vec![there.clone()], LONG).await, []);
        let (host, port) = (there.address.clone(), there.port);
        assert!(!is_refused(&host, port, LONG).await);
        drop(answering);
        // The port is closed when the task has ended, which nobody tells.
        while !is_refused(&host, port, LONG).await {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&key(), Round(0), vec![there], LONG).await, []);
    }

    #[tokio::test]
    async fn strangers_that_say_nothing_hold_up_nobody() {
        let answering = Answering::start(node(), key(), Arc::default()).unwrap();
        let mut idle = Vec::new();
        for _ in 0..AT_ONCE {
            idle.push(TcpStream::connect(("127.0.0.1", answering.port)).await.unwrap());
        }
        assert_eq!(ask(&key(), Round(0), vec![juror(&answering)], LONG).await, [Answer::Lost]);
    }
}
