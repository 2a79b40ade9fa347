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
/// When it is not as the schema says; with every difference.
pub(super) fn check_document(document: &Value) {
    check(&DOCUMENT, document);
}

/// One node.
///
/// # Panics
/// When it is not as the schema says; with every difference.
pub(super) fn check_node(node: &Value) {
    check(&NODE, node);
}

fn check(validator: &Validator, document: &Value) {
    let errors: Vec<String> =
        validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{document:#}");
}

/// A document with all that there can be in one.
fn specimen() -> Value {
    let node = |number: u32, verdict: &str| {
        json!({
            "number": number, "id": "a", "rank": number, "host": "h", "ip": "10.78.0.1", "k8s_node": null, "pod": null,
            "rack": "asw-1", "verdict": verdict, "component": null, "excluded": verdict != "healthy",
            "taint": null, "evidence": [], "look_at": "", "compute_ratio": 1.0, "comm_ratio": null
        })
    };
    let mut broken = node(1, "local-fault");
    broken["component"] = json!("gpu 3");
    broken["taint"] = json!({"key": "k", "value": "local-fault", "effect": "NoSchedule"});
    broken["evidence"] = json!([{"round": null, "with": [], "words": "gpu 3: it hangs"}]);
    broken["look_at"] = json!("the component");
    let test = json!({
        "kind": "screen", "nodes": [0, 1], "result": "fail", "comm_ms": null, "ratio": null, "mb_per_s": null,
        "reasons": [{"node": 1, "words": "it does not answer"}], "explained": true
    });
    json!({
        "schema": "dlrover.taint-report/v1", "job": "none", "epoch": 0, "seed": "18446744073709551615",
        "written_unix_ms": 1_700_000_000_000_u64, "took_seconds": 1.5, "network_untested": false,
        "slow_confirmations": 2, "rounds": [{"round": 0, "seconds": 1.5, "tests": [test]}],
        "nodes": [node(0, "healthy"), broken], "links": [{"nodes": [0, 1], "kind": "dead"}],
        "rack_pairs": [{"racks": ["asw-1", "asw-2"], "pairs": [[0, 1], [0, 2]]}], "uplinks": ["asw-3"],
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
fn the_schema_is_one_and_leaves_nothing_open() {
    assert!(jsonschema::meta::is_valid(&SCHEMA));
    let mut found = Vec::new();
    objects("", &SCHEMA, &mut found);
    assert_eq!(found.len(), 10, "{found:#?}");
    for (at, object) in found {
        assert_eq!(object["additionalProperties"], json!(false), "{at}");
        let named: Vec<&String> = object["properties"].as_object().expect("it has some").keys().collect();
        let required = object["required"].as_array().expect("all of them");
        assert_eq!(named.len(), required.len(), "{at}: every property is always there");
    }
}

#[test]
fn a_document_that_is_not_as_it_says_is_refused() {
    let right = specimen();
    check_document(&right);
    check_node(&right["nodes"][1]);
    let differing: [(&str, Value); 9] = [
        ("/schema", json!("dlrover.taint-report/v2")),
        ("/seed", json!(7)),
        ("/epoch", json!(-1)),
        ("/nodes/0/verdict", json!("fine")),
        ("/nodes/0/excluded", json!(true)),
        ("/nodes/1/component", json!(null)),
        ("/nodes/1/evidence", json!([])),
        ("/rounds/0/tests/0/nodes", json!([0, 0])),
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
