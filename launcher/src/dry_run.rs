//! `--dry-run`: the plan of a run as text. Nothing is started, no port is opened and no directory is made.

mod host;

use std::{ffi::OsString, fmt::Write as _, time::Duration};

use agent::{MasterPort, PlannedStore, planned_run_dir, planned_worker};
use diagnosis::counted::counted;
use rules::{LocalRank, check_terms::CheckTerms, worker_env::WorkerEnvError};

pub(crate) use self::host::DryHost;
use crate::{
    activity,
    endpoint::Endpoint,
    endpoint_listener::is_this_host,
    host_names::master_addr_of_one_node,
    resolve::{Checks, LaunchPlan, Rendezvous, ServeMaster},
};

/// The text of `--dry-run`. `env` is the environment that the launcher was given.
pub(crate) fn text(plan: &LaunchPlan, env: &[(OsString, OsString)]) -> Result<String, WorkerEnvError> {
    let agent = &plan.agent;
    let mut text = String::from("dlrover-run: dry run; nothing is started\n\n");
    let logs = match planned_run_dir(&agent.logs.dir, &agent.run_id.0) {
        Some(folder) => folder.display().to_string(),
        None => "none; no output is kept in files".to_owned(),
    };
    let report = plan.report_json.as_ref().map(|path| path.display().to_string());
    let changed = changed(&agent.env.inherited, env);
    for (name, value) in [
        ("run id", agent.run_id.to_string()),
        ("nodes", nodes(plan)),
        ("workers", format!("{} on this node, max restarts {}", agent.local_world_size, agent.max_restarts)),
        ("rendezvous", activity::rendezvous(plan)),
        ("job master", job_master(plan)),
        ("workers' store", store(plan)),
        ("checks", checks(&plan.checks, agent.terms.max_nodes)),
        ("accelerators", accelerators(plan, &changed)),
        ("log directory", logs),
        ("report", report.unwrap_or_else(|| "none".to_owned())),
    ] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<15} {value}", format!("{name}:"));
    }
    if !plan.notices.is_empty() {
        text.push_str("notices:\n");
        plan.notices.iter().for_each(|notice| text.push_str(&format!("  {notice}\n")));
    }
    text.push_str(
        "\nEvery worker inherits the launcher's environment; these variables are set or changed:\n",
    );
    let (store, loses_token) = (known_store(plan), env.iter().any(|(name, _)| name == "DLROVER_JOB_TOKEN"));
    for local_rank in (0..agent.local_world_size).map(LocalRank) {
        let worker = planned_worker(agent, &store, local_rank)?;
        let words: Vec<String> = worker.argv.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        let _ = writeln!(text, "\nlocal rank {local_rank}\n  command: {}", words.join(" "));
        if let Some(cpus) = agent.cpus.get(local_rank.0 as usize) {
            let _ = writeln!(text, "  CPUs: {}", ranges(cpus));
        }
        for (name, value) in &worker.env {
            let _ = writeln!(text, "  {name}={value}");
        }
        let own = |name: &str| worker.env.iter().any(|(own, _)| *own == name);
        for (name, value) in changed.iter().filter(|(name, _)| !own(name)) {
            let _ = writeln!(text, "  {name}={value}");
        }
        if loses_token {
            text.push_str("  DLROVER_JOB_TOKEN is not inherited\n");
        }
    }
    Ok(agent::plain(&text).into_owned())
}

