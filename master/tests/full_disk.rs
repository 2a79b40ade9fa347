//! A disk that is full. Alone in its process: the limit is the process's.

mod common;

use common::{LIMIT, Master, request, terms};
use master::{JournalError, MasterError};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SigHandler, Signal, signal},
};
use rules::node::JoinRequest;
use tokio::time::timeout;

#[tokio::test]
async fn a_master_exits_on_a_full_disk_and_recovers_when_there_is_space() {
    // SAFETY: ignoring a signal runs no code of ours in a handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let master = Master::with_state(dir.path());
    let mut a = master.subscribe("a").await;
    a.join(2, None).await;
    setrlimit(Resource::RLIMIT_FSIZE, 2048, most).unwrap();
    // It is not answered for what could not be kept.
    let until_full = async {
        let mut after = 0;
        loop {
            let role = "r".repeat(200);
            after += 1;
            let join = JoinRequest { role, after: Some(rules::Round(after)), ..request("a", terms(2, 2)) };
            if let Err(status) = a.join_as(join).await {
                return status;
            }
        }
    };
    let _connection_or_call_broken_off = timeout(LIMIT, until_full).await.unwrap();
    let refused = master.ended().await.unwrap_err();
    setrlimit(Resource::RLIMIT_FSIZE, most, most).unwrap();
    assert!(matches!(&refused, MasterError::Journal(JournalError::Write { .. })), "{refused:?}");
    let words = refused.to_string();
    assert!(
        words.contains("journal: ")
            && words.contains("; the master stops")
            && words.contains("Free disk space"),
        "{words}"
    );
    let master = Master::with_state(dir.path());
    let _a = master.subscribe("a").await;
    assert!(master.logs("recovered job job"), "what fitted is not lost");
}
