//! `examples/compose/compose.yaml`: the services' commands with their variables.

use std::net::TcpStream;

use support::{free_port, launch::Running, wait_for};

use crate::{Place, number, option, replaced, text, trained, words};

#[test]
fn a_job_master_and_its_nodes_train() {
    let file = replaced("compose/compose.yaml", &[]);
    let [master, node] = ["master", "node"].map(|name| &file[0]["services"][name]);
    let address = text(&node["environment"]["DLROVER_MASTER_ADDR"]);
    assert_eq!(address, format!("master:{}", option(&words(&master["command"]), "--port")));
    assert_eq!(words(&node["depends_on"]), ["master"]);
    let nodes = number(&node["deploy"]["replicas"]);
    assert_eq!(option(&words(&node["command"]), "--nnodes"), nodes.to_string());

    let place = Place::new();
    let port = free_port().to_string();
    let here = replaced("compose/compose.yaml", &[("50001", &port)]);
    let services = &here[0]["services"];
    let master = place.line(words(&services["master"]["command"])).start();
    // On one host an address without a listener is a launcher's to serve.
    wait_for("the master", || TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).ok());
    let address =
        text(&services["node"]["environment"]["DLROVER_MASTER_ADDR"]).replace("master:", "127.0.0.1:");
    let start = |_| {
        let line = place.line(words(&services["node"]["command"]));
        line.env("DLROVER_MASTER_ADDR", &address).start()
    };
    let containers: Vec<Running> = (0..nodes).map(start).collect();
    trained(containers, 2 * nodes);
    place.expect_one_round(nodes);
    let _ended = master.finish().expect_code(0);
}