fn nodes(plan: &LaunchPlan) -> String {
    let terms = &plan.agent.terms;
    let (min, max) = (terms.min_nodes, terms.max_nodes);
    if max == 1 {
        return "1".to_owned();
    }
    let within = seconds(terms.join_timeout);
    let count = if min == max {
        format!("{min} (join timeout: {within})")
    } else {
        format!(
            "{min} to {max} (join timeout: {within}; then {} for each further node)",
            seconds(terms.last_call)
        )
    };
    match terms.node_unit {
        1 => count,
        unit => format!("{count}; always a multiple of {unit}"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// What serves the job master.
fn job_master(plan: &LaunchPlan) -> String {
    let Some(endpoint) = plan.rendezvous.endpoint() else {
        return "served by this launcher on 127.0.0.1, at a free port".to_owned();
    };
    let Endpoint { host, .. } = endpoint;
    let text = match plan.master.serve_master {
        ServeMaster::Always => format!("served by this launcher at {endpoint}"),
        ServeMaster::UnlessServed => {
            format!(
                "served by this launcher at {endpoint}, unless another process of this host holds the port"
            )
        }
        ServeMaster::Never => format!("served by another launcher at {endpoint}"),
        ServeMaster::IfLocal if is_this_host(host) => {
            format!(
                "served by this launcher at {endpoint}, unless another process of this host holds the port"
            )
        }
        ServeMaster::IfLocal if host.parse::<std::net::IpAddr>().is_ok() => {
            format!("served by a process on another host, at {endpoint}")
        }
        ServeMaster::IfLocal => {
            format!("served at {endpoint}: by this launcher if {host} is this host and the port is free")
        }
    };
    let trust = &plan.master.trust;
    let token = if trust.token.is_some() { "a job token" } else { "no token" };
    format!("{text}; {token}, {}", if trust.tls.is_on() { "TLS" } else { "no TLS" })
}

/// Where workers find their store, in words.
fn store(plan: &LaunchPlan) -> String {
    let PlannedStore { address, port } = known_store(plan);
    let server = match plan.agent.master_port {
        MasterPort::Served => "served by the launcher of node rank 0",
        MasterPort::LeftToRankZero => "served by rank 0",
    };
    let port = port.map_or("a free port".to_owned(), |port| format!("port {port}"));
    match address {
        Some(address) => format!("{server}, at {address}, {port}"),
        None => format!("{server}, at an address that is decided at the rendezvous, {port}"),
    }
}

/// What is known of MASTER_ADDR and MASTER_PORT.
fn known_store(plan: &LaunchPlan) -> PlannedStore {
    match &plan.rendezvous {
        Rendezvous::Loopback => PlannedStore {
            address: Some(plan.local_addr.clone().unwrap_or_else(master_addr_of_one_node)),
            port: None,
        },
        Rendezvous::Static(Endpoint { host, port }) => {
            PlannedStore { address: Some(host.clone()), port: Some(*port) }
        }
        Rendezvous::C10d(_) | Rendezvous::Master(_) => PlannedStore::default(),
    }
}

fn checks(checks: &Checks, nodes: u32) -> String {
    let Some(terms) = &checks.terms else { return "none".to_owned() };
    let CheckTerms { exclude_straggler, max_rounds, has_command, measures_bandwidth, .. } = terms;
    let mut all = vec![match (has_command, nodes) {
        (true, 1) => "--check-command on this node".to_owned(),
        (true, _) => "--check-command on both nodes of each pair".to_owned(),
        (false, 1) => "this node".to_owned(),
        (false, _) => "each node, the network between the nodes".to_owned(),
    }];
    if let Some(switchbox) = &checks.switchbox {
        all.push(counted(switchbox.settings.pairs.len(), "switchbox pair"));
    }
    if *measures_bandwidth && nodes > 1 {
        all.push("the bandwidth of the whole job".to_owned());
    }
    let slow = if *exclude_straggler { "excluded" } else { "reported" };
    let unless = if terms.reuse_for.is_zero() {
        String::new()
    } else {
        format!(", unless these nodes passed a check in the last {}", seconds(terms.reuse_for))
    };
    format!(
        "before every start of workers{unless}: {}; at most {}, {} a test; slow nodes are {slow}",
        all.join(", "),
        counted(*max_rounds as usize, "check round"),
        seconds(terms.deadlines.hard)
    )
}

/// What the launcher decides on accelerators and CPUs.
fn accelerators(plan: &LaunchPlan, changed: &[(String, String)]) -> String {
    let visible = |name: &str| name.ends_with("_VISIBLE_DEVICES");
    let chosen: Vec<String> = changed
        .iter()
        .filter(|(name, _)| visible(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let chosen = if chosen.is_empty() {
        "as the environment has them".to_owned()
    } else {
        format!("chosen: {}", chosen.join(" "))
    };
    let each = if plan.agent.env.virtual_local_rank { ", one for each worker" } else { "" };
    let bound =
        if plan.agent.cpus.is_empty() { "no worker is bound to CPUs" } else { "workers are bound to CPUs" };
    format!("{chosen}{each}; {bound}")
}

/// The variables that differ from those that the launcher was given.
fn changed(inherited: &[(OsString, OsString)], given: &[(OsString, OsString)]) -> Vec<(String, String)> {
    let differs = |(name, value): &&(OsString, OsString)| {
        given.iter().find(|(other, _)| other == name).is_none_or(|(_, was)| was != value)
    };
    let text = |(name, value): &(OsString, OsString)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    };
    inherited.iter().filter(differs).map(text).collect()
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// `0-3,8`.
fn ranges(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        entry::{Action, entry},
        testing::{FakeHost, variables, words},
    };

    fn planned(host: &FakeHost, line: &str, env: &[(&str, &str)]) -> String {
        let mut env = env.to_vec();
        env.push(("PATH", "/usr/bin"));
        let args: Vec<_> = words(&format!("dlrover-run {line}"));
        match entry(&args, variables(&env), host) {
            Action::Print { text } => text.replace(&master_addr_of_one_node(), "localhost"),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn one_node_is_known_but_for_its_ports() {
        let host = FakeHost::new();
        let line = "--dry-run --standalone --nproc-per-node=2 --max-restarts=1 train.py --name ${local_rank}";
        insta::assert_snapshot!(planned(&host, line, &[]));
    }

    #[test]
    fn what_nodes_agree_on_is_decided_at_the_rendezvous() {
        let host = FakeHost::new();
        let line = "--dry-run --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=node-0:29400 --network-check \
                    --log-dir=/logs --no-python ./it";
        insta::assert_snapshot!(planned(&host, line, &[("DLROVER_JOB_TOKEN", "secret-of-the-job")]));
        let line = "--dry-run --standalone --network-check --check-ttl=60 --no-python ./it";
        let text = planned(&host, line, &[]);
        let unless = "workers, unless these nodes passed a check in the last 60 s: this node; at most";
        assert!(text.contains(unless), "{text}");
        let line = "--dry-run --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --no-python ./it";
        let text = planned(&host, line, &[]);
        assert!(text.contains("served by another launcher at 10.0.0.1:29500; no token, no TLS\n"), "{text}");
        assert!(text.contains("  MASTER_ADDR=10.0.0.1\n  MASTER_PORT=29500\n"), "{text}");
        assert!(text.contains("  GROUP_WORLD_SIZE=2\n"), "{text}");
    }

    #[test]
    fn a_configuration_that_is_refused_is_refused() {
        let args = words("dlrover-run --dry-run --max-restarts=-1 x.py");
        let refused = entry(&args, variables(&[("PATH", "/usr/bin")]), &FakeHost::new());
        assert!(matches!(refused, Action::Refused { exit_code: 1, .. }), "{refused:?}");
    }

    #[test]
    fn words_and_cpus_are_written_as_people_write_them() {
        assert_eq!(quoted("--lr=1e-3"), "--lr=1e-3");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(ranges(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
    }
}
