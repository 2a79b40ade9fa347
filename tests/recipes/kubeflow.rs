//! `examples/kubeflow/*.yaml`: the containers' commands, with the variables that the training operator (1.8) sets.

use support::{free_port, launch::Running};
use yaml_rust2::Yaml;

use crate::{Place, expect_ranks_by, number, replaced, text, trained, words};

/// A PyTorchJob, and the variables of its pods.
struct Job {
    yaml: Yaml,
    /// The operator's default is 23456.
    port: u16,
}

/// A pod: its type of replica and its number among those.
type Pod = (&'static str, u32);

impl Job {
    fn of(name: &str) -> Self {
        let mut documents = replaced(name, &[]);
        let yaml = documents.pop().expect("a job");
        assert!(documents.is_empty());
        assert_eq!(text(&yaml["apiVersion"]), "kubeflow.org/v1");
        assert_eq!(text(&yaml["kind"]), "PyTorchJob");
        Self { yaml, port: free_port() }
    }

    fn replica(&self, kind: &str) -> &Yaml {
        &self.yaml["spec"]["pytorchReplicaSpecs"][kind]
    }

    fn pods(&self) -> Vec<Pod> {
        let kinds = ["Master", "Worker"].into_iter().filter(|kind| !self.replica(kind).is_badvalue());
        kinds
            .flat_map(|kind| (0..number(&self.replica(kind)["replicas"])).map(move |index| (kind, index)))
            .collect()
    }

    /// As the operator's `setPodEnv`. The services `train-master-0` and `train-worker-0` are this host.
    fn variables(&self, (kind, index): Pod) -> Vec<(&'static str, String)> {
        let spec = &self.yaml["spec"];
        let per_node = text(&spec["nprocPerNode"]);
        let nodes = self.pods().len();
        let mut variables =
            vec![("PYTHONUNBUFFERED", "1".to_owned()), ("PET_NPROC_PER_NODE", per_node.clone())];
        if !self.replica("Master").is_badvalue() {
            let rank = if kind == "Worker" { index + 1 } else { index };
            let world = nodes * per_node.parse::<usize>().expect("a number");
            variables.extend([
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", self.port.to_string()),
                ("PET_MASTER_ADDR", "127.0.0.1".to_owned()),
                ("PET_MASTER_PORT", self.port.to_string()),
                ("WORLD_SIZE", world.to_string()),
                ("RANK", rank.to_string()),
                ("PET_NODE_RANK", rank.to_string()),
            ]);
        }
        let policy = &spec["elasticPolicy"];
        if policy.is_badvalue() {
            variables.push(("PET_NNODES", nodes.to_string()));
            return variables;
        }
        let (min, max) = (number(&policy["minReplicas"]), number(&policy["maxReplicas"]));
        let pairs = policy["rdzvConf"].as_vec().expect("a list");
        let pairs: Vec<_> =
            pairs.iter().map(|one| format!("{}={}", text(&one["key"]), text(&one["value"]))).collect();
        variables.extend([
            ("PET_RDZV_ENDPOINT", format!("127.0.0.1:{}", self.port)),
            ("PET_RDZV_BACKEND", text(&policy["rdzvBackend"])),
            ("PET_NNODES", format!("{min}:{max}")),
            ("PET_MAX_RESTARTS", number(&policy["maxRestarts"]).to_string()),
            ("PET_RDZV_CONF", pairs.join(",")),
        ]);
        variables
    }

    fn start(&self, place: &Place, pod: Pod) -> Running {
        let container = &self.replica(pod.0)["template"]["spec"]["containers"][0];
        assert_eq!(text(&container["name"]), "pytorch", "the operator looks for this name");
        let line = place.line(words(&container["command"]));
        self.variables(pod).into_iter().fold(line, |line, (name, value)| line.env(name, value)).start()
    }
}

fn trains(name: &str, nodes: u32) -> Place {
    let (job, place) = (Job::of(name), Place::new());
    let pods: Vec<Running> = job.pods().into_iter().map(|pod| job.start(&place, pod)).collect();
    trained(pods, 2 * nodes);
    place.expect_one_round(nodes);
    place
}

#[test]
fn a_job_with_a_master_trains() {
    let place = trains("kubeflow/pytorchjob.yaml", 2);
    expect_ranks_by(&place, "PET_NODE_RANK", str::to_owned);
}

#[test]
fn an_elastic_job_trains() {
    let place = trains("kubeflow/pytorchjob-elastic.yaml", 2);
    for worker in place.workers().values() {
        assert_eq!(worker["TORCHELASTIC_MAX_RESTARTS"], "3");
    }
}
