//! Members that lie or flood: what is kept is bounded, and nothing counts that is not complete.

use super::*;
use crate::message::FileSum;

#[test]
fn reports_that_cannot_be_are_refused() {
    let mut job = job(&["a"]);
    let wrong: [fn(&mut ShardFile); 6] = [
        |file| file.shard = 9,
        |file| file.rank = 9,
        |file| file.n_shards = 0,
        |file| file.file = "../../etc/passwd".to_owned(),
        |file| file.crc32 = vec![1; 65],
        |file| {
            file.also =
                vec![FileSum { file: String::new(), bytes: 0, chunk_bytes: 64 << 20, crc32: vec![] }; 17]
        },
    ];
    for change in wrong {
        let mut file = file(5, 0, 2);
        change(&mut file);
        let refused = job.on_persisted(now(1), &"a", &dir(), 5, (0, 0), file);
        assert!(matches!(&refused[..], [Effect::Send { order: Order::Fail { .. }, .. }]), "{refused:?}");
    }
    let refused = job.on_persisted(now(1), &"a", &dir(), u64::MAX, (0, 0), file(5, 0, 2));
    assert!(matches!(&refused[..], [Effect::Send { order: Order::Fail { .. }, .. }]), "{refused:?}");
    assert_eq!(job.under_way().count(), 0);
}

#[test]
fn shards_that_disagree_are_not_one_step() {
    let mut job = job(&["a", "b"]);
    job.persisted("a", 5, 0, 2);
    let reason =
        "shard 1 belongs to a state with n_shards=3, the other shards of the step to one with n_shards=2";
    assert_eq!(job.persisted("b", 5, 1, 3)[0], note_failed(5, reason));
    // Two shards in one file.
    let mut same = file(6, 1, 2);
    same.file = file(6, 0, 2).file;
    job.persisted("a", 6, 0, 2);
    let failed = job.on_persisted(now(5), &"b", &dir(), 6, (0, 0), same);
    assert!(matches!(&failed[0], Effect::Note(Note::Failed { step: 6, .. })), "{failed:?}");
}

#[test]
fn floods_are_bounded() {
    let mut job = job(&["a"]);
    for step in 0..100 {
        job.persisted("a", step, 0, 2);
    }
    assert_eq!(job.under_way().count(), 16);
    for number in 0..1000 {
        let dir = Dir::try_from(format!("/ckpt{number}")).unwrap();
        job.on_persisted(now(1), &"a", &dir, 1, (0, 0), file(1, 0, 2));
        job.on_failed(now(1), &"a", &dir, 1, None, None, "?");
        job.on_committed(now(1), &"a", &dir, 1);
    }
    assert!(job.dirs.len() <= MAX_DIRS);
    let states = |number: u64| {
        let dir = Dir::try_from(format!("/other{number}")).unwrap();
        ShardState { dir, ..shard(0, 2, &(0..1000).collect::<Vec<_>>(), &[u64::MAX]) }
    };
    job.says("a", (0..1000).map(states).collect());
    assert!(job.dirs.len() <= MAX_DIRS);
}

#[test]
fn states_that_cannot_be_are_left_out() {
    let mut job = job(&["a"]);
    let wrong: [fn(&mut ShardState); 4] = [
        |state| state.n_shards = 0,
        |state| state.shard = 2,
        |state| state.rank = 2,
        |state| state.world = u32::MAX,
    ];
    for change in wrong {
        let mut state = shard(0, 2, &[1], &[1]);
        change(&mut state);
        job.says("a", vec![state]);
        assert!(job.dirs.is_empty());
    }
}

#[test]
fn a_node_that_says_another_number_of_shards_spoils_only_memory() {
    let mut job = job(&["a", "b"]);
    job.end_round();
    job.says("b", vec![ShardState { n_shards: 7, ..copy(2, &[5], &[]) }]);
    job.says("a", vec![copy(0, &[5], &[])]);
    assert_eq!(job.begin_round(now(9), 1, 4, members(&["a", "b"])), (vec![], vec![]));
}
