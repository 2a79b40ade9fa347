//! Our own two measuring programs: this program again, in a process of its own for each pair.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use nix::libc;

use super::{call::Spec, contract::Response, host};
use crate::{
    NAME,
    wire::{
        Task,
        switchbox::{CopyKind, CopyTask, Request},
    },
};

impl CopyTask {
    /// How it is started. Sockets are the driver's own numbers, whatever part of the devices is visible to workers.
    pub(super) fn spec(self) -> Spec {
        Spec {
            program: PathBuf::from("/proc/self/exe"),
            name: Some(NAME),
            arguments: Vec::new(),
            environment: vec![("CUDA_VISIBLE_DEVICES", None), ("CUDA_DEVICE_ORDER", Some("PCI_BUS_ID"))],
            input: serde_json::to_vec(&Task::SwitchboxCopy(self)).unwrap_or_default(),
        }
    }
}

/// Measures, prints the result, and exits, even if a driver's clean-up would hang.
pub(crate) fn run(task: &CopyTask) -> ! {
    let response = match task.kind {
        CopyKind::Host => host::measure(&task.request),
        CopyKind::Cuda => of_cuda(&task.request),
    };
    let mut stdout = io::stdout();
    let line = serde_json::to_vec(&response).unwrap_or_default();
    let _nobody_listens = stdout.write_all(&line).and_then(|()| stdout.flush());
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(0) }
}

#[cfg(feature = "cuda")]
fn of_cuda(request: &Request) -> Response {
    super::cuda::measure(request)
}

#[cfg(not(feature = "cuda"))]
fn of_cuda(request: &Request) -> Response {
    use diagnosis::switchbox::{Trouble, Wrong};
    let mut response = Response { devices: None, ..Response::new("cuda", 0) };
    response.fail(
        &request.pairs,
        &Wrong::new(Trouble::ToolMissing, format!("this build has no CUDA probe; {}", crate::OTHER_BUILD)),
    );
    response
}
