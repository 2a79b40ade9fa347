//! Another `dlrover-run` on PATH: an image often has upstream's console script of the same name.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use crate::{environment::Environment, host::Host};

/// The name that both have.
const NAME: &str = "dlrover-run";

/// Which `dlrover-run` runs when PATH has another one, and this one was found by its name. A path on the command line
/// leaves no doubt.
pub(crate) fn notice(program: &OsStr, env: Environment<'_>, host: &dyn Host) -> Option<String> {
    if program.as_bytes().contains(&b'/') {
        return None;
    }
    let mut found = std::env::split_paths(env.get("PATH")?)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(NAME))
        .filter(|path| host.is_program(path) && !host.is_this_program(path));
    let other = found.next()?;
    let own = host.own_path()?;
    Some(format!(
        "this is {}; PATH has another dlrover-run: {}; uninstall one of them, or start the other by its path",
        own.display(),
        other.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeHost;

    fn told(program: &str, path: &str) -> Option<String> {
        let mut host = FakeHost::new();
        host.programs = vec!["/opt/dlrover/bin/dlrover-run".into(), "/venv/bin/dlrover-run".into()];
        let env = [("PATH".into(), path.into())];
        notice(program.as_ref(), Environment(&env), &host)
    }

    #[test]
    fn another_one_on_path_is_told_of() {
        let text = told(NAME, "/usr/bin:/opt/dlrover/bin:/venv/bin").unwrap();
        assert_eq!(
            text,
            "this is /opt/dlrover/bin/dlrover-run; PATH has another dlrover-run: /venv/bin/dlrover-run; uninstall one \
             of them, or start the other by its path"
        );
    }

    #[test]
    fn one_on_path_or_one_by_its_path_is_not() {
        assert_eq!(told(NAME, "/usr/bin:/opt/dlrover/bin:/opt/dlrover/bin"), None);
        assert_eq!(told("/opt/dlrover/bin/dlrover-run", "/opt/dlrover/bin:/venv/bin"), None);
        assert_eq!(told("./dlrover-run", "/venv/bin"), None);
        assert_eq!(told(NAME, "venv/bin:"), None, "a relative directory");
    }
}
