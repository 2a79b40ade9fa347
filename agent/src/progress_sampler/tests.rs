//! When workers are sampled, and what follows from an order to take stacks.

use std::fs;

use rules::{
    NodeRank,
    hang::{HangSources, OnHang},
};
use tokio::sync::mpsc;

use super::*;

fn sampler() -> (ProgressSampler, OsString) {
    let second = Duration::from_secs(1);
    let sources = HangSources::default();
    let terms = HangTerms { timeout: second, grace: second, sources, on_hang: OnHang::Dump };
    let mut sampler = ProgressSampler::new(Some(terms), true);
    let mut environment = sampler.prepare(1, None).remove(0);
    let (name, file) = environment.remove(0);
    assert_eq!(name, "DLROVER_PROGRESS_FILE");
    sampler.begin(Round(1));
    (sampler, file)
}

/// A real wait of the shortest interval, and a real file.
#[tokio::test]
async fn a_step_is_sampled_and_the_next_sample_is_due_soon() {
    let (mut sampler, file) = sampler();
    fs::write(file, "7").expect("the file is there");
    sampler.due().await;
    let Some(Event::ProgressSampled { samples, .. }) = sampler.sample() else { panic!("{sampler:?}") };
    assert_eq!(samples[0].step, Some(7));
    sampler.due().await;
    assert!(sampler.sample().is_some());
    sampler.end();
    assert!(sampler.next.is_none(), "{sampler:?}");
}

fn assignment() -> Assignment {
    Assignment {
        round: Round(0),
        node_rank: NodeRank(0),
        nodes: 1,
        local_world_size: 2,
        role: "default".into(),
        first_rank: 0,
        world_size: 2,
        first_role_rank: 0,
        role_world_size: 2,
        master_addr: "127.0.0.1".into(),
        master_port: 29500,
        restore_from_disk: false,
        fence: None,
        restore: Vec::new(),
    }
}

/// Until then the node takes no further order.
#[tokio::test]
async fn the_end_of_a_dump_is_an_event_after_its_stacks() {
    // Its workers have ended: this program is no probe.
    let sampler = ProgressSampler::new(None, false);
    let (messages, mut sent) = mpsc::unbounded_channel();
    let (events, mut received) = mpsc::channel::<Event>(1);
    let of = (NodeId("me".into()), "host", "id".to_owned());
    sampler.dump(&assignment(), 7, Vec::new(), of, (messages, events));
    assert_eq!(received.recv().await, Some(Event::StacksTaken));
    let mut ranks = Vec::new();
    while let Ok(ToMaster::Stacks(part)) = sent.try_recv() {
        assert_eq!(part.episode, 7);
        ranks.push((part.rank, part.is_all));
    }
    assert_eq!(ranks, [(Rank(0), false), (Rank(1), true)]);
}
