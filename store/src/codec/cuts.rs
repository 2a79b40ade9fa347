//! Property tests: the result does not depend on where the bytes are cut.

use proptest::{collection::vec, prelude::*};

use super::{
    Key, Request, Value,
    decoder::tests::{bytes_of, decode_pieces},
};
use crate::limits::Limits;

fn key() -> impl Strategy<Value = Key> {
    vec(any::<u8>(), 0..12).prop_map(|bytes| Key::from(&bytes[..]))
}

fn value() -> impl Strategy<Value = Value> {
    vec(any::<u8>(), 0..40).prop_map(Value::from)
}

fn request() -> impl Strategy<Value = Request> {
    let keys = || vec(key(), 0..5);
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Request::Set { key, value }),
        (key(), value(), value()).prop_map(|(key, expected, desired)| Request::CompareSet {
            key,
            expected,
            desired
        }),
        key().prop_map(Request::Get),
        (key(), any::<i64>()).prop_map(|(key, delta)| Request::Add { key, delta }),
        keys().prop_map(Request::Check),
        keys().prop_map(Request::Wait),
        Just(Request::CountKeys),
        key().prop_map(Request::Delete),
        (key(), value()).prop_map(|(key, value)| Request::Append { key, value }),
        keys().prop_map(Request::MultiGet),
        vec((key(), value()), 0..5).prop_map(Request::MultiSet),
        Just(Request::CancelWait),
        any::<u32>().prop_map(|nonce| Request::Ping { nonce }),
        (key(), value()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        key().prop_map(Request::QueuePop),
        key().prop_map(Request::QueueLen),
        Just(Request::ListKeys),
        (key(), any::<i64>()).prop_map(|(key, world_size)| Request::Barrier { key, world_size }),
    ]
}

/// Cuts `bytes` at these places, in any order and possibly beyond the end.
fn cut<'a>(bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.sort_unstable();
    let mut pieces = Vec::new();
    let mut from = 0;
    for place in places {
        pieces.push(&bytes[from..place]);
        from = place;
    }
    pieces.push(&bytes[from..]);
    pieces
}

/// Tight, so that random bytes reach each limit.
const TIGHT: Limits = Limits {
    max_key_bytes: 16,
    max_value_bytes: 64,
    max_list_len: 4,
    max_request_bytes: 400,
    max_keys: 0,
    max_table_bytes: 0,
    max_reply_bytes: 0,
    max_in_flight_bytes: 0,
    max_connections: 0,
};

proptest! {
    #[test]
    fn requests_are_decoded_whatever_the_cuts(
        requests in vec(request(), 0..12),
        places in vec(any::<usize>(), 0..12),
    ) {
        let requests = [vec![Request::Validate], requests].concat();
        let bytes = bytes_of(&requests);
        let pieces = cut(&bytes, &places);
        prop_assert_eq!(decode_pieces(pieces, Limits::default()), (requests, None));
    }

    #[test]
    fn the_result_does_not_depend_on_the_cuts(
        // Mostly small bytes: they are the operations and the plausible lengths.
        tail in vec(prop_oneof![4 => Just(0u8), 3 => 0u8..20, 1 => any::<u8>()], 0..300),
        places in vec(any::<usize>(), 0..8),
        honest in any::<bool>(),
    ) {
        let mut bytes = if honest { bytes_of(&[Request::Validate]) } else { Vec::new() };
        bytes.extend(tail);
        let whole = decode_pieces([&bytes[..]], TIGHT);
        prop_assert_eq!(&decode_pieces(cut(&bytes, &places), TIGHT), &whole);
        prop_assert_eq!(&decode_pieces(bytes.chunks(1), TIGHT), &whole);
    }
}
