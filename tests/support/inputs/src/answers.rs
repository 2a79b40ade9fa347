//! The output of foreign programs: the user's check command, and switchbox probes.

use diagnosis::{network_check::Probed, switchbox::SocketPair};
use probes::readers;

/// A reason that is shown is no longer than this, whatever the program printed.
const SHOWN: usize = 4 << 10;

/// The last line of a check command.
pub(crate) fn check_command(bytes: &[u8]) {
    let (_, probed) = readers::check_command(bytes);
    if let Probed::Failed { reason } = probed {
        assert!(reason.len() <= SHOWN, "{} bytes", reason.len());
    }
}

/// The output of a switchbox probe, and MetaX's sockets.
pub(crate) fn switchbox(bytes: &[u8]) {
    let Some(([one, other, cut], bytes)) = bytes.split_first_chunk::<3>() else { return };
    let (stderr, stdout) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let pair = SocketPair(u32::from(*one), u32::from(*other));
    let (answers, devices) = readers::switchbox(stdout, stderr, pair);
    assert!(format!("{answers:?}{devices:?}").len() < 64 << 10);
    let text = String::from_utf8_lossy(stdout);
    for key in ["mgpu_id", "num_cpu_nodes"] {
        let _either_way = readers::driver_number(&text, key);
    }
}
