//! Limits on what clients may send and keep.

/// Limits for one client, and for all clients together.
///
/// The first three are those of torch 2.15's own server, so that a program that works there works here. The others
/// bound memory that torch's server leaves unbounded; each is far above what a real job uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes.
    pub max_key_bytes: usize,
    /// Longest value in one request, in bytes. APPEND may build a longer one.
    pub max_value_bytes: usize,
    /// Most keys in one CHECK, WAIT, MULTI_GET or MULTI_SET.
    pub max_list_len: usize,
    /// All keys and values of one request together, in bytes.
    pub max_request_bytes: usize,
    /// Most keys in the table, including queues.
    pub max_keys: usize,
    /// The whole table: keys, values, queued values and outstanding waits, in bytes.
    pub max_table_bytes: usize,
    /// Replies that one client has not read yet, in bytes.
    pub max_reply_bytes: usize,
    /// Partial requests and unread replies of all clients together, in bytes. A value that a reply shares with the
    /// table is not counted twice.
    pub max_in_flight_bytes: usize,
    /// Concurrent connections; further ones are closed at once.
    pub max_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_key_bytes: 8 << 10,
            max_value_bytes: 8 << 20,
            max_list_len: 128 << 10,
            max_request_bytes: 256 << 20,
            max_keys: 1 << 20,
            max_table_bytes: 1 << 30,
            max_reply_bytes: 128 << 20,
            max_in_flight_bytes: 1 << 30,
            max_connections: 64 << 10,
        }
    }
}
