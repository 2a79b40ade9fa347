//! Log directories, streams, prefixes and filters.

use std::{collections::BTreeSet, path::PathBuf};

use agent::LogDir;
use agent::Streams;

use super::*;

#[test]
fn logs_go_where_they_are_sent() {
    let dir = |env: &[(&str, &str)], line: &str| plan_in(env, line).agent.logs.dir;
    assert_eq!(dir(&[], "x"), LogDir::Temporary(PathBuf::from("/tmp")));
    assert_eq!(dir(&[("TMPDIR", "/scratch")], "x"), LogDir::Temporary(PathBuf::from("/scratch")));
    assert_eq!(dir(&[("DLROVER_LOG_AGENT_DIR", "/logs")], "x"), LogDir::At(PathBuf::from("/logs")));
    assert_eq!(dir(&[("DLROVER_LOG_AGENT_DIR", "/logs")], "--log-dir=a x"), LogDir::At(PathBuf::from("a")));
    assert_eq!(dir(&[], "--log-dir=/dev/null x"), LogDir::Nowhere);
}

#[test]
fn a_temporary_folder_that_is_none_is_passed_over() {
    let mut host = FakeHost::new();
    host.files = vec!["/gone".into(), "/tmp".into()];
    let plan = plan_on(&host, "--no-python x", &[("TMPDIR", "/gone"), ("TMP", "/scratch")]).unwrap();
    assert_eq!(plan.agent.logs.dir, LogDir::Temporary(PathBuf::from("/scratch")));
    let plan = plan_on(&host, "--no-python x", &[("TMPDIR", "/gone")]).unwrap();
    assert_eq!(plan.agent.logs.dir, LogDir::Temporary(PathBuf::from("/var/tmp")));
    assert_eq!(
        plan.notices,
        ["`TMPDIR=/gone` is not a writable directory: logs go to /var/tmp; --log-dir chooses another \
             directory"]
    );
}

#[test]
fn streams_prefixes_and_filters_reach_the_agent() {
    let line = "--nproc-per-node=2 -r1:2 -t 3 --local-ranks-filter=0,7 --duplicate-stdout-filters=a,,b,c x";
    let logs = plan(line).agent.logs;
    assert_eq!(logs.redirects, [Streams::NONE, Streams { out: false, err: true }]);
    assert_eq!(logs.tee, [Streams { out: true, err: true }; 2]);
    assert_eq!(logs.console_ranks, Some(BTreeSet::from([0, 7])));
    assert_eq!(logs.stdout_filters, ["a,b", "c"]);
    assert!(logs.stderr_filters.is_empty() && logs.keep_stderr_tail);
    assert_eq!(logs.prefix_template, "[${role_name}${local_rank}]:");
    let env = [("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "e:"), ("DLROVER_STDERR_TAIL", "0")];
    let logs = plan_in(&env, "x").agent.logs;
    assert_eq!((logs.prefix_template.as_str(), logs.keep_stderr_tail), ("e:", false));
    assert_eq!(plan_in(&env, "--log-line-prefix-template=f: x").agent.logs.prefix_template, "f:");
}
