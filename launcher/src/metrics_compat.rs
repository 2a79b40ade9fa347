//! `--metrics-compat`: the names under which another tool's dashboards know the job.

use std::path::Path;

use master::MpiOperatorLabels;

use crate::{environment::Environment, host::Host};

/// The values of the option.
pub(crate) const METRICS_COMPAT: &[&str] = &["none", "mpi-operator"];

/// Where Kubernetes puts the namespace of a pod.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// What the option asks for. The launcher of the MPI operator is this process' pod, whose host name is its own; the
/// namespace is `given`, else `POD_NAMESPACE`, else the pod's, else `default`.
pub(crate) fn labels(
    compat: &str,
    given: Option<&str>,
    env: Environment<'_>,
    host: &dyn Host,
) -> Option<MpiOperatorLabels> {
    if compat != "mpi-operator" {
        return None;
    }
    let variable = || env.get_filled("POD_NAMESPACE").map(|name| name.to_string_lossy().into_owned());
    let file = || host.read(Path::new(NAMESPACE_FILE)).ok().map(|name| name.trim().to_owned());
    let namespace = given.map(str::to_owned).or_else(variable).or_else(file);
    let namespace = namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".into());
    Some(MpiOperatorLabels { launcher: host.name(), namespace })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeHost, variables};

    #[test]
    fn the_namespace_is_the_pods_unless_one_is_given() {
        let host = FakeHost::new();
        let labels = |given, env: &[(&str, &str)]| {
            let env = variables(env);
            super::labels("mpi-operator", given, Environment(&env), &host).unwrap().namespace
        };
        assert_eq!(labels(None, &[]), "default");
        host.root.write(&NAMESPACE_FILE[1..], "of-the-pod\n");
        assert_eq!(labels(None, &[]), "of-the-pod");
        assert_eq!(labels(None, &[("POD_NAMESPACE", "training")]), "training");
        assert_eq!(labels(Some("given"), &[("POD_NAMESPACE", "training")]), "given");
        assert_eq!(super::labels("none", None, Environment(&[]), &host), None);
    }
}
