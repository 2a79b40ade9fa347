//! The areas of the catalogue, and which files belong to each. The first area that names a file, or its directory, has
//! it.

pub(crate) struct Area {
    pub(crate) title: &'static str,
    pub(crate) places: &'static [&'static str],
}

pub(crate) const AREAS: [Area; 12] = [
    Area {
        title: "The end of a run",
        places: &["launcher/src/child_failed", "launcher/src/failure", "rules/src/failure"],
    },
    Area {
        title: "Accelerators and CPU binding",
        places: &[
            "diagnosis/src/gpu",
            "launcher/src/gpu_choice",
            "launcher/src/numa",
            "launcher/src/resolve/nproc",
            "probes/src/child/gpus",
        ],
    },
    Area {
        title: "Checkpoints in memory",
        places: &[
            "agent/src/checkpoints",
            "checkpoint/src/",
            "rules/src/checkpoint",
            "rules/src/worker_group/checkpoints",
            "saver/src/",
        ],
    },
    Area {
        title: "The job: rendezvous and the job master",
        places: &[
            "launcher/src/embedded",
            "launcher/src/master_main",
            "launcher/src/rendezvous",
            "launcher/src/open_job",
            "master-proto/src/",
            "master/src/",
            "rules/src/job",
            "rules/src/pending",
            "rules/src/node",
            "rules/src/topology",
            "rules/src/verdict",
            "store/src/",
        ],
    },
    Area { title: "Command line and environment", places: &["launcher/src/"] },
    Area {
        title: "The node: workers, logs and processes",
        places: &["agent/src/", "rules/src/notice", "rules/src/warm", "rules/src/worker_group"],
    },
    Area { title: "The network check", places: &["diagnosis/src/network_check"] },
    Area { title: "The switchbox check", places: &["diagnosis/src/switchbox", "probes/src/child/switchbox"] },
    Area { title: "Hangs and stacks", places: &["processes/src/program", "rules/src/hang", "stacks/src/"] },
    Area { title: "Probes", places: &["probes/src/"] },
    Area { title: "dlrover-diag", places: &["dlrover-diag/src/"] },
    Area { title: "Other decisions", places: &["diagnosis/src/", "rules/src/"] },
];

/// The area of a file.
pub(crate) fn of(file: &str) -> Option<usize> {
    AREAS.iter().position(|area| area.places.iter().any(|place| file.starts_with(place)))
}
