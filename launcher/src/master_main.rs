//! `dlrover-master`: the job master as a process of its own, the same that `dlrover-run` keeps inside itself.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use agent::chain;
use clap::{Arg, ArgMatches, Command, value_parser};
use master::MasterError;
use rules::{job::JobLimits, worker_group::JobVerdict};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use crate::failure::{FAILED, SUCCEEDED, tell};

/// What keeps the master from serving.
#[derive(Debug, thiserror::Error)]
pub enum MasterMainError {
    /// The runtime.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// The port.
    #[error("cannot listen on port {port}; free it, or choose another with --port")]
    Listen {
        /// Which one.
        port: u16,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The server.
    #[error(transparent)]
    Serve(#[from] MasterError),
}

fn command() -> Command {
    Command::new("dlrover-master")
        .about("The job master: nodes meet here. Exits with 0 when the job succeeded and 1 when it failed.")
        .arg(
            Arg::new("port")
                .long("port")
                .value_name("PORT")
                .value_parser(value_parser!(u16))
                .default_value("0")
                .help("Port to serve on, on all addresses; 0 takes a free one and prints it"),
        )
        .arg(
            Arg::new("node_num")
                .long("node_num")
                .alias("node-num")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..))
                .default_value("1")
                .help("Nodes in the job"),
        )
        .arg(
            Arg::new("join_timeout")
                .long("join_timeout")
                .alias("join-timeout")
                .value_name("SECONDS")
                // Beyond that the clock overflows; it is for ever anyway.
                .value_parser(value_parser!(u64).range(1..=u64::from(u32::MAX)))
                .default_value("600")
                .help("How long nodes may gather"),
        )
}

/// `dlrover-master`: serves one job and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match command().try_get_matches() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing can be done about a closed standard error.
            let _closed = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(FAILED));
        }
    };
    match serve(&arguments) {
        Ok(JobVerdict::Succeeded) => {
            tell("dlrover-master: the job succeeded");
            ExitCode::from(SUCCEEDED)
        }
        Ok(JobVerdict::Failed { node, reason }) => {
            tell(format_args!("dlrover-master: the job failed: node {node}: {reason}"));
            ExitCode::from(FAILED)
        }
        Err(error) => {
            tell(format_args!("dlrover-master: error: {}", chain(&error)));
            ExitCode::from(FAILED)
        }
    }
}

fn serve(arguments: &ArgMatches) -> Result<JobVerdict, MasterMainError> {
    let port: u16 = arguments.get_one("port").copied().unwrap_or(0);
    let limits = JobLimits {
        nodes: arguments.get_one("node_num").copied().unwrap_or(1),
        join_timeout: Duration::from_secs(arguments.get_one("join_timeout").copied().unwrap_or(600)),
        host_timeout: Duration::from_secs(60),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(MasterMainError::Runtime)?;
    runtime.block_on(async {
        let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into()];
        let listen = |source| MasterMainError::Listen { port, source };
        let listener = TcpListener::bind(&any[..]).await.map_err(listen)?;
        let port = listener.local_addr().map_err(listen)?.port();
        tell(format_args!("dlrover-master: serving a job of {} node(s) on port {port}", limits.nodes));
        Ok(master::serve(TcpListenerStream::new(listener), limits).await?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_arguments_are_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn a_bad_value_is_named() {
        let refused = command().try_get_matches_from(["dlrover-master", "--node_num", "0"]).unwrap_err();
        assert!(refused.to_string().contains("'0'"), "{refused}");
        let most = u64::MAX.to_string();
        assert!(command().try_get_matches_from(["dlrover-master", "--join_timeout", &most]).is_err());
    }
}
