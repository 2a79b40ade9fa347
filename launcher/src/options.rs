//! What an option is. The parser, the `PET_*` defaults, `--help` and the completion scripts are all made from
//! the one table of them, in `table`.

mod table;

pub use self::table::SWITCHBOX_PATHS;
pub(crate) use self::table::{ACCELERATORS, OPTIONS};

/// An option. The discriminant is its place in [`OPTIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Flag {
    Nnodes,
    NprocPerNode,
    RdzvBackend,
    RdzvEndpoint,
    RdzvId,
    RdzvConf,
    Standalone,
    MaxRestarts,
    MonitorInterval,
    StartMethod,
    Role,
    Module,
    NoPython,
    RunPath,
    LogDir,
    Redirects,
    Tee,
    LogLinePrefixTemplate,
    LocalRanksFilter,
    DuplicateStdoutFilters,
    DuplicateStderrFilters,
    EventLogHandler,
    NodeRank,
    MasterAddr,
    MasterPort,
    LocalAddr,
    LogsSpecs,
    NumaBinding,
    SignalsToHandle,
    ShutdownTimeout,
    VirtualLocalRank,
    PrintCompletion,
    Help,
    Precheck,
    NetworkCheck,
    CommPerfTest,
    ExcludeStraggler,
    StragglerRatio,
    CheckCommand,
    CheckTtl,
    CheckMaxRounds,
    NetworkCheckTimeout,
    OnInconclusive,
    OnBadPath,
    TaintFlaky,
    BusyGpuThreshold,
    GpuMemEnforce,
    NodeUnit,
    SwitchboxCheck,
    BoxPairs,
    MinBandwidth,
    MinChannels,
    SwitchboxProbe,
    SwitchboxPath,
    ProbeLoopback,
    Accelerator,
    AutoConfig,
    NumaAffinity,
    GpuSelect,
    GpuSelectOnly,
    GpuTopology,
    PropagateExitCode,
    TrainingPort,
    AutoTunning,
    UcpDeviceType,
    MembindPolicy,
    SaveAtBreakpoint,
    NodeIp,
    RequireUniform,
    RestartCount,
    ReconnectGrace,
    HeartbeatTimeout,
    StateDir,
    TaintReport,
    TaintKey,
    TaintGuard,
    TopologyConfig,
    JobTokenFile,
    TlsCa,
    TlsCert,
    TlsKey,
    Version,
}

/// What kind of value an option takes: argparse's `type`, `choices` and `action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No value; on or off.
    Switch,
    /// Any text.
    Text,
    /// Python's `int()`.
    Int,
    /// Python's `float()`.
    Float,
    /// One of these. As in argparse only the command line is held to it, not the `PET_*` default.
    Choice(&'static [&'static str]),
    /// Items between commas; `,,` is a comma inside an item.
    List,
    /// Pairs of sockets, `0:1 2:4`: takes every following word that looks like one.
    Pairs,
    /// Prints the help and ends.
    Help,
    /// Prints the version and ends.
    Version,
    /// Prints a completion script for one of these shells and ends.
    Completion(&'static [&'static str]),
}

/// Whose option it is. An abbreviation is looked up among torchrun's first, so that ours never make an old
/// line ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Torchrun,
    Ours,
}

/// The groups of `--help`, in the order shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Workers,
    Nodes,
    Master,
    Failures,
    Output,
    Devices,
    Checks,
    Compatibility,
    Information,
}

impl Group {
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Self::Workers => "Workers",
            Self::Nodes => "Nodes and rendezvous",
            Self::Master => "Job master, where this launcher serves it (dlrover-master takes the same)",
            Self::Failures => "Failures and shutdown",
            Self::Output => "Output and logs",
            Self::Devices => "Devices and NUMA",
            Self::Checks => "Checks (DLRover)",
            Self::Compatibility => "Accepted for compatibility",
            Self::Information => "Information",
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct OptionSpec {
    pub(crate) flag: Flag,
    /// The long name with `-`; the same name with `_` is its other spelling.
    pub(crate) long: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    pub(crate) group: Group,
    /// What `--help` calls the value.
    pub(crate) value: &'static str,
    /// The value when neither the command line nor the environment says one; empty: none.
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
}

impl OptionSpec {
    /// Whether `PET_<NAME>` is its default. torchrun reads none for these two, and the others only print.
    pub(crate) const fn has_pet(&self) -> bool {
        let only_prints = matches!(self.kind, Kind::Help | Kind::Version | Kind::Completion(_));
        !only_prints && !matches!(self.flag, Flag::LogsSpecs | Flag::NumaBinding)
    }

    /// `PET_MAX_RESTARTS`.
    pub(crate) fn pet_name(&self) -> String {
        format!("PET_{}", self.long.replace('-', "_").to_ascii_uppercase())
    }

    /// A second long name, which old documents use.
    pub(crate) const fn alias(&self) -> Option<&'static str> {
        match self.flag {
            Flag::RestartCount => Some("restart-counts"),
            _ => None,
        }
    }

    /// Whether this is the option's long name, or the second one, without the `--`, in one of its two spellings.
    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        let is_it = |long: &str| name.len() == long.len() && spells_the_start_of(long, name);
        is_it(self.long) || self.alias().is_some_and(is_it)
    }

    /// Whether one of the two spellings of the long name starts like this.
    pub(crate) fn starts_with(&self, prefix: &[u8]) -> bool {
        spells_the_start_of(self.long, prefix)
    }
}

fn spells_the_start_of(long: &str, prefix: &[u8]) -> bool {
    let long = long.as_bytes();
    prefix.len() <= long.len()
        && (long.starts_with(prefix)
            || long.iter().zip(prefix).all(|(ours, theirs)| match ours {
                b'-' => *theirs == b'_',
                _ => ours == theirs,
            }))
}

impl Flag {
    /// This option's row.
    pub(crate) fn spec(self) -> &'static OptionSpec {
        &OPTIONS[self as usize]
    }

    /// `--max-restarts`.
    pub(crate) fn dashed(self) -> String {
        format!("--{}", self.spec().long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_at_the_place_of_its_flag() {
        for (place, spec) in OPTIONS.iter().enumerate() {
            assert_eq!(spec.flag as usize, place, "{}", spec.long);
        }
        assert_eq!(OPTIONS.len(), Flag::Version as usize + 1);
    }

    #[test]
    fn both_spellings_name_an_option_and_a_mix_does_not() {
        let spec = Flag::NprocPerNode.spec();
        assert!(spec.is_named(b"nproc-per-node"));
        assert!(spec.is_named(b"nproc_per_node"));
        assert!(!spec.is_named(b"nproc-per_node"));
        assert!(spec.starts_with(b"nproc_per"));
        assert!(!spec.starts_with(b"nproc_per-"));
        for name in ["restart-count", "restart_count", "restart-counts", "restart_counts"] {
            assert!(Flag::RestartCount.spec().is_named(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn every_option_that_takes_a_value_says_what_to_call_it() {
        for spec in OPTIONS {
            let takes_value = !matches!(spec.kind, Kind::Switch | Kind::Help | Kind::Version);
            assert_eq!(takes_value, !spec.value.is_empty(), "{}", spec.long);
            assert!(!spec.help.ends_with('.'), "{}", spec.long);
        }
    }
}
