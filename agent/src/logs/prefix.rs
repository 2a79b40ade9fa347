//! The prefix of a tee'd line.

use rules::{LocalRank, Rank};

use crate::placeholders::substitute;

/// The values of the macros.
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

/// Replaces the macros of the template; unknown ones stay, as in torchrun.
pub(crate) fn prefix(template: &str, names: &Names<'_>) -> Vec<u8> {
    substitute(template.as_bytes(), |name| names.value(name))
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
    fn an_unknown_macro_stays() {
        for template in ["${group_rank} ", "100$", "$", "${", "${rank", "$1", "a$ b", "${a-b}", "é$é"] {
            assert_eq!(of(template), template);
        }
        assert_eq!(of("$$rank $$"), "$rank $");
    }
}
