//! A `.pt` file: what `torch.save` writes, and `torch.load` reads with `weights_only=True` and `mmap=True`.
//!
//! A record for each storage, in the order in which the pickle names them. What torch also writes but no
//! reader needs, `.data/serialization_id`, is left out.

use super::{
    FormatError, Source,
    meta::Tree,
    pickle,
    plan::Plan,
    zip::{Begin, Zip},
};

/// Plans the file of a tree, which may be a part of the meta's.
pub fn plan(source: &Source<'_>, tree: &Tree) -> Result<Plan, FormatError> {
    let pickled = pickle::tree(source, tree)?;
    let mut zip = Zip::default();
    zip.record("archive/data.pkl", pickled.plan, Begin::Aligned);
    // With these two, torch may compute where the storages are.
    zip.small("archive/.format_version", b"1", Begin::Aligned);
    zip.small("archive/.storage_alignment", b"64", Begin::Aligned);
    zip.small("archive/byteorder", b"little", Begin::Aligned);
    for (number, place) in pickled.storages.iter().enumerate() {
        let storage = source.meta.storages[*place];
        let mut data = Plan::default();
        data.slot(source.data_off + storage.offset, storage.bytes);
        zip.record(&format!("archive/data/{number}"), data, Begin::Aligned);
    }
    zip.small("archive/version", b"3\n", Begin::Aligned);
    Ok(zip.finish())
}

#[cfg(test)]
mod tests;
