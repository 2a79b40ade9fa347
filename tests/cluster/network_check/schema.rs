//! `docs/taint-report.v1.schema.json`: documents are held against it as an operator's tools would.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../docs/taint-report.v1.schema.json");
    serde_json::from_str(text).expect("the schema is JSON")
});

static DOCUMENT: LazyLock<Validator> = LazyLock::new(|| validator(&SCHEMA));

/// One node of a document, as `--on-fault-node` gets it.
static NODE: LazyLock<Validator> = LazyLock::new(|| {
    let node = json!({"$schema": SCHEMA["$schema"], "$ref": "#/$defs/node", "$defs": SCHEMA["$defs"]});
    validator(&node)
});

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::new(schema).expect("the schema is one")
}

/// A whole document.
///
/// # Panics
/// It is not as the schema says; with every difference.
pub(super) fn check_document(document: &Value) {
    check(&DOCUMENT, document);
}

/// One node.
///
/// # Panics
/// It is not as the schema says; with every difference.
pub(super) fn check_node(node: &Value) {
    check(&NODE, node);
}

fn check(validator: &Validator, document: &Value) {
    let errors: Vec<String> =
        validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{document:#}");
}

/// As the program itself would write it.
fn inventory() -> Value {
    let gpu = |trouble: Value| {
        json!({
            "index": 0, "name": "A", "uuid": "GPU-a", "pci": "0000:3b:00.0", "memory_total_bytes": 80_000_000_000_u64,
            "memory_used_bytes": null, "processes": [{"pid": 7, "memory_bytes": null}], "utilisation_percent": 3,
            "temperature_celsius": 40, "throttled": ["power limit"], "ecc_uncorrected": 0,
            "remapped": {"correctable": 1, "uncorrectable": 0, "pending": false, "failed": false},
            "nvlinks": [{"number": 0, "is_active": true}], "xids": [{"code": 79, "count": 1}], "numa_node": null,
            "is_mig": false, "trouble": trouble
        })
    };
    json!({
        "vendor": "nvidia", "driver": "535", "gpus": [gpu(json!(null)), gpu(json!("lost")), gpu(json!({"cannot_open": "no"}))],
        "links": [{"a": 0, "b": 1, "link": "NV18"}], "notes": ["no mx-smi"], "hangs_at": null,
        "host": {
            "cpus": 8, "memory_total_bytes": 1, "memory_available_bytes": null, "load_percent": 12,
            "limits": {"cpu_percent": 150, "memory_bytes": null}
        }
    })
}

fn element(kind: &str, nodes: &[u32], racks: &[&str], pods: &[&str]) -> Value {
    json!({"kind": kind, "nodes": nodes, "racks": racks, "pods": pods, "words": "it"})
}

/// A document with all that there can be in one.
fn specimen() -> Value {
    let node = |number: u32, verdict: &str| {
        json!({
            "number": number, "id": "a", "rank": number, "host": "h", "ip": "10.78.0.1", "k8s_node": null, "pod": null,
            "rack": "asw-1", "psw": "psw-0", "seen_before": false, "verdict": verdict, "component": null, "excluded": verdict != "healthy",
            "taint": null, "evidence": [], "notes": [], "look_at": "",
            "compute": {"timed": "t", "samples_ms": [50.0], "usual_ms": 50.0, "nodes": 3, "left_out": 1},
            "compute_ratio": 1.0, "comm_ratio": null,
            "inventory": null
        })
    };
    let mut broken = node(1, "local-fault");
    broken["component"] = json!("GPU 3");
    broken["taint"] = json!({"key": "k", "value": "local-fault", "effect": "NoSchedule"});
    broken["evidence"] = json!([{"round": null, "with": [], "words": "GPU 3: it hangs"}]);
    broken["look_at"] = json!("the component");
    broken["inventory"] = inventory();
    let test = json!({
        "kind": "screen", "nodes": [0, 1], "across": true, "result": "fail", "ended_seconds": 1.2, "comm_ms": null,
        "usual": {"ms": 100.0, "nodes": 6, "left_out": 0, "of_all": false}, "ratio": null, "mb_per_s": null,
        "reasons": [{"node": 1, "words": "it does not answer"}], "explained": true
    });
    json!({
        "schema": "dlrover.taint-report/v1", "job": "none", "epoch": 0, "seed": "18446744073709551615",
        "written_unix_ms": 1_700_000_000_000_u64, "took_seconds": 1.5, "network_untested": false,
        "slow_confirmations": 2, "rounds": [{"round": 0, "began_seconds": 0.0, "seconds": 1.5, "tests": [test]}],
        "nodes": [node(0, "healthy"), broken], "links": [{"nodes": [0, 1], "kind": "dead"}],
        "rack_pairs": [{"racks": ["asw-1", "asw-2"], "pairs": [[0, 1], [0, 2]]}], "uplinks": ["asw-3"],
        "leaves": ["asw-4"], "pods": ["psw-1"], "partial_uplinks": [{"rack": "asw-5", "dead": 2, "tested": 5}],
        "ambiguous": [{"candidates": [element("node", &[1], &[], &[]), element("uplink", &[], &["asw-3"], &[])]}],
        "cut": {"left_out": [1], "words": "asw-3 is cut off"},
        "guard": {"taints": 1, "limit": 2, "mass_failure": false}
    })
}

/// Every object of the schema, with where it stands.
fn objects<'a>(at: &str, schema: &'a Value, found: &mut Vec<(String, &'a Value)>) {
    let Some(parts) = schema.as_object() else { return };
    if schema["type"] == "object" {
        found.push((at.to_owned(), schema));
    }
    for (name, part) in parts {
        objects(&format!("{at}/{name}"), part, found);
    }
}

#[test]
fn the_schema_is_valid_and_closed() {
    assert!(jsonschema::meta::is_valid(&SCHEMA));
    let mut found = Vec::new();
    objects("", &SCHEMA, &mut found);
    assert_eq!(found.len(), 26, "{found:#?}");
    for (at, object) in found {
        assert_eq!(object["additionalProperties"], json!(false), "{at}");
        let named: Vec<&String> = object["properties"].as_object().expect("it has some").keys().collect();
        let required = object["required"].as_array().expect("all of them");
        assert_eq!(named.len(), required.len(), "{at}: every property is always there");
    }
}

#[test]
fn a_document_that_violates_the_schema_is_rejected() {
    let right = specimen();
    check_document(&right);
    check_node(&right["nodes"][1]);
    let mut switchbox = right["nodes"][1].clone();
    switchbox["taint"]["value"] = json!("switchbox");
    check_node(&switchbox);
    let differing: [(&str, Value); 17] = [
        ("/schema", json!("dlrover.taint-report/v2")),
        ("/seed", json!(7)),
        ("/epoch", json!(-1)),
        ("/nodes/0/verdict", json!("fine")),
        ("/nodes/0/excluded", json!(true)),
        ("/nodes/1/component", json!(null)),
        ("/nodes/1/evidence", json!([])),
        ("/nodes/1/notes", json!([7])),
        ("/nodes/1/taint/value", json!("GPU 3")),
        ("/nodes/1/inventory", json!(7)),
        ("/nodes/1/inventory/gpus/0/memory_used_bytes", json!(-1)),
        ("/nodes/1/inventory/links/0/link", json!("P2P")),
        ("/rounds/0/tests/0/nodes", json!([0, 0])),
        ("/ambiguous/0/candidates", json!([])),
        ("/partial_uplinks/0/dead", json!(-1)),
        ("/cut/words", json!("")),
        ("/guard/mass_failure", json!(true)),
    ];
    for (at, value) in differing {
        let mut wrong = right.clone();
        *wrong.pointer_mut(at).expect("it is there") = value;
        assert!(!DOCUMENT.is_valid(&wrong), "{at}");
    }
    let mut more = right.clone();
    more["nodes"][0]["mood"] = json!("good");
    assert!(!DOCUMENT.is_valid(&more));
    let mut less = right;
    assert!(less["guard"].as_object_mut().expect("it is one").remove("limit").is_some());
    assert!(!DOCUMENT.is_valid(&less));
}
