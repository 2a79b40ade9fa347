//! The entry of `PYTHONPATH` by which Python finds one of our preludes. `start.py` takes it away again.

/// `PYTHONPATH` with `entry` before what is inherited; `None`: the variable is not set.
///
/// Nothing after a colon would be an entry too, the current directory. So a variable that is set to nothing is the
/// entry twice, which `start.py` knows.
pub(crate) fn with_entry(entry: &[u8], inherited: Option<&[u8]>) -> Vec<u8> {
    match inherited {
        None => entry.to_vec(),
        Some([]) => [entry, entry].join(&b':'),
        Some(inherited) => [entry, inherited].join(&b':'),
    }
}

/// What was inherited by a `path` that [`with_entry`] made of `entry`; a path without that entry is itself.
pub(crate) fn without_entry<'a>(entry: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let Some(rest) = path.strip_prefix(entry) else { return Some(path) };
    match rest.strip_prefix(b":") {
        Some(rest) if rest == entry => Some(&[]),
        Some(rest) => Some(rest),
        None if rest.is_empty() => None,
        // Another entry that begins like it.
        None => Some(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inherited_comes_back() {
        for inherited in [None, Some(&b""[..]), Some(b"/a"), Some(b"/a:/b"), Some(b":/a"), Some(b"/preludes")]
        {
            let path = with_entry(b"/prelude", inherited);
            assert_eq!(path.split(|byte| *byte == b':').next(), Some(&b"/prelude"[..]));
            assert_eq!(without_entry(b"/prelude", &path), inherited, "{}", path.escape_ascii());
        }
        assert_eq!(with_entry(b"/p", None), b"/p");
        assert_eq!(with_entry(b"/p", Some(b"")), b"/p:/p");
        assert_eq!(with_entry(b"/p", Some(b"/a:/b")), b"/p:/a:/b");
    }

    #[test]
    fn a_path_without_the_entry_is_itself() {
        for path in [&b""[..], b"/a", b"/preludes", b"/preludes:/a", b"/a:/prelude"] {
            assert_eq!(without_entry(b"/prelude", path), Some(path));
        }
    }
}
