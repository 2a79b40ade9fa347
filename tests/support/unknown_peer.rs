//! An unknown peer on the network, which speaks the master's protocol and is not a node of the job.

use std::net::SocketAddr;

use master_proto::{
    PROTOCOL_VERSION,
    pb::{self, end_report::End, master_client::MasterClient},
    trust::{NodeSecret, Token},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tonic::{
    Request, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::TIMEOUT;

/// A connection to a job's master.
#[derive(Debug)]
pub struct UnknownPeer {
    runtime: Runtime,
    client: MasterClient<Channel>,
    /// Unknown peers that have the job's token.
    token: Option<Token>,
    secret: NodeSecret,
}

/// The stream of a node that the peer has made up, or impersonates.
#[derive(Debug)]
pub struct Session {
    pushes: Streaming<pb::StreamMessage>,
}

impl UnknownPeer {
    /// Connects to the master at `host:port`.
    ///
    /// # Panics
    /// There is no listener.
    #[must_use]
    pub fn at(address: &str) -> Self {
        Self::with_token(address, None)
    }

    /// The same for a peer that has the job's token.
    ///
    /// # Panics
    /// There is no listener, or the token is invalid.
    #[must_use]
    pub fn with_token(address: &str, token: Option<&str>) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let address = address.replace("0.0.0.0", "127.0.0.1");
        let address: SocketAddr = address.parse().expect("host:port");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let client = crate::wait_for("a connection to the master", || {
            runtime.block_on(endpoint.connect()).ok().map(MasterClient::new)
        });
        let token = token.map(|token| Token::new(token).expect("a token"));
        let made_up = NodeSecret::new(&format!("a stranger {}", std::process::id()));
        Self { runtime, client, token, secret: made_up }
    }

    /// Becomes another made-up node.
    pub fn become_another(&mut self, number: u32) {
        let made_up = format!("stranger {number} of {}", std::process::id());
        self.secret = NodeSecret::new(&made_up);
    }

    /// The made-up node.
    #[must_use]
    pub fn own_id(&self) -> String {
        self.secret.node_id().0
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            token.put_on(&mut request);
        }
        self.secret.put_on(&mut request);
        request
    }

    /// The members, as the master shows them to any peer.
    ///
    /// # Panics
    /// The master does not answer.
    #[must_use]
    pub fn world(&mut self) -> pb::WorldTable {
        let request = self.request(pb::ShowWorldRequest {});
        let shown = self.runtime.block_on(async { timeout(TIMEOUT, self.client.show_world(request)).await });
        shown.expect("an answer").expect("the world").into_inner()
    }

    /// Reports the end of a node.
    ///
    /// # Errors
    /// The master rejects it.
    ///
    /// # Panics
    /// The master does not answer.
    pub fn say_end(&mut self, node_id: &str, end: End) -> Result<(), Status> {
        let request = self.request(pb::EndReport { node_id: node_id.to_owned(), end: Some(end) });
        let output = self.runtime.block_on(async { timeout(TIMEOUT, self.client.report_end(request)).await });
        output.expect("an answer").map(drop)
    }

    /// Reports that workers of a node failed.
    ///
    /// # Errors
    /// The master rejects it.
    ///
    /// # Panics
    /// The master does not answer.
    pub fn say_failure(&mut self, node_id: &str, round: u32, gives_up: bool) -> Result<(), Status> {
        let reason = "of an unknown peer".to_owned();
        let request = self.request(pb::FailureReport {
            node_id: node_id.to_owned(),
            round,
            reason,
            gives_up,
            has_detail: false,
            age_micros: 0,
        });
        let output =
            self.runtime.block_on(async { timeout(TIMEOUT, self.client.report_failure(request)).await });
        output.expect("an answer").map(drop)
    }

    /// Opens the stream of a node.
    ///
    /// # Errors
    /// The master rejects it.
    ///
    /// # Panics
    /// The master does not answer.
    pub fn subscribe(&mut self, node_id: &str) -> Result<Session, Status> {
        let request =
            pb::SubscribeRequest { protocol_version: PROTOCOL_VERSION, node_id: node_id.to_owned() };
        let request = self.request(request);
        let subscribed =
            self.runtime.block_on(async { timeout(TIMEOUT, self.client.subscribe(request)).await });
        Ok(Session { pushes: subscribed.expect("an answer")?.into_inner() })
    }

    /// Asks to take part.
    ///
    /// # Errors
    /// The master rejects it.
    ///
    /// # Panics
    /// The master does not answer.
    pub fn join(&mut self, request: pb::JoinRequest) -> Result<(), Status> {
        let request = self.request(request);
        let output = self.runtime.block_on(async { timeout(TIMEOUT, self.client.join(request)).await });
        output.expect("an answer").map(drop)
    }

    /// Resumes.
    ///
    /// # Errors
    /// The master rejects it.
    ///
    /// # Panics
    /// The master does not answer.
    pub fn resume(&mut self, request: pb::ResumeRequest) -> Result<(), Status> {
        let request = self.request(request);
        let output = self.runtime.block_on(async { timeout(TIMEOUT, self.client.resume(request)).await });
        output.expect("an answer").map(drop)
    }

    /// Waits for a message for which `wanted` returns a value.
    ///
    /// # Panics
    /// None comes, or the stream ends.
    pub fn receives<T>(
        &mut self,
        at: &mut Session,
        wanted: impl Fn(pb::stream_message::Payload) -> Option<T>,
    ) -> T {
        self.runtime.block_on(async {
            loop {
                let push = timeout(TIMEOUT, at.pushes.message()).await.expect("a word in time");
                let push = push.expect("the stream is open").expect("the stream continues").payload;
                if let Some(wanted) = push.and_then(&wanted) {
                    return wanted;
                }
            }
        })
    }

    /// The join request of a launcher of the tests' clusters, for the made-up node.
    #[must_use]
    pub fn join_request(&self, run_id: &str, min_nodes: u32, max_nodes: u32) -> pb::JoinRequest {
        pb::JoinRequest {
            node_id: self.own_id(),
            local_world_size: 1,
            role: "default".to_owned(),
            address: Some("127.0.0.200".to_owned()),
            terms: Some(pb::Terms {
                run_id: run_id.to_owned(),
                min_nodes,
                max_nodes,
                node_unit: 1,
                last_call_millis: 3000,
                join_timeout_millis: 600_000,
                require_uniform: false,
                save_at_breakpoint: false,
                check: None,
                // Those of the launchers' options.
                hang: Some(pb::HangTerms {
                    timeout_millis: 300_000,
                    grace_millis: 1_800_000,
                    on_hang: pb::OnHang::Dump.into(),
                    ..pb::HangTerms::default()
                }),
            }),
            attributes: Some(pb::NodeAttributes { host_name: "stranger".to_owned(), ..Default::default() }),
            ..Default::default()
        }
    }
}
