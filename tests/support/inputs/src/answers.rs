//! What programs of others answer: the user's check command, and whatever measures the switchbox.

use diagnosis::{network_check::Probed, switchbox::SocketPair};
use probes::readers;

/// A reason that is shown is no longer than this, whatever the program said.
const SHOWN: usize = 4 << 10;

/// The last line of `--check-command`.
pub(crate) fn check_command(bytes: &[u8]) {
    let (_, probed) = readers::check_command(bytes);
    if let Probed::Failed { reason } = probed {
        assert!(reason.len() <= SHOWN, "{} bytes", reason.len());
    }
}

/// The output of a program that measures, and what MetaX's driver says of its sockets.
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
