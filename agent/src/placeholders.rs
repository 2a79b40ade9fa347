//! `${name}` substitution with the rules of Python's `string.Template.safe_substitute`, which torchrun
//! applies to every worker argument and to the log prefix. Bytes in, bytes out: arguments need not be UTF-8.
//!
//! `$name` and `${name}` are replaced when `value` knows the name, `$$` becomes `$`, and everything else
//! stays as it is. A name is `[_A-Za-z][_A-Za-z0-9]*` (ASCII only).

/// Returns `template` with the names that `value` knows replaced.
pub(crate) fn substitute(template: &[u8], value: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut out = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..dollar]);
        rest = &rest[dollar..];
        let (taken, replacement) = reference(rest, &value);
        match replacement {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => out.extend_from_slice(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    out.extend_from_slice(rest);
    out
}

/// The reference at the `$` that `text` begins with: its length in bytes, and its replacement.
fn reference(text: &[u8], value: &impl Fn(&str) -> Option<String>) -> (usize, Option<String>) {
    if text.get(1) == Some(&b'$') {
        return (2, Some("$".into()));
    }
    let braced = text.get(1) == Some(&b'{');
    let start = if braced { 2 } else { 1 };
    let length = name_length(&text[start..]);
    if length == 0 {
        return (1, None);
    }
    let mut end = start + length;
    let name = std::str::from_utf8(&text[start..end]).unwrap_or_default();
    if braced {
        if text.get(end) != Some(&b'}') {
            return (1, None);
        }
        end += 1;
    }
    (end, value(name))
}

fn name_length(text: &[u8]) -> usize {
    match text.first() {
        Some(first) if first.is_ascii_alphabetic() || *first == b'_' => {
            text.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_rank_three(template: &str) -> String {
        let out = substitute(template.as_bytes(), |name| (name == "local_rank").then(|| "3".to_owned()));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn it_agrees_with_safe_substitute() {
        // Each pair was printed by CPython's string.Template(t).safe_substitute(local_rank=3).
        for (template, expected) in [
            ("a${local_rank}b$local_rank", "a3b3"),
            ("$$local_rank $$", "$local_rank $"),
            ("$local_ranks ${other} $other", "$local_ranks ${other} $other"),
            ("$", "$"),
            ("${", "${"),
            ("${local_rank", "${local_rank"),
            ("${local_rank }", "${local_rank }"),
            ("$1 $ x", "$1 $ x"),
            ("$$$local_rank", "$3"),
            ("${}$local_rank.", "${}3."),
        ] {
            assert_eq!(with_rank_three(template), expected, "{template}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_through() {
        let out = substitute(b"\xff$local_rank\xfe", |_| Some("1".into()));
        assert_eq!(out, b"\xff1\xfe");
    }

    proptest::proptest! {
        #[test]
        fn text_without_a_dollar_is_untouched(text in "[^$]*") {
            proptest::prop_assert_eq!(substitute(text.as_bytes(), |_| Some("x".into())), text.as_bytes());
        }

        #[test]
        fn knowing_no_name_only_halves_double_dollars(bytes in proptest::collection::vec(0u8..=255, 0..64)) {
            let out = substitute(&bytes, |_| None);
            proptest::prop_assert!(out.len() <= bytes.len());
        }
    }
}
