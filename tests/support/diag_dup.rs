//! `dlrover-diag` again, under a name of this package: cargo builds it and tells the suites where it is.

fn main() -> std::process::ExitCode {
    dlrover_diag::main()
}
