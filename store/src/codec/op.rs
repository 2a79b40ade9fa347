//! The operation byte of a request, and the magic number of VALIDATE.

/// The four bytes after VALIDATE; a client with others is not a TCPStore client.
pub(super) const MAGIC: u32 = 0x3C85_F7CE;

/// The operation byte of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    Validate,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    CountKeys,
    Delete,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
}

impl Op {
    /// In the order of their byte values, from 0.
    pub const ALL: [Op; 19] = [
        Op::Validate,
        Op::Set,
        Op::CompareSet,
        Op::Get,
        Op::Add,
        Op::Check,
        Op::Wait,
        Op::CountKeys,
        Op::Delete,
        Op::Append,
        Op::MultiGet,
        Op::MultiSet,
        Op::CancelWait,
        Op::Ping,
        Op::QueuePush,
        Op::QueuePop,
        Op::QueueLen,
        Op::ListKeys,
        Op::Barrier,
    ];

    pub(super) fn from_byte(byte: u8) -> Option<Op> {
        Op::ALL.get(usize::from(byte)).copied()
    }

    pub(super) fn byte(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_its_place_in_the_list() {
        for (place, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op.byte()), place);
            assert_eq!(Op::from_byte(op.byte()), Some(op));
        }
        assert_eq!(Op::from_byte(19), None);
        assert_eq!(Op::Barrier.byte(), 0x12);
    }
}
