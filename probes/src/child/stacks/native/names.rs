//! Names of functions as people write them.

use cpp_demangle::{DemangleOptions, Symbol};

/// A longer one stays as it is in the file, cut by the bounds of a dump.
const LONGEST_MANGLED: usize = 4096;

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
        let demangled = Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok());
        if let Some(demangled) = demangled.filter(|text| !text.is_empty()) {
            return demangled;
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
