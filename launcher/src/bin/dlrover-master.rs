//! `dlrover-master`: the job master alone. Everything is in the library.

fn main() -> std::process::ExitCode {
    launcher::master_main::main()
}
