//! The agent: supervises the workers of one node. A thin shell around [`rules::worker_group`].
//!
//! The launcher starts a guard ([`start_guard`]), builds [`Parts`] and calls [`Agent::run`], which returns a
//! [`Report`].
//!
//! | what | where |
//! |---|---|
//! | the event loop | [`Agent`]; what it needs is in [`AgentConfig`] and [`Parts`] |
//! | the process that starts the workers and kills their descendants | [`Guard`], [`frame`]: its messages |
//! | output of the workers and of the launcher | [`Logs`], [`Console`] |
//! | the workers' store | [`StoreHost`] |
//! | the connection to the job master | [`MasterAt`] |
//! | how workers tell their progress | [`ProgressFiles`] |
//! | how the run ended | [`Report`], [`read_error_file`] |

mod agent;
mod arrivals;
mod attributes;
mod checkpoints;
mod config;
mod error_file;
mod evidence;
mod guard;
mod logs;
mod master_link;
mod oom;
mod placeholders;
mod planned;
mod prober;
mod progress;
mod progress_sampler;
mod questions;
mod report;
mod signals;
mod status_client;
mod store_host;
mod store_watch;
mod streams;
mod warm;
mod workers;

pub use self::{
    agent::{Agent, AgentError, Observer, Parts},
    attributes::{interface_addresses, loopback_that_is_down},
    config::{AgentConfig, EnvConfig, LogConfig, LogDir, MasterPort, WorkerCommand},
    error_file::{ErrorFile, ErrorFileError, read as read_error_file},
    guard::{Guard, frame, start as start_guard},
    logs::{
        Console, Drained, GenerationLogs, LogError, LogFormat, LogStyle, Logs, Stream, TAIL_BYTES,
        WorkerOutput, plain,
    },
    master_link::{MasterAt, STORE_QUESTION},
    planned::{PlannedStore, PlannedWorker, planned_run_dir, planned_worker},
    progress::{ProgressFiles, Sample},
    report::{Report, WorkerEvidence},
    status_client::{StatusClient, StatusError, StatusWatch},
    store_host::{
        Allowed, Reach, SharedStore, StoreHost, StoreHostError, StoreLimits, bind, bind_at, shown_ports,
    },
    streams::Streams,
    warm::WarmConfig,
};
