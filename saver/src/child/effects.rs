//! Effects of the saver, carried out.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use checkpoint::{
    message::{ErrorCode, Level, Refusal, Reply},
    slots::{Connection, Effect, Event, Fds, FileCheck, FileFault, NoRoom, Persist, SlotId},
};

use super::{
    check,
    connection::{Outgoing, SentFd},
    folder,
    input::Outcome,
    persist::{self, Running},
    sending,
    session::{Next, Session},
    slot_file::{SlotFile, SlotFileError, check_room},
    threads::{Lane, Work},
};

impl Session {
    pub(super) fn perform(&mut self, effect: Effect) -> Next {
        match effect {
            Effect::Reply { connection, reply, fds } => self.reply(connection, &reply, &fds),
            Effect::Close { connection } => self.clients.close(connection),
            Effect::AllocateSlots { slots, filled, bytes } => self.allocate(slots, &filled, bytes),
            Effect::FillSlot { slot } => self.fill(slot),
            Effect::FreeSlots { slots } => self.free(&slots),
            Effect::ReadHeader { slot } => self.read_header(slot),
            Effect::Persist(persist) => self.persist(*persist),
            Effect::CancelPersist { persist } => {
                if let Some(running) = self.running.get(&persist) {
                    running.cancel();
                }
            }
            Effect::WriteManifest { dir, manifest, sets_tracker } => {
                let (step, of) = (manifest.step, dir.clone());
                let ended = move |result| Event::ManifestWritten { dir: of.clone(), step, result };
                let (to, failed) = (dir.clone(), ended.clone());
                let run = move || {
                    let mut logs = Vec::new();
                    let result = folder::write(&to, *manifest, sets_tracker, &mut logs);
                    Outcome { event: Some(ended(result)), logs }
                };
                let failed = move |reason| Outcome::from(failed(Err(reason)));
                self.threads.push(Lane::Folder(dir), Work { run: Box::new(run), failed: Arc::new(failed) });
            }
            Effect::ReadFolder { dir, sweep } => {
                let (of, from) = (dir.clone(), dir.clone());
                let failed =
                    move |reason| Outcome::from(Event::FolderRead { dir: of.clone(), result: Err(reason) });
                let run = move || {
                    let mut logs = Vec::new();
                    if sweep {
                        folder::sweep(&from, &mut logs);
                    }
                    let result = folder::read(&from, &mut logs);
                    Outcome { event: Some(Event::FolderRead { dir: from, result }), logs }
                };
                self.threads.push(Lane::Folder(dir), Work { run: Box::new(run), failed: Arc::new(failed) });
            }
            Effect::CheckFiles { check, files } => self.check_files(check, files),
            Effect::CancelCheck { check } => {
                if let Some(is_cancelled) = self.checks.get(&check) {
                    is_cancelled.store(true, Ordering::Relaxed);
                }
            }
            Effect::Remove { dir, step, manifest, files, staged } => {
                let from = dir.clone();
                let failed = move |reason| {
                    let text = format!("cannot remove step {step}: {reason}");
                    Outcome { event: None, logs: vec![(Level::Warn, text)] }
                };
                let run = move || folder::remove(&from, step, manifest, &files, &staged);
                self.threads.push(Lane::Folder(dir), Work { run: Box::new(run), failed: Arc::new(failed) });
            }
            Effect::Listen => self.listen(),
            Effect::Send { send, slot, sent } => self.send_slot(send, slot, sent),
            Effect::RefuseSend { send, reason } => self.refuse_send(send, reason),
            Effect::CancelSend { send } => self.cancel_send(send),
            Effect::Fetch(order) => self.fetch_slot(*order),
            Effect::CancelFetch { fetch } => self.cancel_fetch(fetch),
            Effect::Tell(message) => self.agent.tell(&message),
            Effect::Exit => return Next::Exit,
        }
        Next::Continue
    }

    fn listen(&mut self) {
        let result = sending::listen(&self.ticket, &self.run_id, &self.sender);
        let event = Event::Listening { result: result.map_err(|error| error.to_string()) };
        self.threads.done(Outcome::from(event));
    }

    fn reply(&mut self, connection: Connection, reply: &Reply, fds: &Fds) {
        let outgoing = match self.descriptors(fds) {
            Ok(fds) => Outgoing { line: reply.to_line(), fds },
            Err(text) => {
                let refusal = Reply::Error(Refusal::new(ErrorCode::TooMany, text));
                Outgoing { line: refusal.to_line(), fds: Vec::new() }
            }
        };
        self.clients.send(connection, outgoing);
    }

