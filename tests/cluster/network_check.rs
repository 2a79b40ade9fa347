//! The check before the start, on hosts with data paths that are really broken.
//!
//! Nothing is faked: every host is a network namespace ([`crate::hosts`]), the kernel drops, refuses or delays what is
//! sent, and the control network, on which nodes and master talk, stays as it is. Every report that a case makes is
//! held against `docs/taint-report.v1.schema.json`.
//!
//! * [`job`]: a job of hosts; [`report`]: what its check found; [`schema`]: what such a document looks like.
//! * [`paths`]: hosts that no other reaches; [`links`]: pairs of hosts that do not reach each other;
//!   [`cuts`]: racks that do not.
//! * [`stragglers`]: hosts that are slow.
//! * [`changes`]: a host dies while it is checked, one comes in the place of another, and all are checked again.
//! * [`doubt`]: no other node can tell which one is at fault; [`alone`]: there is no other node.
//! * [`accelerators`]: what a node finds of its own before it is tested with others.
//! * [`switchbox`]: channels inside a node, by a tool that a test has written.
//! * [`operator`]: what is done about it outside of the job; [`command`]: a program of the user's in place of the probe.

mod accelerators;
mod alone;
mod changes;
mod command;
mod cuts;
mod doubt;
mod job;
mod links;
mod operator;
mod paths;
mod report;
mod schema;
mod stragglers;
mod switchbox;
