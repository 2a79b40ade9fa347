//! `examples/kubernetes/*.yaml`: the objects fit together, and the containers' commands train.

use support::{free_port, launch::Running};
use yaml_rust2::Yaml;

use crate::{Place, expect_ranks_by, number, option, replaced, text, trained, words};

/// How long workers have before they are killed, in seconds.
const SHUTDOWN_TIMEOUT: u32 = 30;

/// What a manifest with a headless service has, and its pods.
struct Manifest {
    service: Yaml,
    workload: Yaml,
}

impl Manifest {
    fn of(documents: Vec<Yaml>) -> Self {
        let [service, workload] = <[Yaml; 2]>::try_from(documents).expect("a service and what it is for");
        assert_eq!((text(&service["apiVersion"]), text(&service["kind"])), ("v1".into(), "Service".into()));
        assert_eq!(text(&service["spec"]["clusterIP"]), "None", "pods have names by a headless service only");
        assert_eq!(service["spec"]["publishNotReadyAddresses"].as_bool(), Some(true));
        Self { service, workload }
    }

    fn name(&self) -> String {
        text(&self.workload["metadata"]["name"])
    }

    fn pod(&self) -> &Yaml {
        &self.workload["spec"]["template"]["spec"]
    }

    fn container(&self) -> &Yaml {
        let containers = self.pod()["containers"].as_vec().expect("a list");
        assert_eq!(containers.len(), 1);
        &containers[0]
    }

    /// What the file says twice is the same, but for the endpoint.
    fn expect_consistent(&self, nodes: u32) {
        let command = words(&self.container()["command"]);
        assert_eq!(option(&command, "--nnodes"), nodes.to_string());
        assert!(number(&self.pod()["terminationGracePeriodSeconds"]) > SHUTDOWN_TIMEOUT);
        let names = |list: &Yaml| {
            list.as_vec().expect("a list").iter().map(|one| text(&one["name"])).collect::<Vec<_>>()
        };
        assert_eq!(names(&self.container()["volumeMounts"]), names(&self.pod()["volumes"]));
    }

    /// The command names the first pod by the service, at the service's port.
    fn expect_endpoint(&self) {
        let port = number(&self.service["spec"]["ports"][0]["port"]);
        let service = text(&self.service["metadata"]["name"]);
        let command = words(&self.container()["command"]);
        assert_eq!(option(&command, "--rdzv-endpoint"), format!("{}-0.{service}:{port}", self.name()));
    }

    /// The container of the pod of this index, with the variables that it would have.
    fn start(&self, place: &Place, index: u32, further: &[(&str, String)]) -> Running {
        let mut line = place.line(words(&self.container()["command"]));
        for variable in self.container()["env"].as_vec().expect("a list") {
            let value = match &*text(&variable["valueFrom"]["fieldRef"]["fieldPath"]) {
                "metadata.name" => format!("{}-{index}", self.name()),
                "status.podIP" => format!("127.0.0.{}", index + 1),
                "spec.nodeName" => format!("machine-{index}"),
                other => panic!("pods have no field {other}"),
            };
            line = line.env(&text(&variable["name"]), value);
        }
        for (name, value) in further {
            line = line.env(name, value);
        }
        line.start()
    }
}

/// The manifest as it is, and as it runs here.
fn manifests(name: &str) -> [Manifest; 2] {
    let here = format!("127.0.0.1:{}", free_port());
    [replaced(name, &[]), replaced(name, &[("train-0.train:29400", &here)])].map(Manifest::of)
}

#[test]
fn a_stateful_set_trains() {
    let [manifest, here] = manifests("kubernetes/statefulset.yaml");
    let spec = &manifest.workload["spec"];
    assert_eq!(text(&manifest.workload["apiVersion"]), "apps/v1");
    assert_eq!(text(&manifest.workload["kind"]), "StatefulSet");
    assert_eq!(text(&spec["podManagementPolicy"]), "Parallel", "one pod alone waits for the others");
    assert_eq!(spec["serviceName"], manifest.service["metadata"]["name"]);
    assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
    assert_eq!(manifest.service["spec"]["selector"], spec["template"]["metadata"]["labels"]);
    let nodes = number(&spec["replicas"]);
    manifest.expect_consistent(nodes);
    manifest.expect_endpoint();

    let place = Place::new();
    let pods: Vec<Running> = (0..nodes).map(|index| here.start(&place, index, &[])).collect();
    trained(pods, 2 * nodes);
    place.expect_one_round(nodes);
    expect_ranks_by(&place, "POD_NAME", |name| name.replace("train-", ""));
}

#[test]
fn an_indexed_job_trains() {
    let [manifest, here] = manifests("kubernetes/job.yaml");
    let spec = &manifest.workload["spec"];
    assert_eq!(text(&manifest.workload["apiVersion"]), "batch/v1");
    assert_eq!(
        (text(&manifest.workload["kind"]), text(&spec["completionMode"])),
        ("Job".into(), "Indexed".into())
    );
    assert_eq!(spec["completions"], spec["parallelism"], "all nodes run at once");
    assert_eq!(manifest.pod()["subdomain"], manifest.service["metadata"]["name"]);
    // The controller sets this label.
    assert_eq!(text(&manifest.service["spec"]["selector"]["job-name"]), manifest.name());
    assert_eq!(text(&manifest.pod()["restartPolicy"]), "Never");
    let nodes = number(&spec["completions"]);
    manifest.expect_consistent(nodes);
    manifest.expect_endpoint();

    let place = Place::new();
    let pod = |index: u32| here.start(&place, index, &[("JOB_COMPLETION_INDEX", index.to_string())]);
    let pods: Vec<Running> = (0..nodes).map(pod).collect();
    trained(pods, 2 * nodes);
    place.expect_one_round(nodes);
    expect_ranks_by(&place, "POD_NAME", |name| name.replace("train-", ""));
}
