//! Names of functions as people write them.

use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// A longer one stays as it is in the file, cut by the bounds of a dump.
const LONGEST_MANGLED: usize = 4096;

/// Bytes of a readable name. More do not fit into a message; and a mangled name of a few hundred bytes may stand for more
/// than any memory has.
const LONGEST_DEMANGLED: usize = 1024;

/// Pieces of which a readable name is made, some of which may be empty.
const MOST_PIECES: u32 = 8192;

/// The beginning of a text.
#[derive(Default)]
struct Beginning {
    text: String,
    pieces: u32,
    /// There is more of it.
    is_cut: bool,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.pieces += 1;
        let room = LONGEST_DEMANGLED - self.text.len();
        let end = (0..=room.min(piece.len())).rev().find(|end| piece.is_char_boundary(*end)).unwrap_or(0);
        self.text.push_str(&piece[..end]);
        self.is_cut |= end < piece.len() || self.pieces > MOST_PIECES;
        // An error ends the work.
        if self.is_cut { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Of several names for one function the one with the lowest rank is shown: the fewest underscores in front, then the
/// shortest.
pub(super) fn rank(name: &str) -> (usize, usize, &str) {
    // A mangled name begins with one by rule.
    let bare = name.strip_prefix("_Z").unwrap_or(name);
    let underscores = bare.len() - bare.trim_start_matches('_').len();
    let is_internal = usize::from(bare.starts_with("__GI_") || bare.starts_with("__libc_"));
    (underscores + is_internal, name.len(), name)
}

/// The name of a function of C++ without its parameters; any other name without its version.
pub(super) fn demangled(name: &str) -> String {
    // In some tables `memcpy@@GLIBC_2.14`; and `@` separates function and source in a dump.
    let name = name.split('@').next().unwrap_or(name);
    if name.starts_with("_Z") && name.len() <= LONGEST_MANGLED {
        let options = DemangleOptions::new().no_params().no_return_type();
        let mut beginning = Beginning::default();
        let is_whole = Symbol::new(name)
            .is_ok_and(|symbol| symbol.structured_demangle(&mut beginning, &options).is_ok());
        if (is_whole || beginning.is_cut) && !beginning.text.is_empty() {
            return beginning.text;
        }
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_are_readable() {
        assert_eq!(demangled("_ZN4c10d16ProcessGroupGloo4waitEl"), "c10d::ProcessGroupGloo::wait");
        assert_eq!(
            demangled("_ZNSt6vectorIiSaIiEE9push_backERKi"),
            "std::vector<int, std::allocator<int> >::push_back"
        );
        assert_eq!(demangled("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(demangled("_Znonsense"), "_Znonsense");
        assert_eq!(demangled("PyEval_EvalCode"), "PyEval_EvalCode");
    }

    /// Each type is the pair of the one before with itself.
    #[test]
    fn a_name_that_stands_for_a_long_one_is_cut() {
        let mut name = "_Z1fI1PIiiE".to_owned();
        // S_ is P, S0_ the first pair, and each further pair has the next number.
        let number = |at: usize| match at {
            0 => "S0_".to_owned(),
            _ => format!(
                "S{}_",
                char::from_digit(u32::try_from(at).unwrap(), 36).unwrap().to_ascii_uppercase()
            ),
        };
        for at in 0..30 {
            name.push_str(&format!("S_I{0}{0}E", number(at)));
        }
        name.push_str("Evv");
        let began = std::time::Instant::now();
        let found = demangled(&name);
        assert!(found.len() <= LONGEST_DEMANGLED, "{} bytes in {:?}", found.len(), began.elapsed());
        assert!(found.starts_with("f<P<int, int>"), "{found}");
    }

    /// It may be shorter than what there is room for.
    #[test]
    fn a_name_is_cut_before_a_character_that_does_not_fit() {
        let mut beginning = Beginning { text: "x".repeat(LONGEST_DEMANGLED - 1), ..Beginning::default() };
        assert!(fmt::Write::write_str(&mut beginning, "\u{e9}").is_err());
        assert!(beginning.is_cut);
        assert_eq!(beginning.text.len(), LONGEST_DEMANGLED - 1);
    }

    #[test]
    fn the_public_name_is_shown() {
        let shown = |names: &[&'static str]| *names.iter().min_by_key(|name| rank(name)).unwrap();
        assert_eq!(shown(&["__read", "read", "__libc_read", "__GI___libc_read"]), "read");
        assert_eq!(
            shown(&["__clock_nanosleep", "clock_nanosleep@@GLIBC_2.17"]),
            "clock_nanosleep@@GLIBC_2.17"
        );
    }

    proptest::proptest! {
        #[test]
        fn foreign_names_never_panic(name in "_Z[A-Za-z0-9_]{0,200}") {
            demangled(&name);
        }
    }
}
