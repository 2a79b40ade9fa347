//! The master's web server (`--http`): `/metrics`, `/healthz`, `/status.json`, `/status-stream` and a page.
//!
//! It reads the status and changes nothing. Where the job has a token, all but `/healthz` require it: as
//! `Authorization: Bearer TOKEN`, or as the password of HTTP's basic authentication, for which browsers ask.

mod gpu_metrics;
mod label;
mod metrics;
mod mpi_operator;

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener, ToSocketAddrs as _},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{
            ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
            WWW_AUTHENTICATE,
        },
    },
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use master_proto::trust::Token;
use rules::job_status::JobStatus;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

pub use self::mpi_operator::MpiOperatorLabels;
use crate::status_feed::{ANSWER, StatusFeed};

/// The page. It loads nothing from elsewhere.
const PAGE: &str = include_str!("http/page.html");

/// What the page may do: its own script and style, and requests to where it came from.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Why the web server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not an address and a port.
    #[error(
        "--http {given}: expected ADDRESS:PORT, such as 127.0.0.1:9090 or [::]:9090, or a port alone, which is \
             served on 127.0.0.1"
    )]
    Address { given: String },
    /// The port is in use or reserved, or the address does not belong to this host.
    #[error("cannot listen on --http {given}: {error}; {}", remedy(error))]
    Listen { given: String, error: io::Error },
}

/// What to do: another port helps where this one is taken or reserved, and not where the address is wrong.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "free it, or choose another port",
        io::ErrorKind::PermissionDenied => {
            "choose another port: those below 1024 are reserved for root by default"
        }
        _ => "--http takes an address of this host, such as 127.0.0.1:9090 or [::]:9090",
    }
}

/// Opens the socket of `--http`: `ADDRESS:PORT`, or a port alone, which is served on `127.0.0.1`.
///
/// # Errors
/// It is no address, or the port cannot be opened.
pub fn open_http(given: &str) -> Result<StdListener, HttpError> {
    let text = given.trim();
    let is_port = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let full = if is_port { format!("127.0.0.1:{text}") } else { text.to_owned() };
    let has_host =
        full.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_host {
        return Err(HttpError::Address { given: given.to_owned() });
    }
    let listen = || -> io::Result<StdListener> {
        let addresses: Vec<SocketAddr> = full.to_socket_addrs()?.collect();
        let listener = StdListener::bind(&*addresses)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|error| HttpError::Listen { given: given.to_owned(), error })
}

/// The web server, which is not yet served.
#[derive(Debug)]
pub struct Web {
    /// From [`open_http`].
    pub socket: StdListener,
    /// Required for all but `/healthz`, if there is one.
    pub token: Option<Token>,
    /// Asks for the metrics of the MPI operator too.
    pub mpi_operator: Option<MpiOperatorLabels>,
}

impl Web {
    /// A line for the log: where the page is, and whether any host can read it.
    #[must_use]
    pub fn announcement(&self) -> Option<String> {
        let at = self.socket.local_addr().ok()?;
        Some(match self.token.is_some() || at.ip().is_loopback() {
            true => format!("page and metrics of the job: http://{at}/"),
            false => format!(
                "page and metrics of the job: http://{at}/; any host that reaches this port can read them, unless the \
                 job has a token (DLROVER_JOB_TOKEN)"
            ),
        })
    }
}

/// What the handlers need.
#[derive(Clone)]
struct Shared {
    feed: StatusFeed,
    token: Option<Token>,
    mpi_operator: Option<MpiOperatorLabels>,
    training_time: metrics::GreatestTrainingTime,
    /// Only this host may ask, and no token is required.
    is_for_this_host: bool,
}

/// Serves until the task is aborted, or until `over`, when the last statuses are sent.
pub(crate) fn serve(
    web: Web,
    feed: StatusFeed,
    over: impl Future<Output = ()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let Web { socket, token, mpi_operator } = web;
    let listener = TcpListener::from_std(socket)?;
    let is_for_this_host = token.is_none() && listener.local_addr()?.ip().is_loopback();
    let training_time = metrics::GreatestTrainingTime::default();
    let shared = Shared { feed, token, mpi_operator, training_time, is_for_this_host };
    let guarded = Router::new()
        .route("/", get(page))
        .route("/status.json", get(status_json))
        .route("/status-stream", get(status_stream))
        .route("/metrics", get(metrics_text))
        .route_layer(middleware::from_fn_with_state(shared.clone(), authenticate));
    let router = guarded.route("/healthz", get(health)).with_state(shared);
    Ok(tokio::spawn(async move {
        // It ends with an error only when it cannot accept, which it retries itself.
        let _ended = axum::serve(listener, router).with_graceful_shutdown(over).await;
    }))
}