    fn descriptors(&self, fds: &Fds) -> Result<Vec<SentFd>, String> {
        let slot = |slot: &SlotId| self.slots.get(slot).ok_or_else(|| gone(*slot));
        match fds {
            Fds::None => Ok(Vec::new()),
            Fds::Writable(slots) => {
                slots.iter().map(|id| Ok(SentFd::Writable(Arc::clone(slot(id)?)))).collect()
            }
            Fds::ReadOnly(id) => {
                let opened = slot(id)?.read_only();
                let opened = opened.map_err(|error| format!("cannot open slot {}: {error}", id.0))?;
                Ok(vec![SentFd::ReadOnly(opened)])
            }
        }
    }

    fn allocate(&mut self, slots: Vec<SlotId>, filled: &[SlotId], bytes: u64) {
        let mut to_fill = Vec::new();
        let mut result = Ok(());
        for slot in &slots {
            match SlotFile::new(bytes) {
                Ok(file) => {
                    let file = Arc::new(file);
                    if filled.contains(slot) {
                        to_fill.push(Arc::clone(&file));
                    }
                    self.slots.insert(*slot, file);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let event = move |result: Result<(), NoRoom>| Event::SlotsAllocated { slots: slots.clone(), result };
        let failed = {
            let event = event.clone();
            move |reason| Outcome::from(event(Err(NoRoom { have: None, reason })))
        };
        let run = move || {
            let filled = result.and_then(|()| fill_all(&to_fill));
            Outcome::from(event(filled.map_err(no_room)))
        };
        self.threads.push(Lane::Memory, Work { run: Box::new(run), failed: Arc::new(failed) });
    }

    fn fill(&mut self, slot: SlotId) {
        let ended = move |result| Event::SlotFilled { slot, result };
        let file = self.slots.get(&slot).cloned();
        let fill = move || file.ok_or_else(|| gone(slot))?.fill().map_err(|error| error.to_string());
        self.answer(Lane::Memory, ended, fill);
    }

    fn free(&mut self, slots: &[SlotId]) {
        for slot in slots {
            let Some(file) = self.slots.remove(slot) else { continue };
            file.cancel();
            // In the lane of allocations: the next one looks at the memory that is left when this is free again.
            let work = Work {
                run: Box::new(move || {
                    // One that is being written to disk, or sent, goes with the last that uses it.
                    Arc::into_inner(file).into_iter().for_each(SlotFile::free);
                    Outcome::default()
                }),
                failed: Arc::new(|_| Outcome::default()),
            };
            self.threads.push(Lane::Memory, work);
        }
    }

    fn read_header(&mut self, slot: SlotId) {
        let ended = move |result| Event::HeaderRead { slot, result };
        let file = self.slots.get(&slot).cloned();
        let read = move || {
            let file = file.ok_or_else(|| gone(slot))?;
            persist::read_header(&file).map(|(header, _)| Box::new(header))
        };
        self.answer(Lane::Short, ended, read);
    }

    fn persist(&mut self, persist: Persist) {
        let id = persist.id;
        let ended = move |result| Event::PersistEnded { persist: id, result };
        let running = Arc::new(Running::new(Arc::clone(&self.saves)));
        self.running.insert(id, Arc::clone(&running));
        let file = self.slots.get(&persist.slot).cloned();
        let write = move || {
            let file = file.ok_or_else(|| gone(persist.slot))?;
            persist::write(&file, &persist, &running)
        };
        self.answer(Lane::Write, ended, write);
    }

    fn check_files(&mut self, check: checkpoint::slots::CheckId, files: Vec<FileCheck>) {
        let ended = move |result: Result<Result<(), FileFault>, String>| {
            let result = result.unwrap_or_else(|reason| Err(FileFault::Unreadable(reason)));
            Event::FilesChecked { check, result }
        };
        let is_cancelled = Arc::new(AtomicBool::new(false));
        self.checks.insert(check, Arc::clone(&is_cancelled));
        self.answer(Lane::Check, ended, move || Ok(check::check_until(&files, &is_cancelled)));
    }

    /// Does work whose result becomes an event.
    pub(super) fn answer<T: 'static>(
        &mut self,
        lane: Lane,
        event: impl Fn(Result<T, String>) -> Event + Send + Sync + 'static,
        run: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) {
        let event = Arc::new(event);
        let failed = Arc::clone(&event);
        let work = Work {
            run: Box::new(move || Outcome::from(event(run()))),
            failed: Arc::new(move |reason| Outcome::from(failed(Err(reason)))),
        };
        self.threads.push(lane, work);
    }
}

/// Fills slots, or none: what they need together is looked at first.
fn fill_all(slots: &[Arc<SlotFile>]) -> Result<(), SlotFileError> {
    check_room(slots.iter().map(|slot| slot.missing()).fold(0, u64::saturating_add))?;
    slots.iter().try_for_each(|slot| slot.fill())
}

fn no_room(error: SlotFileError) -> NoRoom {
    let have = match &error {
        SlotFileError::NoMemory { have, .. } => Some(*have),
        _ => None,
    };
    NoRoom { have, reason: error.to_string() }
}

fn gone(slot: SlotId) -> String {
    format!("slot {} no longer exists", slot.0)
}
