//! The queues of one console stream: a bounded queue for each source, served in turns. Pure.

use std::collections::VecDeque;

/// Bytes of one source that may be queued; a larger chunk is queued alone.
pub const SOURCE_BOUND: usize = 1 << 20;

/// The last bytes of a stream that was cut off may exceed the bound, up to this.
pub(crate) const LAST_BYTES_BOUND: usize = 4 << 20;

/// Bytes of the launcher's own messages that may be queued.
pub const MESSAGE_BOUND: usize = 256 << 10;

/// Small chunks of a source are joined up to this size, and written at once.
const JOIN: usize = 64 << 10;

/// The kind of text of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    /// Whole lines: they begin on a new line if another source left its line unfinished.
    Lines,
    /// Unchanged bytes: nothing is inserted for this source.
    Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceId(u64);

/// The launcher's own messages.
const MESSAGES: SourceId = SourceId(0);

#[derive(Debug)]
struct Slot {
    id: SourceId,
    text: Text,
    chunks: VecDeque<Vec<u8>>,
    /// Bytes that are queued or being written.
    queued: usize,
    /// Bytes ever queued, and bytes ever written or discarded.
    queued_total: u64,
    done: u64,
    /// No more bytes will come.
    closed: bool,
}

impl Slot {
    fn new(id: SourceId, text: Text) -> Self {
        Self { id, text, chunks: VecDeque::new(), queued: 0, queued_total: 0, done: 0, closed: false }
    }

    fn take(&mut self, bytes: &[u8], join: bool) {
        self.queued += bytes.len();
        self.queued_total += bytes.len() as u64;
        match self.chunks.back_mut() {
            Some(last) if join && last.len() + bytes.len() <= JOIN => last.extend_from_slice(bytes),
            _ => self.chunks.push_back(bytes.to_vec()),
        }
    }

    fn settle(&mut self, length: usize) {
        self.queued -= length;
        self.done += length as u64;
    }
}

/// What to write next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NextWrite {
    pub(crate) id: SourceId,
    /// Begin with a line end: another source's line is unfinished.
    pub(crate) new_line: bool,
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the source that this write completes.
    settles: usize,
}

#[derive(Debug)]
pub(crate) struct Queues {
    /// The launcher's messages first; the others in the order of their creation.
    slots: Vec<Slot>,
    /// The source of the next write.
    next: usize,
    last_id: u64,
    /// The source that wrote last, when its line is unfinished.
    unfinished: Option<SourceId>,
    dropped_messages: u64,
    /// The console is gone: everything is discarded.
    gone: bool,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            slots: vec![Slot::new(MESSAGES, Text::Lines)],
            next: 0,
            last_id: MESSAGES.0,
            unfinished: None,
            dropped_messages: 0,
            gone: false,
        }
    }
}

impl Queues {
    pub(crate) fn add(&mut self, text: Text) -> SourceId {
        self.last_id += 1;
        let id = SourceId(self.last_id);
        self.slots.push(Slot::new(id, text));
        id
    }

    /// Closes the source; what is queued is still written.
    pub(crate) fn close(&mut self, id: SourceId) {
        if let Some(slot) = self.slot(id) {
            slot.closed = true;
        }
        self.forget_closed();
    }

    /// Queues the bytes unless the source would have more than `bound` queued; `false`: not queued.
    pub(crate) fn offer(&mut self, id: SourceId, bytes: &[u8], bound: usize) -> bool {
        let gone = self.gone;
        let Some(slot) = self.slot(id) else { return true };
        if bytes.is_empty() || gone {
            return true;
        }
        if slot.queued > 0 && slot.queued + bytes.len() > bound {
            return false;
        }
        slot.take(bytes, true);
        true
    }

    /// Queues a message of the launcher. Beyond the bound the oldest are dropped, and counted.
    pub(crate) fn push_message(&mut self, message: &[u8]) {
        if self.gone {
            return;
        }
        let Some(slot) = self.slots.first_mut() else { return };
        while slot.queued + message.len() > MESSAGE_BOUND
            && let Some(oldest) = slot.chunks.pop_front()
        {
            slot.settle(oldest.len());
            self.dropped_messages += 1;
        }
        slot.take(message, false);
    }

