//! `dlrover-diag` once more: maturin takes the programs of one crate.

fn main() -> std::process::ExitCode {
    dlrover_diag::main()
}
