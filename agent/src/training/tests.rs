//! What follows from an order to take stacks.

use super::*;
use rules::NodeRank;
use tokio::sync::mpsc;

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
