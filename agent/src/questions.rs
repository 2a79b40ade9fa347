//! Launchers ask each other whether they are connected to the master. When, and what follows, is decided in
//! `rules::fence`; the wire format is in [`master_proto::question`].

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
    fence::{Answer, Juror, JurorState},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, lookup_host},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

/// Questions that are answered at once; further ones wait.
const MAX_CONCURRENT: usize = 256;

/// Connections that may wait.
const BACKLOG: i32 = 1024;

/// How long a peer may take to send its question and to read the answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connect may take.
const CONNECT: Duration = Duration::from_secs(1);

/// The state of this node from which questions are answered.
#[derive(Debug, Default)]
pub struct QuestionState {
    /// A stream to the master is open. Set by the stream's task, before its first heartbeat and as soon as the stream
    /// is abandoned: the master relies on that.
    is_connected: AtomicBool,
    /// Rounds below this one are over.
    over_below: AtomicU64,
}

impl QuestionState {
    /// Sets whether a stream is open.
    pub fn set_connected(&self, is_connected: bool) {
        self.is_connected.store(is_connected, Ordering::SeqCst);
    }

    /// Sets the rounds that are over.
    pub fn set_juror_state(&self, juror_state: JurorState) {
        self.over_below.store(juror_state.over.map_or(0, |over| u64::from(over.0) + 1), Ordering::SeqCst);
    }

    fn answer(&self, round: Round) -> Answer {
        let below = self.over_below.load(Ordering::SeqCst).checked_sub(1);
        let over = below.map(|over| Round(u32::try_from(over).unwrap_or(u32::MAX)));
        JurorState { over }.answer(self.is_connected.load(Ordering::SeqCst), round)
    }
}

/// Answers questions until it is dropped.
#[derive(Debug)]
pub struct AnswerServer {
    /// The port; 0 if none could be opened: then no questions arrive.
    pub port: u16,
    task: Option<JoinHandle<()>>,
}

impl Drop for AnswerServer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl AnswerServer {
    /// Answers from `state`, at any free port of all addresses.
    ///
    /// # Errors
    /// When no port can be opened.
    pub fn start(of: NodeId, key: Key, question_state: Arc<QuestionState>) -> io::Result<Self> {
        let listener = TcpListener::from_std(
            bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))?,
        )?;
        let port = listener.local_addr()?.port();
        Ok(Self { port, task: Some(tokio::spawn(serve(listener, of, key, question_state))) })
    }

    /// Answers no questions.
    #[must_use]
    pub fn disabled() -> Self {
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

async fn serve(listener: TcpListener, of: NodeId, key: Key, question_state: Arc<QuestionState>) {
    let room = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        // Never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: they are freed when a connection ends.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (of, key, question_state) = (of.clone(), key.clone(), Arc::clone(&question_state));
        open.spawn(async move {
            let _place = place;
            // A peer with an invalid question, or none, is disconnected.
            let _answered = timeout(TIMEOUT, reply(stream, &of, &key, &question_state)).await;
        });
    }
}

async fn reply(
    mut stream: TcpStream,
    of: &NodeId,
    key: &Key,
    question_state: &QuestionState,
) -> io::Result<()> {
    let mut bytes = [0; QUESTION];
    stream.read_exact(&mut bytes).await?;
    if let Some(question) = key.asked(of, &bytes) {
        stream.write_all(&key.answer(&question, question_state.answer(question.round))).await?;
        stream.shutdown().await?;
    }
    Ok(())
}

/// Asks all of them, each with this timeout. Returns the answers of those that were reached.
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

/// Whether all addresses of the host refuse connections to the port.
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

    fn juror(answer_server: &AnswerServer) -> Juror {
        Juror { node: node(), address: "127.0.0.1".into(), port: answer_server.port }
    }

    #[tokio::test]
    async fn answers_follow_the_state() {
        let question_state = Arc::new(QuestionState::default());
        let answer_server = AnswerServer::start(node(), key(), Arc::clone(&question_state)).unwrap();
        let answers = async |round| ask(&key(), Round(round), vec![juror(&answer_server)], LONG).await;
        assert_eq!(answers(0).await, [Answer::Lost]);
        question_state.set_connected(true);
        assert_eq!(answers(0).await, [Answer::Connected]);
        question_state.set_juror_state(JurorState { over: Some(Round(0)) });
        assert_eq!((answers(0).await, answers(1).await), (vec![Answer::MovedOn], vec![Answer::Connected]));
    }

    #[tokio::test]
    async fn a_missing_launcher_or_one_of_another_job_does_not_answer() {
        let answer_server = AnswerServer::start(node(), key(), Arc::default()).unwrap();
        let there = juror(&answer_server);
        let another = Juror { node: NodeId("b".into()), ..there.clone() };
        assert_eq!(ask(&key(), Round(0), vec![another, there.clone()], LONG).await, [Answer::Lost]);
        assert_eq!(ask(&Key::new(None), Round(0), vec![there.clone()], LONG).await, []);
        let (host, port) = (there.address.clone(), there.port);
        assert!(!is_refused(&host, port, LONG).await);
        drop(answer_server);
        // The port is closed when the task has ended, for which there is no event.
        while !is_refused(&host, port, LONG).await {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&key(), Round(0), vec![there], LONG).await, []);
    }

    #[tokio::test]
    async fn silent_connections_block_no_question() {
        let answer_server = AnswerServer::start(node(), key(), Arc::default()).unwrap();
        let mut idle = Vec::new();
        for _ in 0..MAX_CONCURRENT {
            idle.push(TcpStream::connect(("127.0.0.1", answer_server.port)).await.unwrap());
        }
        assert_eq!(ask(&key(), Round(0), vec![juror(&answer_server)], LONG).await, [Answer::Lost]);
    }
}