/// Answers requests without the job token, if there is one, with 401. A page of another site in a browser of this host
/// cannot read a loopback address, unless the name of that site leads to it: requests by a name are answered with 403.
async fn authenticate(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    if shared.is_for_this_host && !is_by_address(request.headers()) {
        let text = "this page is served to this host only: ask for `http://127.0.0.1:PORT/` or `http://localhost:PORT/`; \
                    under another name it is served only where the job has a token (DLROVER_JOB_TOKEN)\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let Some(token) = &shared.token else { return next.run(request).await };
    if is_authentic(token, request.headers()) {
        return next.run(request).await;
    }
    let asks = [(
        WWW_AUTHENTICATE,
        HeaderValue::from_static("Basic realm=\"dlrover: the job token is the password\""),
    )];
    let text = "the job token is missing or wrong; send it as `Authorization: Bearer TOKEN`, or as the password of \
                basic authentication\n";
    (StatusCode::UNAUTHORIZED, asks, text).into_response()
}

/// The request names its host by an address, by `localhost`, or not at all.
fn is_by_address(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()
}

/// Compares in constant time, as for calls of nodes.
fn is_authentic(token: &Token, headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(AUTHORIZATION) else { return false };
    if token.matches(given.as_bytes()) {
        return true;
    }
    let basic = given.to_str().ok().and_then(|text| text.strip_prefix("Basic "));
    let decoded = basic.and_then(|text| STANDARD.decode(text.trim()).ok());
    let password = decoded.and_then(|pair| {
        let colon = pair.iter().position(|byte| *byte == b':')?;
        Some([b"Bearer ", &pair[colon + 1..]].concat())
    });
    password.is_some_and(|password| token.matches(&password))
}

/// The answer when the job master does not answer in time.
fn unavailable() -> Response {
    let text = format!("the job master did not answer within {} s\n", ANSWER.as_secs());
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn health(State(shared): State<Shared>) -> Response {
    match shared.feed.status().await {
        Some(_) => "ok\n".into_response(),
        None => unavailable(),
    }
}

/// The page begins with a status, so that it shows something at once.
async fn page(State(shared): State<Shared>) -> Response {
    let Some(status) = shared.feed.status().await else { return unavailable() };
    // In a script element only `</` and `<!` are special.
    let status = serde_json::to_string(&*status).unwrap_or_default().replace('<', "\\u003c");
    let page = PAGE.replace("{{STATUS}}", &status);
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, page).into_response()
}

async fn status_json(State(shared): State<Shared>) -> Response {
    let Some(status) = shared.feed.status().await else { return unavailable() };
    match serde_json::to_vec(&*status) {
        Ok(json) => ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn metrics_text(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let Some(status) = shared.feed.status().await else { return unavailable() };
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = metrics::Format::of(accepts);
    match metrics::encode(&status, shared.mpi_operator.as_ref(), format, &shared.training_time) {
        Ok(text) => ([(CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Server-sent events: a status whenever it changes.
async fn status_stream(State(shared): State<Shared>) -> Response {
    let (to, statuses) = mpsc::channel(1);
    let event = |status: &JobStatus| {
        let json = serde_json::to_string(status).ok()?;
        Some(Bytes::from(format!("data: {json}\n\n")))
    };
    tokio::spawn(shared.feed.follow(to, event));
    let events = ReceiverStream::new(statuses).map(Ok::<_, io::Error>);
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_served_on_loopback() {
        assert!(open_http("0").unwrap().local_addr().unwrap().ip().is_loopback());
        assert!(open_http("127.0.0.1:0").is_ok());
        for bad in ["", ":9090", "host", "1.2.3.4:", "1.2.3.4:x", "-1"] {
            let error = open_http(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--http {bad}: expected ADDRESS:PORT")), "{error}");
        }
    }

    #[test]
    fn a_socket_that_cannot_be_opened_is_refused_with_what_to_do() {
        let taken = StdListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        // 192.0.2.0/24 is for documentation: no host has such an address.
        for (given, remedy) in [
            (port.to_string(), "; free it, or choose another port"),
            ("192.0.2.1:0".to_owned(), "; --http takes an address of this host, such as 127.0.0.1:9090"),
        ] {
            let error = open_http(&given).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot listen on --http {given}: ")), "{error}");
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_name_that_may_lead_anywhere_is_not_this_host() {
        let is_local = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            is_by_address(&headers)
        };
        for host in
            ["127.0.0.1:9090", "127.0.0.1", "localhost:9090", "LOCALHOST", "[::1]:9090", "[::1]", "10.0.0.1"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "[evil]",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_local(host), "{host}");
        }
        assert!(is_by_address(&HeaderMap::new()), "HTTP/1.0");
    }

    #[test]
    fn a_page_that_any_host_can_read_is_announced_as_such() {
        let announced = |given: &str, token: Option<&str>| {
            let token = token.map(|token| Token::new(token).unwrap());
            Web { socket: open_http(given).unwrap(), token, mpi_operator: None }.announcement().unwrap()
        };
        let open = "any host that reaches this port can read them";
        assert!(announced("0.0.0.0:0", None).contains(open));
        assert!(!announced("0.0.0.0:0", Some("s3cret")).contains(open));
        assert!(!announced("0", None).contains(open));
    }

    #[test]
    fn the_token_is_accepted_as_bearer_and_as_password() {
        let token = Token::new("s3cret").unwrap();
        let is_accepted = |value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            is_authentic(&token, &headers)
        };
        assert!(is_accepted("Bearer s3cret".into()));
        assert!(is_accepted(format!("Basic {}", STANDARD.encode("any:s3cret"))));
        for wrong in [
            "Bearer s3creT".to_owned(),
            "s3cret".to_owned(),
            format!("Basic {}", STANDARD.encode("s3cret")),
            format!("Basic {}", STANDARD.encode("s3cret:any")),
            "Basic %%%".to_owned(),
        ] {
            assert!(!is_accepted(wrong.clone()), "{wrong}");
        }
        assert!(!is_authentic(&token, &HeaderMap::new()));
    }
}
