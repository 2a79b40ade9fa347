//! Throughput of tee'd output: eight workers that print as fast as they can, to their log files and as prefixed lines
//! to a console that is `/dev/null`.
//!
//! `cargo run --release -p agent --example tee_throughput [seconds] [line length] [log dir]`

use std::{
    env,
    error::Error,
    fs::File,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use agent::{Console, LogConfig, LogDir, Logs, Streams};
use rules::{LocalRank, Rank};

const WORKERS: u32 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let seconds: u64 = args.next().map_or(Ok(3), |arg| arg.parse())?;
    let length: usize = args.next().map_or(Ok(80), |arg| arg.parse())?;
    let dir = args.next().map_or_else(env::temp_dir, PathBuf::from);

    let null = || File::options().write(true).open("/dev/null");
    let console = Console::new(null()?.into(), null()?.into());
    let config = LogConfig {
        dir: LogDir::Temporary(dir),
        redirects: Vec::new(),
        tee: vec![Streams { out: true, err: true }; WORKERS as usize],
        prefix_template: "[${role_name}${local_rank}]:".into(),
        console_ranks: None,
        stdout_filters: Vec::new(),
        stderr_filters: Vec::new(),
        keep_stderr_tail: true,
    };
    let mut logs = Logs::new(config, "bench", "default", console)?;
    let workers: Vec<_> = (0..WORKERS).map(|i| (LocalRank(i), Rank(i))).collect();
    let mut generation = logs.open(0, &workers)?;
    let start = Instant::now();
    let mut children = Vec::new();
    for (local_rank, _) in &workers {
        let stdio = generation.take_stdio(*local_rank).ok_or("descriptors were taken")?;
        let inherit = |fd: Option<_>| fd.map_or_else(Stdio::inherit, Stdio::from);
        let line = "x".repeat(length.saturating_sub(1));
        let child =
            Command::new("yes").arg(line).stdout(inherit(stdio.out)).stderr(inherit(stdio.err)).spawn()?;
        children.push(child);
    }
    thread::sleep(Duration::from_secs(seconds));
    for child in &mut children {
        Child::kill(child)?;
        child.wait()?;
    }
    let drained = generation.drain(Duration::from_secs(60)).blocking_recv()?;
    let take_output = start.elapsed();
    let mut bytes = 0;
    for (local_rank, _) in &workers {
        let (out, _) = generation.log_files(*local_rank);
        bytes += out.ok_or("no file")?.metadata()?.len();
    }
    if let Some(run_dir) = logs.run_dir().and_then(|path| path.parent()) {
        std::fs::remove_dir_all(run_dir)?;
    }
    #[expect(clippy::print_stdout, reason = "it is what this program is for")]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    {
        let megabytes = bytes as f64 / 1e6;
        println!(
            "{WORKERS} workers, lines of {length} bytes: {megabytes:.0} MB in {:.2} s = {:.0} MB/s ({drained:?})",
            take_output.as_secs_f64(),
            megabytes / take_output.as_secs_f64()
        );
    }
    Ok(())
}
