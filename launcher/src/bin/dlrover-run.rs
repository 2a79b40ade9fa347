//! `dlrover-run`: the launcher. Everything is in the library.

fn main() -> std::process::ExitCode {
    launcher::main()
}
