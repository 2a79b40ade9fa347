//! A rehearsal as the command line that makes it again.

use std::fmt::{self, Display, Write as _};

use diagnosis::network_check::{OnBadPath, Policy, Tainting, rehearsal::Cluster};

use super::Settings;

/// The command line of one rehearsal; nothing in it is random.
pub(in crate::rehearse) fn line(settings: &Settings) -> String {
    let mut text = "dlrover-diag rehearse".to_owned();
    // Writing to a string cannot fail.
    let _cannot_fail = write(&mut text, settings);
    text
}

fn write(text: &mut String, settings: &Settings) -> fmt::Result {
    let Cluster {
        nodes,
        racks,
        seed,
        noise,
        faulty,
        local_fault,
        lost,
        dead_links,
        dead_rack_pairs,
        dead_uplinks,
        slow_nic,
        slow_links,
        slow_compute,
        other_kind: _,
        flaky,
        pod_size,
        dead_pods,
        dies,
        uplink_dies,
        partial_uplinks,
        transient,
        liars,
    } = &settings.cluster;
    write!(text, " --nodes {nodes} --racks {racks} --seed {seed}")?;
    if *pod_size > 0 {
        write!(text, " --pod-size {pod_size}")?;
    }
    if *noise > 0.0 {
        write!(text, " --noise {noise}")?;
    }
    let pair = |(a, b): &(u32, u32)| format!("{a}:{b}");
    list(text, "faulty", faulty)?;
    list(text, "local-fault", local_fault)?;
    list(text, "lost", lost)?;
    list(text, "dies", dies.iter().map(|(node, round)| format!("{node}@{round}")))?;
    list(text, "dead-link", dead_links.iter().map(pair))?;
    list(text, "dead-rack-pair", dead_rack_pairs.iter().map(pair))?;
    let later = uplink_dies.iter().map(|(rack, round)| format!("{rack}@{round}"));
    list(text, "dead-uplink", dead_uplinks.iter().map(u32::to_string).chain(later))?;
    list(text, "partial-uplink", partial_uplinks.iter().map(|(rack, share)| format!("{rack}:{share}")))?;
    list(text, "dead-pod", dead_pods)?;
    list(text, "slow-nic", slow_nic.iter().map(|(node, factor)| format!("{node}:{factor}")))?;
    list(text, "slow-link", slow_links.iter().map(|((a, b), factor)| format!("{a}:{b}:{factor}")))?;
    list(text, "slow-compute", slow_compute.iter().map(|(node, factor)| format!("{node}:{factor}")))?;
    list(text, "flaky", flaky.iter().map(|(node, rng)| format!("{node}:{rng}")))?;
    list(text, "liar", liars)?;
    if *transient > 0.0 {
        write!(text, " --transient {transient}")?;
    }
    write_policy(text, &settings.policy)
}

fn write_policy(text: &mut String, policy: &Policy) -> fmt::Result {
    let baseline = Policy::new(policy.seed);
    if policy.max_rounds != baseline.max_rounds {
        write!(text, " --max-rounds {}", policy.max_rounds)?;
    }
    if policy.exclude_straggler {
        write!(text, " --exclude-straggler")?;
    }
    let share = |permille: u32| f64::from(permille) / 1000.0;
    if policy.straggler_permille != baseline.straggler_permille {
        write!(text, " --straggler-ratio {}", share(policy.straggler_permille))?;
    }
    if policy.taint_guard_permille != baseline.taint_guard_permille {
        write!(text, " --taint-guard {}", share(policy.taint_guard_permille))?;
    }
    match policy.taint_flaky {
        Tainting::Now => write!(text, " --taint-flaky now")?,
        Tainting::Confirmed => {}
        Tainting::Never => write!(text, " --taint-flaky never")?,
    }
    match policy.on_bad_path {
        OnBadPath::Exclude => Ok(()),
        OnBadPath::Fail => write!(text, " --on-bad-path fail"),
        OnBadPath::Proceed => write!(text, " --on-bad-path proceed"),
    }
}

fn list<T: Display>(text: &mut String, option: &str, values: impl IntoIterator<Item = T>) -> fmt::Result {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if values.is_empty() { Ok(()) } else { write!(text, " --{option} {}", values.join(",")) }
}
