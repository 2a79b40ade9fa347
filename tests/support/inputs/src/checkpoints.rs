//! What training processes, the saver of a node and checkpoint directories say.

use checkpoint::{
    format::meta::Meta,
    header::{HEADER_LEN, Header},
    manifest::{Folder, Manifest, Part, Tracker, candidates},
    message::{Dir, Format, FromSaver, Request, ToSaver},
};

/// A line of a client, or of agent and saver. What is read is written as it was read.
pub(crate) fn line(bytes: &[u8]) {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(Request::parse(request.to_line().as_bytes()).ok(), Some(request));
    }
    if let Ok(message) = ToSaver::parse(bytes) {
        assert_eq!(ToSaver::parse(message.to_line().as_bytes()).ok(), Some(message));
    }
    if let Ok(message) = FromSaver::parse(bytes) {
        assert_eq!(FromSaver::parse(message.to_line().as_bytes()).ok(), Some(message));
    }
}

/// A manifest, or a tracker. What may be loaded lies in the directory, or where the manifest says.
pub(crate) fn manifest(bytes: &[u8]) {
    let mut folder = Folder { tracker: Tracker::parse(bytes), ..Folder::default() };
    if let Ok(manifest) = Manifest::parse(7, bytes) {
        assert_eq!(Manifest::parse(7, manifest.to_json().as_bytes()).ok().as_ref(), Some(&manifest));
        folder.manifests.insert(7, manifest);
    }
    let dir = Dir::try_from("/ckpt").expect("an absolute path");
    let part = Part { rank: 1, world: 2, shard: 1, n_shards: 2, format: Format::Pt };
    let (found, _) = candidates(&dir, &folder, part, None, None);
    for candidate in found {
        assert!(candidate.path.starts_with('/'), "{candidate:?}");
    }
}

/// The head of a slot, and after it the description of the state that the head announces.
pub(crate) fn slot(bytes: &[u8]) {
    let Some((first, meta)) = bytes.split_at_checked(HEADER_LEN) else { return };
    let slot_len = 1 << 20;
    if let Ok(header) = Header::parse(first, slot_len) {
        for range in [header.meta_range(), header.skeleton_range(), header.data_range()] {
            assert!(range.is_empty() || range.start <= range.end && range.end <= slot_len, "{range:?}");
        }
    }
    for (data_len, skeleton_len) in [(0, 0), (4096, 64), (u64::MAX, u64::MAX)] {
        let Ok(meta) = Meta::parse(meta, data_len, skeleton_len) else { continue };
        for storage in &meta.storages {
            let end = storage.offset.checked_add(storage.bytes);
            assert!(end.is_some_and(|end| end <= data_len), "{storage:?} of {data_len}");
        }
    }
}
