//! The settings of a job master in this launcher, and the credentials of its nodes.

use std::{path::PathBuf, time::Duration};

use rules::job::OnGiveUp;

use super::*;

const LINE: &str = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=h:1 x";

fn master(line: &str) -> MasterPlan {
    plan(&format!("{line} {LINE}")).master
}

#[test]
fn a_master_in_a_launcher_has_these_defaults() {
    let plan = plan(LINE);
    let MasterPlan { policy, timeout, state_dir, topology_file, trust, given, .. } = plan.master;
    assert_eq!((policy.restart_count, policy.on_give_up), (3, OnGiveUp::FailJob));
    assert_eq!(policy.host, Some(plan.agent.node_id), "it cannot come back");
    assert_eq!((policy.has_topology, policy.host_timeout), (false, Duration::from_secs(60)));
    assert_eq!(policy.reconnect_grace, Duration::from_secs(2));
    assert_eq!(timeout.reconnect_grace, Duration::from_secs(2));
    assert_eq!(timeout.heartbeat_timeout, Some(Duration::from_secs(15)));
    assert!(state_dir.is_none() && topology_file.is_none() && trust.token.is_none() && !trust.tls.is_on());
    assert!(given.is_empty());
}

#[test]
fn its_options_reach_it() {
    let told = master("--restart-counts=5 --reconnect-grace=0.5 --heartbeat_timeout 30 --state-dir=/s");
    assert_eq!(told.policy.restart_count, 5);
    assert_eq!(told.timeout.reconnect_grace, Duration::from_millis(500));
    assert_eq!(told.timeout.heartbeat_timeout, Some(Duration::from_secs(30)));
    assert_eq!((told.state_dir, told.policy.host), (Some(PathBuf::from("/s")), None), "it can come back");
    assert_eq!(told.given.len(), 4);
    let told = master("--topology-config=/t --require-uniform");
    assert_eq!((told.topology_file, told.policy.has_topology), (Some(PathBuf::from("/t")), true));
    assert!(plan(&format!("--require-uniform {LINE}")).agent.terms.require_uniform);
    let told = plan_in(&[("DLROVER_TOPOLOGY_CONFIG", "/e"), ("PET_RESTART_COUNT", "0")], LINE).master;
    assert_eq!((told.topology_file, told.policy.restart_count), (Some(PathBuf::from("/e")), 0));
    for bad in
        ["--restart-count=-1", "--reconnect-grace=-1", "--reconnect-grace=nan", "--heartbeat-timeout=0"]
    {
        assert!(refusal(&[], &format!("{bad} {LINE}")).contains(bad), "{bad}");
    }
}

#[test]
fn alone_nobody_beats_and_nobody_else_may_speak() {
    for line in ["x", "--standalone x", "--master-port=1234 x"] {
        let told = plan_in(&[("DLROVER_JOB_TOKEN", "b a d")], line).master;
        assert_eq!(told.timeout.heartbeat_timeout, None, "{line}");
        assert!(told.trust.token.is_some() && !told.trust.tls.is_on(), "{line}");
    }
}

fn trusting(files: &[(&str, &str)], env: &[(&str, &str)], line: &str) -> Result<MasterPlan, String> {
    let host = FakeHost::new();
    for (path, text) in files {
        host.root.write(path, text);
    }
    let mut env = env.to_vec();
    env.push(PATH);
    plan_on(&host, &format!("{line} {LINE}"), &env).map(|plan| plan.master)
}

#[test]
fn the_token_comes_from_a_file_or_the_environment_and_is_never_shown() {
    let files = [("t", "from-a-file\n"), ("empty", "\n")];
    let told = |env: &[(&str, &str)], line: &str| {
        trusting(&files, env, line).map(|told| {
            let mut request = tonic_request();
            told.trust.token.unwrap().put_on(&mut request);
            format!("{:?}", request.metadata().get("authorization").unwrap().as_encoded_bytes())
        })
    };
    let shown = |token: &str| Ok(format!("{:?}", format!("Bearer {token}").as_bytes()));
    assert_eq!(told(&[("DLROVER_JOB_TOKEN", "s3cret")], ""), shown("s3cret"));
    assert_eq!(told(&[("DLROVER_JOB_TOKEN_FILE", "/t")], ""), shown("from-a-file"));
    assert_eq!(told(&[("DLROVER_JOB_TOKEN", "s3cret")], "--job-token-file=/t"), shown("from-a-file"));
    let error = told(&[("DLROVER_JOB_TOKEN", "two words")], "").unwrap_err();
    assert!(error.contains("`DLROVER_JOB_TOKEN` cannot be used") && !error.contains("two words"), "{error}");
    assert!(told(&[], "--job-token-file=/empty").unwrap_err().contains("--job-token-file=/empty"));
    assert!(
        told(&[], "--job-token-file=/none").unwrap_err().contains("`--job-token-file=/none` cannot be read")
    );
}

fn tonic_request() -> tonic::Request<()> {
    tonic::Request::new(())
}

#[test]
fn certificates_come_in_pairs_and_with_their_ca() {
    let files = [("ca", "pem"), ("cert", "pem"), ("key", "pem")];
    let told = trusting(&files, &[("DLROVER_TLS_CA", "/ca")], "--tls-cert=/cert --tls-key=/key").unwrap();
    let tls = told.trust.tls;
    assert_eq!((tls.ca, tls.cert, tls.key), (Some("/ca".into()), Some("/cert".into()), Some("/key".into())));
    assert!(trusting(&files, &[], "--tls-ca=/ca").is_ok(), "enough for a node that does not serve");
    assert!(trusting(&files, &[], "--tls-ca=/ca --tls-cert=/cert").unwrap_err().contains("--tls-key"));
    assert!(trusting(&files, &[], "--tls-cert=/cert --tls-key=/key").unwrap_err().contains("--tls-ca"));
    assert!(trusting(&files, &[], "--tls-ca=/none").unwrap_err().contains("`--tls-ca=/none` cannot be read"));
}

#[test]
fn a_file_is_no_place_for_a_state() {
    let mut host = FakeHost::new();
    host.files.push("/state".into());
    let error = plan_on(&host, &format!("--state-dir=/state {LINE}"), &[PATH]).unwrap_err();
    assert!(error.contains("`--state-dir=/state` is a file"), "{error}");
}