    /// The next bytes to write, of each source in turn; pass them to [`Self::written`] afterwards.
    pub(crate) fn next_write(&mut self) -> Option<NextWrite> {
        let count = self.slots.len();
        let index =
            (0..count).map(|step| (self.next + step) % count).find(|i| !self.slots[*i].chunks.is_empty())?;
        self.next = (index + 1) % count;
        let slot = &mut self.slots[index];
        let mut bytes = slot.chunks.pop_front()?;
        if slot.id == MESSAGES {
            // Separate only so that the oldest can be dropped.
            while let Some(next) = slot.chunks.pop_front_if(|next| bytes.len() + next.len() <= JOIN) {
                bytes.extend_from_slice(&next);
            }
        }
        let settles = bytes.len();
        if slot.id == MESSAGES && self.dropped_messages > 0 {
            let mut notice = dropped(self.dropped_messages).into_bytes();
            notice.append(&mut bytes);
            bytes = notice;
            self.dropped_messages = 0;
        }
        let new_line = slot.text == Text::Lines && self.unfinished.is_some_and(|other| other != slot.id);
        Some(NextWrite { id: slot.id, new_line, bytes, settles })
    }

    pub(crate) fn written(&mut self, write: &NextWrite) {
        self.unfinished = (write.bytes.last() != Some(&b'\n')).then_some(write.id);
        if let Some(slot) = self.slot(write.id) {
            slot.settle(write.settles);
        }
        self.forget_closed();
    }

    /// The console is gone: discards everything, also in future.
    pub(crate) fn give_up(&mut self) {
        self.gone = true;
        for slot in &mut self.slots {
            let waiting = slot.chunks.drain(..).map(|chunk| chunk.len()).sum();
            slot.settle(waiting);
        }
        self.forget_closed();
    }

    /// The current positions of all sources, for [`Self::reached`].
    pub(crate) fn positions(&self) -> Vec<(SourceId, u64)> {
        self.slots
            .iter()
            .filter(|slot| slot.done < slot.queued_total)
            .map(|slot| (slot.id, slot.queued_total))
            .collect()
    }

    /// Whether everything up to these positions is written or discarded.
    pub(crate) fn reached(&self, positions: &[(SourceId, u64)]) -> bool {
        let behind =
            |(id, position): &(SourceId, u64)| self.slots.iter().any(|s| s.id == *id && s.done < *position);
        !positions.iter().any(behind)
    }

