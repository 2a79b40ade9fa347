//! Options and environment to a plan, on hosts that do not exist.

mod gpu_share;
mod gpus;
mod hangs;
mod job_master;
mod options;
mod output;
mod rendezvous;
mod several_nodes;
mod workers;

use super::*;
use crate::{
    cli::Request,
    endpoint::Endpoint,
    testing::{FakeHost, variables, words},
};

fn plan_on(host: &FakeHost, line: &str, env: &[(&str, &str)]) -> Result<LaunchPlan, String> {
    let env = variables(env);
    match Request::read(&words(line), Environment(&env)).map_err(|error| error.to_string())? {
        Request::Run(cli) => resolve(cli, env, host).map_err(|error| error.to_string()),
        other => Err(format!("{other:?}")),
    }
}

fn plan_in(env: &[(&str, &str)], line: &str) -> LaunchPlan {
    let mut env = env.to_vec();
    env.push(("PATH", "/usr/local/bin:/usr/bin"));
    plan_on(&FakeHost::new(), line, &env).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn plan(line: &str) -> LaunchPlan {
    plan_in(&[], line)
}

fn argv(plan: &LaunchPlan) -> Vec<String> {
    plan.agent.command.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn four_gpus() -> FakeHost {
    let host = FakeHost::new();
    for gpu in 0..4 {
        host.root.gpu(gpu, &format!("0000:{gpu}0:00.0"), 0);
    }
    host.root.write("sys/devices/system/node/node0/cpulist", "0-3\n");
    host
}

const PATH: (&str, &str) = ("PATH", "/usr/bin");

fn refusal(env: &[(&str, &str)], line: &str) -> String {
    let mut env = env.to_vec();
    env.push(PATH);
    plan_on(&FakeHost::new(), line, &env).err().unwrap_or_else(|| panic!("{line} is fine"))
}

fn at(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.to_owned(), port }
}
