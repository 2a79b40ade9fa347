//! Rings that work, and rings that fail.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use diagnosis::network_check::Probed;
use probes::{Listener, Measured, RingMode, RingPlan, start_ring};
use tokio::sync::mpsc;

use crate::{
    peer,
    support::{TIMEOUT, in_time, listeners, plans, ports, program},
};

const TOTAL: u64 = 2 * ((64 << 10) + (1 << 20) + (16 << 20));

async fn run(plans: Vec<RingPlan>, listeners: &[Listener]) -> Vec<Measured> {
    let handles: Vec<_> = plans
        .into_iter()
        .zip(listeners)
        .map(|(plan, listener)| start_ring(plan, listener, &program(), None))
        .collect();
    let mut ends = Vec::new();
    for handle in handles {
        ends.push(in_time(handle.measured()).await.unwrap());
    }
    ends
}

async fn passes(members: usize, mode: RingMode) -> Vec<Measured> {
    let listeners = listeners(members);
    let ends = run(plans(&ports(&listeners), 5, mode), &listeners).await;
    for end in &ends {
        let Probed::Passed { comm, latency, bytes_per_second } = &end.probed else { panic!("{end:?}") };
        assert!(*comm > Duration::ZERO && *latency > Duration::ZERO && *bytes_per_second > 0, "{end:?}");
    }
    ends
}

#[tokio::test]
async fn a_pair_passes() {
    passes(2, RingMode::Check).await;
}

#[tokio::test]
async fn a_triple_passes() {
    passes(3, RingMode::Check).await;
}

#[tokio::test]
async fn an_all_reduce_gives_the_sum_for_even_and_uneven_chunks() {
    for (members, bytes) in [(2, 4 << 20), (3, 1_000_004), (5, 12)] {
        for end in passes(members, RingMode::AllReduce { bytes, repeats: 3 }).await {
            let reduced = end.all_reduced.unwrap();
            assert_eq!((reduced.bytes, reduced.members), (bytes, members));
            assert!(reduced.seconds_median > 0.0 && reduced.bus_bandwidth() > 0.0);
        }
    }
}

#[tokio::test]
async fn a_late_member_is_waited_for() {
    let listeners = listeners(2);
    let [first, second] = plans(&ports(&listeners), 6, RingMode::Check).try_into().unwrap();
    let (progress, mut messages) = mpsc::channel(1);
    let early = start_ring(first, &listeners[0], &program(), Some(progress));
    // It runs, and has no peer.
    assert!(matches!(
        in_time(messages.recv()).await,
        Some(Probed::Unfinished { bytes: 0, total: TOTAL, .. })
    ));
    let late = start_ring(second, &listeners[1], &program(), None);
    for end in [early.end(), late.end()] {
        assert!(matches!(in_time(end).await.unwrap(), Probed::Passed { .. }));
    }
}

#[tokio::test]
async fn unknown_peers_and_those_of_an_earlier_round_are_rejected_and_the_pair_passes() {
    let listeners = listeners(2);
    let [port, _] = ports(&listeners).try_into().unwrap();
    // These wait in the queue before any probe runs: one of another round, a silent one, one with invalid bytes, one
    // that has disconnected.
    let earlier = thread::spawn(move || peer::connect(port, 6));
    let _silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut nonsense = TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Write::write_all(&mut nonsense, &[b'x'; 100]).unwrap();
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let ends = run(plans(&ports(&listeners), 7, RingMode::Check), &listeners).await;
    assert!(ends.iter().all(|end| matches!(end.probed, Probed::Passed { .. })), "{ends:?}");
    // It was answered, or came too late.
    assert!(matches!(earlier.join().unwrap().1, Some(3) | None));
}

#[tokio::test]
async fn a_cancelled_round_does_not_disturb_the_next() {
    let listeners = listeners(2);
    let [alone, _] = plans(&ports(&listeners), 8, RingMode::Check).try_into().unwrap();
    // Its connection waits at the other's listener, which does not accept.
    let (progress, mut messages) = mpsc::channel(1);
    let handle = start_ring(alone, &listeners[0], &program(), Some(progress));
    in_time(messages.recv()).await;
    handle.cancel();
    assert!(matches!(in_time(handle.end()).await.unwrap(), Probed::Unfinished { bytes: 0, .. }));
    let ends = run(plans(&ports(&listeners), 9, RingMode::Check), &listeners).await;
    assert!(ends.iter().all(|end| matches!(end.probed, Probed::Passed { .. })), "{ends:?}");
}