    fn slot(&mut self, id: SourceId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    fn forget_closed(&mut self) {
        self.slots.retain(|slot| !slot.closed || slot.queued > 0);
        self.next %= self.slots.len();
    }
}

/// The line in place of messages that a full queue had no room for.
fn dropped(count: u64) -> String {
    let messages = if count == 1 { "message" } else { "messages" };
    format!("(the launcher dropped {count} earlier {messages}: the console accepted no output)\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is queued, as the writer would write it.
    fn drained(queues: &mut Queues) -> Vec<String> {
        std::iter::from_fn(|| {
            let write = queues.next_write()?;
            queues.written(&write);
            let mut text = if write.new_line { "\n".to_owned() } else { String::new() };
            text += &String::from_utf8_lossy(&write.bytes);
            Some(text)
        })
        .collect()
    }

    #[test]
    fn sources_are_served_in_turns() {
        let mut queues = Queues::default();
        let (a, b) = (queues.add(Text::Lines), queues.add(Text::Lines));
        let big = "a".repeat(JOIN - 1) + "\n";
        for _ in 0..3 {
            assert!(queues.offer(a, big.as_bytes(), SOURCE_BOUND));
        }
        assert!(queues.offer(b, b"b\n", SOURCE_BOUND));
        queues.push_message(b"hello\n");
        assert!(drained(&mut queues) == ["hello\n", &big, "b\n", &big, &big]);
    }

    #[test]
    fn small_chunks_are_joined() {
        let mut queues = Queues::default();
        let a = queues.add(Text::Lines);
        for _ in 0..3 {
            assert!(queues.offer(a, b"x\n", SOURCE_BOUND));
        }
        assert_eq!(drained(&mut queues), ["x\nx\nx\n"]);
    }

    #[test]
    fn a_full_queue_takes_no_more_until_it_was_written() {
        let mut queues = Queues::default();
        let (a, b) = (queues.add(Text::Raw), queues.add(Text::Raw));
        let half = vec![b'x'; SOURCE_BOUND / 2];
        assert!(queues.offer(a, &half, SOURCE_BOUND));
        assert!(queues.offer(a, &half, SOURCE_BOUND));
        assert!(!queues.offer(a, b"y", SOURCE_BOUND));
        assert!(queues.offer(b, b"y", SOURCE_BOUND), "another source is not held up");
        assert!(queues.offer(a, b"y", LAST_BYTES_BOUND));
        let write = queues.next_write().unwrap();
        assert!(!queues.offer(a, b"y", SOURCE_BOUND), "what is being written still counts");
        queues.written(&write);
        assert!(queues.offer(a, b"y", SOURCE_BOUND));
    }

    #[test]
    fn a_chunk_beyond_the_bound_waits_alone() {
        let mut queues = Queues::default();
        let a = queues.add(Text::Lines);
        let huge = vec![b'x'; SOURCE_BOUND + 1];
        assert!(queues.offer(a, b"x\n", SOURCE_BOUND));
        assert!(!queues.offer(a, &huge, SOURCE_BOUND));
        drained(&mut queues);
        assert!(queues.offer(a, &huge, SOURCE_BOUND));
    }

    #[test]
    fn the_oldest_messages_are_dropped_and_counted() {
        let mut queues = Queues::default();
        let message = |i: usize| format!("{i:0>width$}\n", width = 1023);
        for i in 0..260 {
            queues.push_message(message(i).as_bytes());
        }
        let out = drained(&mut queues).concat();
        let notice = "(the launcher dropped 4 earlier messages: the console accepted no output)\n";
        assert!(out == notice.to_owned() + &(4..260).map(message).collect::<String>());
        queues.push_message(b"again\n");
        assert_eq!(drained(&mut queues), ["again\n"]);
    }

    #[test]
    fn lines_and_messages_begin_on_a_line_of_their_own() {
        let mut queues = Queues::default();
        let (raw, lines) = (queues.add(Text::Raw), queues.add(Text::Lines));
        let mut step = |id, text: &[u8]| {
            assert!(queues.offer(id, text, SOURCE_BOUND));
            drained(&mut queues).concat()
        };
        assert_eq!(step(raw, b"50%"), "50%");
        assert_eq!(step(raw, b"\r60%"), "\r60%");
        assert_eq!(step(lines, b"[0]:x\n"), "\n[0]:x\n");
        assert_eq!(step(lines, b"[0]:long"), "[0]:long");
        assert_eq!(step(lines, b"er\n"), "er\n");
        assert_eq!(step(raw, b"70%"), "70%");
        queues.push_message(b"stopping\n");
        assert_eq!(drained(&mut queues), ["\nstopping\n"]);
    }

    #[test]
    fn a_closed_console_discards_everything() {
        let mut queues = Queues::default();
        let a = queues.add(Text::Lines);
        assert!(queues.offer(a, b"x\n", SOURCE_BOUND));
        queues.push_message(b"x\n");
        let positions = queues.positions();
        assert!(!queues.reached(&positions));
        queues.give_up();
        assert!(queues.reached(&positions));
        assert!(queues.offer(a, &vec![0; 2 * SOURCE_BOUND], SOURCE_BOUND));
        assert_eq!(queues.next_write(), None);
    }

    #[test]
    fn a_closed_source_is_written_to_its_end_and_removed() {
        let mut queues = Queues::default();
        let a = queues.add(Text::Lines);
        assert!(queues.offer(a, b"last\n", SOURCE_BOUND));
        queues.close(a);
        assert_eq!(drained(&mut queues), ["last\n"]);
        assert_eq!(queues.slots.len(), 1);
    }

    #[test]
    fn a_flush_waits_only_for_earlier_bytes() {
        let mut queues = Queues::default();
        let a = queues.add(Text::Lines);
        assert!(queues.reached(&queues.positions()));
        assert!(queues.offer(a, &[b'x'; JOIN], SOURCE_BOUND));
        let positions = queues.positions();
        assert!(queues.offer(a, b"later\n", SOURCE_BOUND));
        let write = queues.next_write().unwrap();
        assert!(!queues.reached(&positions));
        queues.written(&write);
        assert!(queues.reached(&positions));
    }
}
