//! A worker for packaging/try-rootfs, which compiles it: it needs no other file to run. `worker [CODE]`.

use std::{
    env,
    net::{TcpStream, ToSocketAddrs},
    process::ExitCode,
    time::Duration,
};

fn main() -> ExitCode {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let address = format!("{}:{}", variable("MASTER_ADDR"), variable("MASTER_PORT"));
    let found = address.to_socket_addrs().expect("MASTER_ADDR is an address").next().expect("one address");
    TcpStream::connect_timeout(&found, Duration::from_secs(10)).expect("the store answers");
    println!("rank {} of {}: the store answers", variable("RANK"), variable("WORLD_SIZE"));
    match env::args().nth(1) {
        Some(code) => ExitCode::from(code.parse::<u8>().expect("a code from 0 to 255")),
        None => ExitCode::SUCCESS,
    }
}