/// A pair whose second member is reached through a proxy. `spoilt`: a byte to the first member, on the connection
/// that it dialled.
async fn through_a_proxy(spoilt: usize) -> [Probed; 2] {
    let listeners = listeners(2);
    let wire = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listeners[1].port();
    let mut plans = plans(&ports(&listeners), 10, RingMode::Check);
    plans[0].ports[1] = wire.local_addr().unwrap().port();
    let carrying = thread::spawn(move || {
        let (near, _) = wire.accept().unwrap();
        let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || peer::proxy(near, far, None));
        peer::proxy(back.0, back.1, Some(spoilt));
    });
    let ends = run(plans, &listeners).await;
    carrying.join().unwrap();
    ends.into_iter().map(|end| end.probed).collect::<Vec<_>>().try_into().unwrap()
}

#[tokio::test]
async fn one_wrong_byte_fails_both_ends() {
    // Hello, ready, 32 round trips, the first size and its confirmation, and part of the next.
    let before = 48 + 1 + 32 * 64 + (64 << 10) + 1;
    let [first, second] = through_a_proxy(before + 70_000).await;
    let Probed::Failed { reason } = first else { panic!("{first:?}") };
    assert!(reason.starts_with("wrong bytes from peer 127.0.0.1:"), "{reason}");
    assert!(reason.contains("in a transfer of 1048576 bytes, at offset 70000, "), "{reason}");
    let Probed::Failed { reason } = second else { panic!("{second:?}") };
    assert!(reason.contains("received wrong bytes from this node"), "{reason}");
}

#[tokio::test]
async fn one_wrong_byte_in_a_round_trip_is_detected() {
    let [first, _] = through_a_proxy(48 + 1 + 64 + 3).await;
    let Probed::Failed { reason } = first else { panic!("{first:?}") };
    assert!(reason.contains("in a transfer of 64 bytes, at offset 3, "), "{reason}");
}

#[tokio::test]
async fn a_silent_peer_is_waited_for_until_cancelled() {
    let listeners = listeners(1);
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let ports = [listeners[0].port(), silent.local_addr().unwrap().port()];
    let plan = plans(&ports, 11, RingMode::Check).remove(0);
    let handle = start_ring(plan, &listeners[0], &program(), None);
    let _accepted = tokio::task::spawn_blocking(move || silent.accept().unwrap()).await.unwrap();
    handle.cancel();
    let end = in_time(handle.end()).await.unwrap();
    let Probed::Unfinished { bytes: 0, total: TOTAL, elapsed, idle } = end else { panic!("{end:?}") };
    assert_eq!(elapsed, idle);
}

#[tokio::test]
async fn a_cancelled_transfer_reports_its_progress() {
    let listeners = listeners(2);
    let mut plans = plans(&ports(&listeners), 12, RingMode::Check);
    let wire = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listeners[1].port();
    plans[0].ports[1] = wire.local_addr().unwrap().port();
    // A proxy that forwards some of the bytes, and the others at the end of the test.
    let (_end, ended) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        let (near, _) = wire.accept().unwrap();
        let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut back = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || peer::proxy(near, far, None));
        let mut buffer = [0; 2048];
        let mut forwarded = 0;
        while let Ok(length @ 1..) = std::io::Read::read(&mut back.0, &mut buffer) {
            if std::io::Write::write_all(&mut back.1, &buffer[..length]).is_err() {
                break;
            }
            forwarded += length;
            if forwarded > 32 << 10 {
                let _at_the_end = ended.recv();
            }
        }
    });
    let (progress, mut messages) = mpsc::channel(64);
    let mut plans = plans.into_iter();
    let mut start =
        |index: usize, progress| start_ring(plans.next().unwrap(), &listeners[index], &program(), progress);
    let (slow, other) = (start(0, Some(progress)), start(1, None));
    // The other link forwards all of its bytes first.
    let seen = loop {
        match in_time(messages.recv()).await {
            Some(Probed::Unfinished { bytes, .. }) if bytes > TOTAL / 2 + 10_000 => break bytes,
            Some(_) => {}
            None => panic!("ended"),
        }
    };
    slow.cancel();
    other.cancel();
    let end = in_time(slow.end()).await.unwrap();
    let Probed::Unfinished { bytes, total: TOTAL, elapsed, idle } = end else { panic!("{end:?}") };
    assert!(bytes >= seen && bytes < TOTAL, "{bytes}");
    assert!(idle < elapsed, "{idle:?} {elapsed:?}");
    // Its peer is gone, but it is cancelled too, which is what it reports.
    let end = in_time(other.end()).await.unwrap();
    assert!(matches!(end, Probed::Unfinished { .. }), "{end:?}");
}

