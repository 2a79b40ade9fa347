//! What stands before every tee'd line.

use rules::{LocalRank, Rank};

/// What the macros of the template stand for.
#[derive(Debug, Clone)]
pub(crate) struct Names<'a> {
    pub(crate) role: &'a str,
    pub(crate) hostname: &'a str,
    pub(crate) local_rank: LocalRank,
    pub(crate) rank: Rank,
}

impl Names<'_> {
    fn value(&self, name: &str) -> Option<String> {
        match name {
            "role_name" => Some(self.role.to_owned()),
            "local_rank" => Some(self.local_rank.to_string()),
            "rank" => Some(self.rank.to_string()),
            "hostname" => Some(self.hostname.to_owned()),
            _ => None,
        }
    }
}

/// The template with its macros replaced, by the rules of Python's `string.Template.safe_substitute`:
/// `$name`, `${name}`, `$$`; whatever it does not know stays as it is. torchrun: the same.
pub(crate) fn prefix(template: &str, names: &Names<'_>) -> Vec<u8> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar..];
        let (taken, value) = reference(rest, names);
        out.push_str(value.as_deref().unwrap_or(&rest[..taken]));
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out.into_bytes()
}

/// What begins at the `$` at the start of `text`: its length, and what replaces it.
fn reference(text: &str, names: &Names<'_>) -> (usize, Option<String>) {
    let after = &text[1..];
    if after.starts_with('$') {
        return (2, Some("$".into()));
    }
    let braced = after.starts_with('{');
    let start = if braced { 2 } else { 1 };
    let length = text[start..].bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let end = start + length;
    if length == 0 || text.as_bytes()[start].is_ascii_digit() || (braced && !text[end..].starts_with('}')) {
        return (1, None);
    }
    (if braced { end + 1 } else { end }, names.value(&text[start..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(template: &str) -> String {
        let names = Names { role: "default", hostname: "node7", local_rank: LocalRank(1), rank: Rank(9) };
        String::from_utf8(prefix(template, &names)).unwrap()
    }

    #[test]
    fn the_macros_of_torchrun_are_replaced() {
        assert_eq!(of("[${role_name}${local_rank}]:"), "[default1]:");
        assert_eq!(of("$hostname:$rank: "), "node7:9: ");
    }

    #[test]
    fn what_is_unknown_stays_as_it_is() {
        for template in ["${group_rank} ", "100$", "$", "${", "${rank", "$1", "a$ b", "${a-b}", "é$é"] {
            assert_eq!(of(template), template);
        }
        assert_eq!(of("$$rank $$"), "$rank $");
    }
}
