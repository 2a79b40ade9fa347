//! A worker for the benches. First of all it reads the clock.
//!
//!     stamp once MILLISECONDS | sleep | print BYTES

use std::{
    error::Error,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    time::Duration,
};

use dlrover_benches::stamps::{self, Stamp, now_ns};

/// In case that the bench and the launcher are both killed.
const LONGEST: Duration = Duration::from_secs(900);

/// With its line end.
const LINE: usize = 80;

fn main() -> Result<(), Box<dyn Error>> {
    let at_ns = now_ns();
    let path = std::env::var_os(stamps::VARIABLE).ok_or("only the benches start this program")?;
    let mut pipe = OpenOptions::new().write(true).open(path)?;
    let pid = i32::try_from(std::process::id())?;
    Stamp { is_start: true, pid, at_ns }.write(&mut pipe)?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["sleep"] => std::thread::sleep(LONGEST),
        ["once", milliseconds] => std::thread::sleep(Duration::from_millis(milliseconds.parse()?)),
        ["print", bytes] => print(bytes.parse()?)?,
        _ => return Err("unknown arguments".into()),
    }
    Stamp { is_start: false, pid, at_ns: now_ns() }.write(&mut pipe)?;
    Ok(())
}

/// In writes of about 8 KiB, as Python and C do when standard output is no terminal.
fn print(bytes: usize) -> io::Result<()> {
    let mut line = vec![b'x'; LINE - 1];
    line.push(b'\n');
    let block = line.repeat(8192 / LINE);
    // Not through std's own buffer, which looks for line ends.
    let mut out = File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?);
    let mut left = bytes / LINE * LINE;
    while left > 0 {
        let count = left.min(block.len());
        out.write_all(&block[..count])?;
        left -= count;
    }
    Ok(())
}
