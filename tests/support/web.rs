//! Asks the web server of a job (`--http`).

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// A request by hand; `headers` are whole lines. Returns the code and the body.
///
/// # Panics
/// It does not answer within a minute.
#[must_use]
pub fn get(port: u16, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the web server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("the web server answers");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
        .expect("the web server answers");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the web server answers");
    let answer = String::from_utf8(answer).expect("the web server answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    (code, body.to_owned())
}

/// The value of a series in the text of `/metrics`, if it is there.
///
/// # Panics
/// It is no number.
#[must_use]
pub fn metric(text: &str, series: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().expect("a number"))
}
