//! What a sample of the progress of 64 workers costs: `cargo run --release -p agent --example progress_sample`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::{
    fs, io,
    time::{Duration, Instant},
};

use agent::ProgressFiles;
use rules::LocalRank;

const WORKERS: u32 = 64;
const SAMPLES: u32 = 2000;

fn main() -> io::Result<()> {
    let mut files = ProgressFiles::new(WORKERS)?;
    let texts: Vec<_> =
        (0..WORKERS).map(|rank| files.environment(LocalRank(rank), false, None).remove(0).1).collect();
    for (what, writes) in [("nothing new", false), ("a step of each", true)] {
        let mut spent = Duration::ZERO;
        for step in 0..SAMPLES {
            for text in texts.iter().filter(|_| writes) {
                fs::write(text, step.to_string())?;
            }
            let start = Instant::now();
            assert_eq!(files.sample().len(), WORKERS as usize);
            spent += start.elapsed();
        }
        println!("{what}: {:?} for {WORKERS} workers", spent / SAMPLES);
    }
    Ok(())
}
