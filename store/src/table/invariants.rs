//! Property tests: whatever the clients do, waits and memory are accounted for.

use std::collections::HashMap;

use proptest::{collection::vec, prelude::*};

use super::{
    ClientId, Table,
    quota::Quota,
    space::tests::{A, add, ask, barrier, compare_set, keys, push, set, table},
};
use crate::{
    codec::{Key, Reply, Request},
    limits::Limits,
};

#[derive(Debug, Clone)]
enum Step {
    Ask(ClientId, Request),
    Leave(ClientId),
}

fn step() -> impl Strategy<Value = Step> {
    let name = || prop_oneof![Just("a"), Just("b"), Just("c")];
    let text = || prop_oneof![Just(""), Just("1"), Just("22")];
    let names = || vec(name(), 0..4).prop_map(|names| keys(&names));
    let request = prop_oneof![
        3 => (name(), text()).prop_map(|(key, value)| set(key, value)),
        2 => (name(), -2i64..3).prop_map(|(key, delta)| add(key, delta)),
        2 => (name(), text(), text()).prop_map(|(k, expected, desired)| compare_set(k, expected, desired)),
        1 => (name(), text()).prop_map(|(k, v)| Request::Append { key: k.into(), value: v.into() }),
        1 => vec((name(), text()), 0..3).prop_map(|pairs| Request::MultiSet(
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
        )),
        3 => name().prop_map(|key| Request::Delete(key.into())),
        6 => names().prop_map(Request::Wait),
        2 => (name(), 0i64..4).prop_map(|(key, world_size)| barrier(key, world_size)),
        2 => Just(Request::CancelWait),
        2 => (name(), text()).prop_map(|(key, value)| push(key, value)),
        2 => name().prop_map(|key| Request::QueuePop(key.into())),
    ];
    prop_oneof![
        12 => (1u64..5, request).prop_map(|(client, request)| Step::Ask(ClientId(client), request)),
        1 => (1u64..5).prop_map(|client| Step::Leave(ClientId(client))),
    ]
}

/// The counted bytes, by counting everything anew.
fn bytes_without_waits(table: &Table) -> usize {
    let mut quota = Quota::new(&Limits::default());
    for (key, value) in &table.values {
        quota.charge_key(key.as_bytes().len() + value.as_bytes().len()).unwrap();
    }
    for (key, queue) in &table.queues {
        quota.charge_key(key.as_bytes().len()).unwrap();
        queue.iter().for_each(|value| quota.charge(value.as_bytes().len()).unwrap());
    }
    quota.bytes()
}

proptest! {
    #[test]
    fn each_wait_is_answered_at_most_once_and_none_is_lost(steps in vec(step(), 0..80)) {
        let mut table = table();
        // What each client still waits for.
        let mut open: HashMap<ClientId, usize> = HashMap::new();
        for step in steps {
            match step {
                Step::Ask(client, request) => {
                    match &request {
                        Request::Wait(_) | Request::Barrier { .. } => *open.entry(client).or_default() += 1,
                        Request::CancelWait => { open.remove(&client); }
                        _ => {}
                    }
                    let mut replies = Vec::new();
                    if table.handle(client, request, &mut replies).is_err() {
                        table.disconnect(client);
                        open.remove(&client);
                    }
                    for (to, reply) in replies {
                        if reply == Reply::StopWaiting && open.contains_key(&to) {
                            let left = open.get_mut(&to).unwrap();
                            prop_assert!(*left > 0, "{to:?} was answered without having asked");
                            *left -= 1;
                        } else {
                            prop_assert!(to == client, "{to:?} got {reply:?} unasked");
                        }
                    }
                }
                Step::Leave(client) => {
                    table.disconnect(client);
                    open.remove(&client);
                }
            }
            open.retain(|_, left| *left > 0);
            let waiting = open.values().sum::<usize>();
            prop_assert_eq!(table.waits.len(), waiting);
            prop_assert_eq!(table.quota.keys(), table.values.len() + table.queues.len());
            prop_assert!(table.queues.values().all(|queue| !queue.is_empty()));
            if waiting == 0 {
                prop_assert!(table.waits.is_empty());
                prop_assert_eq!(table.quota.bytes(), bytes_without_waits(&table));
            }
        }
    }

    #[test]
    fn no_wait_stays_open_once_each_of_its_keys_was_set(
        waits in vec((1u64..9, vec(0u8..6, 1..5)), 1..12),
        order in Just([0u8, 1, 2, 3, 4, 5]).prop_shuffle(),
    ) {
        let mut table = table();
        let key = |number: &u8| Key::from(&[*number][..]);
        for (client, names) in &waits {
            let names = names.iter().map(key).collect();
            ask(&mut table, ClientId(*client), Request::Wait(names));
        }
        let mut answered = 0;
        for (time, number) in order.iter().enumerate() {
            let replies = ask(&mut table, A, Request::Set { key: key(number), value: "".into() });
            let due = |names: &[u8]| names.iter().all(|name| order[..=time].contains(name));
            answered += replies.len();
            prop_assert_eq!(answered, waits.iter().filter(|(_, names)| due(names)).count());
        }
        prop_assert!(table.waits.is_empty());
    }
}
