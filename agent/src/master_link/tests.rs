//! What is said of a peer that is no job master, and how soon a node is back.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn parts(master: MasterAt) -> LinkParts {
    let (secret, question_state, started) = (NodeSecret::new("of a node"), Arc::default(), Instant::now());
    LinkParts { master, secret, allowed: None, question_state, started }
}

/// The network is back: the current attempt fails because its data is not acknowledged in time, a pause follows,
/// and the next attempt succeeds.
#[test]
fn a_node_reconnects_within_the_gap_that_a_master_waits_for() {
    let gap = connect::ACKNOWLEDGE + connect::CONNECT + LONGEST_PAUSE;
    assert!(gap < rules::liveness::LONGEST_GAP, "{gap:?}");
}

#[tokio::test]
async fn a_torchrun_at_the_address_is_named() {
    let listeners = store::bind_loopback(0).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let _torchruns = store::StoreServer::start(listeners, store::Limits::default()).unwrap();
    let master = MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
    let (events, mut received) = mpsc::channel::<Event>(16);
    let _link = start(parts(master), events);
    let Some(Event::MasterAway { reason }) = received.recv().await else { panic!("it is no master") };
    assert!(
        reason.contains(&format!("the peer at 127.0.0.1:{port} speaks torchrun's rendezvous")),
        "{reason}"
    );
}

/// torch's libuv store answers nothing to the bytes of a gRPC client, and leaves the connection open.
#[tokio::test]
async fn a_torchrun_that_stays_silent_is_named_and_stays_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let _store = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut question = [0; 10];
                stream.read_exact(&mut question).await.unwrap();
                if question == connect::STORE_QUESTION {
                    stream.write_all(&question[6..]).await.unwrap();
                }
                stream.read_to_end(&mut Vec::new()).await
            });
        }
    });
    let master = MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
    let (events, mut received) = mpsc::channel::<Event>(16);
    let _link = start(parts(master), events);
    // After the hint, and when the call has ended.
    for _said in 0..2 {
        let event = timeout(2 * CALL, received.recv()).await;
        let Ok(Some(Event::MasterAway { reason })) = event else { panic!("it is no master") };
        assert!(
            reason.contains(&format!("the peer at 127.0.0.1:{port} speaks torchrun's rendezvous")),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_port_that_accepts_and_says_nothing_is_named_within_seconds() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let master = MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
    let (events, mut received) = mpsc::channel::<Event>(16);
    let _link = start(parts(master), events);
    let event = timeout(CALL - Duration::from_secs(1), received.recv()).await;
    let Ok(Some(Event::MasterAway { reason })) = event else { panic!("it is no master") };
    assert!(
        reason.starts_with(&format!("a process accepts connections at 127.0.0.1:{port} but does not answer")),
        "{reason}"
    );
    drop(listener);
}

#[tokio::test]
async fn a_port_that_only_disconnects_is_not_called_a_torchrun() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let _hangs_up = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let master = MasterAt { host: "127.0.0.1".into(), port, trust: master_proto::trust::Trust::default() };
    let (events, mut received) = mpsc::channel::<Event>(16);
    let _link = start(parts(master), events);
    let Some(Event::MasterAway { reason }) = received.recv().await else { panic!("it is no master") };
    assert!(!reason.contains("torchrun"), "{reason}");
}

#[test]
fn a_pause_is_never_longer_than_given() {
    for _ in 0..100 {
        let pause = jittered(LONGEST_PAUSE);
        assert!(LONGEST_PAUSE / 2 <= pause && pause <= LONGEST_PAUSE, "{pause:?}");
    }
}
