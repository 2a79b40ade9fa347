//! When workers are sampled, and what follows from an order to take stacks.

use std::fs;

use rules::{
    NodeRank,
    training::{HangSources, OnHang},
};
use tokio::{sync::mpsc, time::timeout};

use super::*;

const GRACE: Duration = Duration::from_secs(1000);

fn sampler(sources: HangSources) -> (TrainingSampler, OsString) {
    let timeout = Duration::from_secs(300);
    let terms = HangTerms { timeout, grace: GRACE, sources, on_hang: OnHang::Dump };
    let mut sampler = TrainingSampler::new(Some(terms), true);
    let mut environment = sampler.prepare(1, None).remove(0);
    let (name, file) = environment.remove(0);
    assert_eq!(name, "DLROVER_PROGRESS_FILE");
    sampler.begin(Round(1));
    (sampler, file)
}

#[tokio::test]
async fn workers_that_touch_no_file_are_not_sampled_before_the_grace_period_is_over() {
    let begun = Instant::now();
    let (mut sampler, file) = sampler(HangSources::default());
    assert!(sampler.next.is_some_and(|next| next >= begun + GRACE), "{sampler:?}");
    let early = timeout(Duration::from_millis(50), sampler.due()).await;
    assert!(early.is_err());
    fs::write(file, "7").expect("the file is there");
    timeout(Duration::from_secs(60), sampler.due()).await.expect("the touch was seen");
    let Some(Event::TrainingSampled { samples, .. }) = sampler.sample() else { panic!("{sampler:?}") };
    assert_eq!(samples[0].step, Some(7));
    // From now on, once a second.
    assert!(sampler.next.is_some_and(|next| next < begun + GRACE), "{sampler:?}");
}

#[tokio::test]
async fn output_and_cpu_time_are_sampled_from_the_start() {
    let begun = Instant::now();
    let (sampler, _) = sampler(HangSources { output: true, cpu: false });
    assert!(sampler.next.is_some_and(|next| next < begun + GRACE), "{sampler:?}");
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
    }
}

/// Until then the node takes no further order.
#[tokio::test]
async fn the_end_of_a_dump_is_an_event_after_its_stacks() {
    // Its workers have ended: this program is no probe.
    let sampler = TrainingSampler::new(None, false);
    let (messages, mut sent) = mpsc::unbounded_channel();
    let (events, mut received) = mpsc::channel::<Event>(1);
    let of = (NodeId("me".into()), "host", "id".to_owned());
    sampler.dump(&assignment(), 7, of, (messages, events));
    assert_eq!(received.recv().await, Some(Event::StacksTaken));
    let mut ranks = Vec::new();
    while let Ok(ToMaster::Stacks(part)) = sent.try_recv() {
        assert_eq!(part.episode, 7);
        ranks.push((part.rank, part.is_all));
    }
    assert_eq!(ranks, [(Rank(0), false), (Rank(1), true)]);
}