#[tokio::test]
async fn a_missing_peer_is_named() {
    let listeners = listeners(2);
    let [here, there] = ports(&listeners).try_into().unwrap();
    let [mut plan, _] = plans(&[here, there], 13, RingMode::Check).try_into().unwrap();
    plan.connect_timeout = Duration::from_millis(100);
    let [first, second] = listeners.try_into().unwrap();
    drop(second);
    let end = in_time(start_ring(plan, &first, &program(), None).end()).await.unwrap();
    let reason = format!("cannot connect to peer 127.0.0.1:{there}: connection refused");
    assert_eq!(end, Probed::Failed { reason });
}

#[tokio::test]
async fn a_peer_that_closes_early_is_named() {
    let listeners = listeners(1);
    let wire = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let there = wire.local_addr().unwrap().port();
    let here = listeners[0].port();
    let plan = plans(&[here, there], 14, RingMode::Check).remove(0);
    let handle = start_ring(plan, &listeners[0], &program(), None);
    let met = tokio::task::spawn_blocking(move || (peer::take(&wire, 14), peer::connect(here, 14)));
    let (taken, (_knocked, answer)) = met.await.unwrap();
    assert_eq!(answer, Some(2), "welcome");
    drop(taken);
    let end = in_time(handle.end()).await.unwrap();
    let Probed::Failed { reason } = end else { panic!("{end:?}") };
    let peer = format!("peer 127.0.0.1:{there} closed the connection early");
    assert!(reason.starts_with(&peer), "{reason}");
}

#[tokio::test]
async fn an_invalid_ring_is_refused() {
    let listeners = listeners(1);
    let plan = RingPlan {
        me: 0,
        members: vec!["127.0.0.1".into()],
        ..plans(&ports(&listeners), 1, RingMode::Check).remove(0)
    };
    let end = in_time(start_ring(plan, &listeners[0], &program(), None).end()).await.unwrap();
    assert_eq!(
        end,
        Probed::Failed {
            reason: "invalid ring: place 0 of 1, 1 port; this is a bug: report it with this message".into()
        }
    );
}

#[test]
fn a_manual_pair_needs_one_port_only() {
    let listener = Listener::bind(None, 0).unwrap();
    let address = format!("127.0.0.1:{}", listener.port());
    let door = probes::listen_for_pair(&listener).unwrap();
    let dialling =
        thread::spawn(move || [1, 2].map(|seed| probes::dial_pair(&address, seed, TIMEOUT).unwrap()));
    let here = [None, Some(TIMEOUT)].map(|within| door.check(within, TIMEOUT).unwrap());
    for end in here.iter().chain(&dialling.join().unwrap()) {
        assert!(end.sent_per_second > 0 && end.received_per_second > 0 && end.verified == TOTAL, "{end:?}");
    }
}

#[test]
fn a_manual_pair_waits_no_longer_than_its_timeout() {
    let limit = Duration::from_secs(1);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let error = probes::dial_pair(&address, 1, limit).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "no `dlrover-diag pair --listen` of this version answers at {address}: the program there did not answer \
             within 1 s; it may be busy with another check"
        )
    );
    let greeter = thread::spawn(move || {
        // The first is from the attempt above and was never accepted.
        let connections = [silent.accept().unwrap(), silent.accept().unwrap()];
        connections.map(|(mut stranger, _)| {
            let _gone = stranger.write_all(b"SSH-2.0-x\r\n");
            stranger
        })
    });
    let error = probes::dial_pair(&address, 1, TIMEOUT).unwrap_err().to_string();
    assert!(error.ends_with("the program there speaks another protocol"), "{error}");
    drop(greeter.join().unwrap());

    let listener = Listener::bind(None, 0).unwrap();
    let door = probes::listen_for_pair(&listener).unwrap();
    let error = door.check(Some(limit), limit).unwrap_err().to_string();
    assert_eq!(error, "no peer connected within 1 s");
}
