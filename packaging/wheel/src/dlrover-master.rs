//! `dlrover-master` once more: maturin takes the programs of one crate.

fn main() -> std::process::ExitCode {
    launcher::master_main::main()
}
