//! The store's codec: the boundaries of reads do not matter, and what is decoded is encoded to the same bytes.

use store::{DecodeError, Decoder, Limits, Request};

/// Tight, so that each limit is met by a short input.
fn limits() -> Limits {
    Limits {
        max_key_bytes: 16,
        max_value_bytes: 64,
        max_list_len: 4,
        max_request_bytes: 400,
        ..Limits::default()
    }
}

/// The bytes of one connection.
pub(crate) fn store(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let whole = decoded([bytes]);
    assert_eq!(decoded(bytes.chunks(usize::from(*cut) % 64 + 1)), whole);
    let (requests, _) = &whole;
    let mut again = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut again));
    // Only a list has two encodings: an empty one of anything.
    assert!(bytes.starts_with(&again), "{requests:?}");
    assert_eq!(&decoded([&again[..]]).0, requests);
}

fn decoded<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Request>, Option<DecodeError>) {
    let (mut decoder, mut requests, mut came) = (Decoder::new(limits()), Vec::new(), 0);
    for mut piece in pieces {
        came += piece.len();
        loop {
            match decoder.decode(&mut piece) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
        assert!(piece.is_empty(), "bytes were left though more were asked for");
        assert!(decoder.held_bytes() <= 1024 + 16 * came, "{} bytes of {came}", decoder.held_bytes());
    }
    (requests, None)
}
