//! Slots in directories, as python/case.py writes them, and the files of them.

use std::{
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use checkpoint::format::{
    Format, Source,
    chunks::{Summing, Sums},
    dcp,
    meta::{Meta, Tree},
    plan::{Piece, Plan},
    stream::{Part, Stream},
};

/// Where the regions of a slot are; the skeletons of the tests are shorter than what is between them.
const SKELETON_OFF: u64 = 4096;
const DATA_OFF: u64 = 1 << 32;

/// A range of the slot from this length on is a hole in the slot and becomes one in the file; its checksum
/// is 0.
const HOLE: u64 = 1 << 30;

/// Makes the files of every slot in a directory: in its own directory, or beside it when that has a file `shard`.
/// A file without a name is `file.pt`.
pub fn write_all(root: &Path) {
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    assert!(!folders.is_empty(), "no slots in {}", root.display());
    for folder in folders {
        write(&folder);
    }
}

fn write(folder: &Path) {
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let (skeleton, data) = (read("skeleton.bin"), File::open(folder.join("data.bin")).unwrap());
    let data_len = data.metadata().unwrap().len();
    let meta = Meta::parse(&read("meta.json"), data_len, skeleton.len() as u64);
    let meta = meta.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let source = Source::new(&meta, DATA_OFF, SKELETON_OFF, &skeleton).unwrap();
    let what = String::from_utf8(read("what.txt")).unwrap();
    let (format, rank) = what.split_once(' ').unwrap();
    let format = match format {
        "pt" => Format::Pt,
        "dcp" => Format::Dcp,
        "safetensors" => Format::Safetensors,
        other => panic!("format {other}"),
    };
    let slot = Slot { skeleton: &skeleton, data: &data };
    let files = checkpoint::format::files(format, &source, rank.parse().unwrap());
    let files = files.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for file in &files {
        // The shards of one step lie together.
        let to = if folder.join("shard").exists() { folder.parent().unwrap() } else { folder };
        let path = to.join(file.name.as_deref().unwrap_or("file.pt"));
        if has_hole(&file.plan) {
            slot.write_with_holes(&file.plan, &path)
        } else {
            slot.write(&file.plan, &path)
        }
    }
    if format == Format::Dcp {
        let text: Vec<String> =
            extents(&meta).iter().map(|(offset, length)| format!("[{offset},{length}]")).collect();
        fs::write(folder.join("extents.json"), format!("[{}]", text.join(","))).unwrap();
    }
}

/// Where the items of a .distcp file are.
fn extents(meta: &Meta) -> Vec<(u64, u64)> {
    let Some(Tree::Dict(items)) = meta.tree.get("items") else { panic!("no items") };
    let size = |(_, node): &(Tree, Tree)| match node {
        Tree::Tensor(place) => {
            let tensor = &meta.tensors[*place];
            let bytes = tensor.elements() * tensor.dtype.size();
            dcp::Size::Tensor { dimensions: tensor.shape.len() as u64, bytes }
        }
        value => dcp::Size::Value { weight: dcp::weight(value) },
    };
    let sizes: Vec<dcp::Size> = items.iter().map(size).collect();
    dcp::extents(&sizes).iter().map(|extent| (extent.offset, extent.length)).collect()
}

fn has_hole(plan: &Plan) -> bool {
    plan.pieces().iter().any(|piece| matches!(piece, Piece::Slot { len, .. } if *len >= HOLE))
}

struct Slot<'a> {
    skeleton: &'a [u8],
    data: &'a File,
}

impl Slot<'_> {
    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        if offset < DATA_OFF {
            let start = (offset - SKELETON_OFF) as usize;
            return self.skeleton[start..start + len as usize].to_vec();
        }
        let mut bytes = vec![0; len as usize];
        self.data.read_exact_at(&mut bytes, offset - DATA_OFF).unwrap();
        bytes
    }

    /// Writes a file as the saver does, and holds its checksums against the file.
    fn write(&self, plan: &Plan, path: &Path) {
        let mut file = Vec::new();
        let mut stream = Stream::new(plan);
        while let Some(part) = stream.next(1 << 20) {
            match part {
                Part::Bytes(bytes) => file.extend_from_slice(bytes),
                Part::Slot { offset, len } => {
                    let bytes = self.read(offset, len);
                    stream.copied(&bytes).unwrap();
                    file.extend(bytes);
                }
            }
        }
        let sums: Sums = stream.finish().unwrap();
        assert_eq!(sums.verify_length(file.len() as u64), Ok(()));
        let mut again = Summing::new(sums.chunk_bytes);
        again.update(&file);
        assert_eq!(again.finish(), sums);
        fs::write(path, file).unwrap();
    }

    fn checksum(&self, pieces: &[Piece]) -> [u8; 4] {
        let mut sum = Summing::new(u64::MAX);
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => sum.update(bytes),
                Piece::Slot { len, .. } if *len >= HOLE => return [0; 4],
                Piece::Slot { offset, len } => sum.update(&self.read(*offset, *len)),
                Piece::Crc { .. } => panic!("a checksum of a checksum"),
            }
        }
        sum.finish().crc32.first().copied().unwrap_or(0).to_le_bytes()
    }

    fn write_with_holes(&self, plan: &Plan, path: &Path) {
        let mut file = File::create(path).unwrap();
        for piece in plan.pieces() {
            match piece {
                Piece::Bytes(bytes) => file.write_all(bytes).unwrap(),
                Piece::Slot { len, .. } if *len >= HOLE => {
                    file.seek(SeekFrom::Current(i64::try_from(*len).unwrap())).unwrap();
                }
                Piece::Slot { offset, len } => file.write_all(&self.read(*offset, *len)).unwrap(),
                Piece::Crc { of } => file.write_all(&self.checksum(&plan.pieces()[of.clone()])).unwrap(),
            }
        }
        assert_eq!(file.metadata().unwrap().len(), plan.len());
    }
}
