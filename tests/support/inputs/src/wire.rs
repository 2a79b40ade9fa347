//! The conversion between the wire's messages and ours.

use master_proto::{
    convert::{
        CheckpointMessage, Join, StreamMessage, check_report, checkpoint_report, detail_report, join_request,
        resume_request, sender,
    },
    pb,
};
use prost::Message;
use rules::{check_order::CheckReport, job::Event};

/// The number of message kinds here.
pub(crate) const KINDS: u8 = 12;

/// One message of one kind. What is accepted can be encoded, and is accepted again unchanged.
pub(crate) fn gate(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    if kind % KINDS == 7 {
        let Ok(Ok(pushed)) = pb::StreamMessage::decode(bytes).map(StreamMessage::try_from) else { return };
        // What is only sent and never validated may be cut once.
        let again = StreamMessage::try_from(pb::StreamMessage::from(pushed))
            .expect("what was let in is let in again");
        let third = StreamMessage::try_from(pb::StreamMessage::from(again.clone()));
        assert_eq!(third.as_ref(), Ok(&again));
        return;
    }
    match event(*kind, bytes) {
        Some(Event::Joined(request)) => {
            let again = Join::try_from(join_request(request.clone())).map(|join| join.from_peer(String::new));
            assert_eq!(again, Ok(request));
        }
        Some(Event::Resumed { request, claim }) => {
            let again = resume_request((request.clone(), claim.clone()).into(), String::new);
            assert_eq!(again, Ok(Event::Resumed { request, claim }));
        }
        Some(Event::CheckReported { node, report }) => {
            let again = Event::try_from(check_report(node.0.clone(), report.clone(), false));
            assert_eq!(again, Ok(Event::CheckReported { node, report }));
        }
        Some(Event::CheckProgressed { node, at, probed }) => {
            let report = CheckReport { at, probed: probed.clone(), compute: None };
            let again = Event::try_from(check_report(node.0.clone(), report, true));
            assert_eq!(again, Ok(Event::CheckProgressed { node, at, probed }));
        }
        Some(Event::FailureDetailed { node, round, detail }) => {
            let again = Event::try_from(detail_report(node.0.clone(), round, (*detail).clone()));
            assert_eq!(again, Ok(Event::FailureDetailed { node, round, detail }));
        }
        Some(Event::CheckpointReported { node, report }) => {
            let again = CheckpointMessage::try_from(checkpoint_report(node.0.clone(), (*report).clone()));
            assert_eq!(again, Ok(CheckpointMessage::Report { node, report }));
        }
        _ => {}
    }
}

/// The event of a node's message; `None` when it is rejected.
pub(crate) fn event(kind: u8, bytes: &[u8]) -> Option<Event> {
    let peer = || "10.0.0.9".to_owned();
    match kind % KINDS {
        0 => Some(Event::Joined(Join::try_from(message::<pb::JoinRequest>(bytes)?).ok()?.from_peer(peer))),
        1 => resume_request(message(bytes)?, peer).ok(),
        2 => Event::try_from(message::<pb::HostingReport>(bytes)?).ok(),
        3 => Event::try_from(message::<pb::InventoryReport>(bytes)?).ok(),
        4 => Event::try_from(message::<pb::CheckReport>(bytes)?).ok(),
        5 => Event::try_from(message::<pb::FailureReport>(bytes)?).ok(),
        6 => Event::try_from(message::<pb::EndReport>(bytes)?).ok(),
        8 => Some(Event::Subscribed { node: sender(message::<pb::SubscribeRequest>(bytes)?.node_id).ok()? }),
        9 => Some(Event::EndAcknowledged {
            node: sender(message::<pb::EndAcknowledgement>(bytes)?.node_id).ok()?,
        }),
        10 => Event::try_from(message::<pb::DetailReport>(bytes)?).ok(),
        11 => match CheckpointMessage::try_from(message::<pb::CheckpointReport>(bytes)?).ok()? {
            CheckpointMessage::Report { node, report } => Some(Event::CheckpointReported { node, report }),
            CheckpointMessage::Progress { .. } => None,
        },
        _ => None,
    }
}

fn message<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    M::decode(bytes).ok()
}
