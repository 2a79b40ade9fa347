//! The name of a rank's file: `00003-00008.stacktrace`, rank and size of the world.

use std::fmt;

/// The end of the name of a dump, upstream's and ours.
pub const EXTENSION: &str = ".stacktrace";

/// The name of a dump. The order is that of ranks, also above 99999, where the order of the texts is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DumpName {
    pub rank: u32,
    pub world_size: u32,
}

/// Why a file's name is not that of a dump.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name `{0}` is not RANK-WORLDSIZE.stacktrace")]
    Form(String),
    #[error("the name `{name}` has rank {rank}, which is not below the world size {world_size}")]
    RankOutside { name: String, rank: u32, world_size: u32 },
}

impl DumpName {
    /// Reads the name of a file, without its directory.
    ///
    /// # Errors
    /// When it has another form, or when the rank is not below the size of the world.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let form = || NameError::Form(name.chars().take(80).collect());
        let (rank, world_size) =
            name.strip_suffix(EXTENSION).and_then(|numbers| numbers.split_once('-')).ok_or_else(form)?;
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_number).ok_or_else(form)
        };
        let (rank, world_size) = (number(rank)?, number(world_size)?);
        if rank >= world_size {
            return Err(NameError::RankOutside { name: name.to_owned(), rank, world_size });
        }
        Ok(Self { rank, world_size })
    }
}

/// The name, with five digits at least.
impl fmt::Display for DumpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:05}-{:05}{EXTENSION}", self.rank, self.world_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_and_read() {
        for (rank, world_size, name) in [
            (3, 8, "00003-00008.stacktrace"),
            (99_999, 131_072, "99999-131072.stacktrace"),
            (100_000, 131_072, "100000-131072.stacktrace"),
        ] {
            assert_eq!(DumpName { rank, world_size }.to_string(), name);
            assert_eq!(DumpName::parse(name), Ok(DumpName { rank, world_size }));
        }
    }

    #[test]
    fn the_order_is_that_of_ranks() {
        let name = |name| DumpName::parse(name).unwrap();
        assert!(name("99999-131072.stacktrace") < name("100000-131072.stacktrace"));
    }

    #[test]
    fn other_names_are_refused() {
        for name in
            ["", "py_stack.svg", "3.stacktrace", "a-8.stacktrace", "+3-8.stacktrace", "-8.stacktrace", "3-8"]
        {
            assert_eq!(DumpName::parse(name), Err(NameError::Form(name.to_owned())));
        }
        let outside = DumpName::parse("8-8.stacktrace").unwrap_err();
        assert_eq!(
            outside.to_string(),
            "the name `8-8.stacktrace` has rank 8, which is not below the world size 8"
        );
    }
}
