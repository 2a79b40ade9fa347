//! `dlrover-diag`: inspects a cluster, outside any job. Everything is in the library.

fn main() -> std::process::ExitCode {
    dlrover_diag::main()
}
