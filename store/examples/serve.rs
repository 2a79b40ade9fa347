//! Serves a store until stdin ends; each line on stdin begins a new generation. For tests from Python.
//!
//!     cargo run --release -p store --example serve [PORT]

use std::io::{BufRead, Write};

use store::{Limits, StoreServer, bind_any};

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let listeners = bind_any(port)?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", listeners[0].local_addr()?.port())?;
    let server = StoreServer::start(listeners, Limits::default())?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let arrivals = server.arrivals().len();
        server.begin_generation();
        writeln!(out, "new generation after {arrivals} arrivals")?;
    }
    Ok(())
}
