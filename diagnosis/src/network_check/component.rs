//! The part of a node that a fault of its own names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The part of a node that is at fault, or why the node cannot take part.
///
/// On the wire and in documents it is text. The set is open: the part that did not answer may be a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Component {
    /// `gpu-busy`: other processes use the accelerators of the node.
    GpuBusy,
    /// `gpu-permission`: the launcher may not use as many accelerators of the node as its workers take.
    GpuPermission,
    /// `switchbox-probe`: the switchbox could not be measured, for lack of a tool or of permission.
    SwitchboxProbe,
    /// `switchbox`: the links between the accelerators and the switchbox.
    Switchbox,
    /// `check-command`: the user's own program failed on the node alone. It is unknown which of the two is at
    /// fault.
    CheckCommand,
    /// `probe`: a self-test that was killed or exited before it reached a component.
    Probe,
    /// A part by name: `GPU 3`, `cpu`, `loopback`, or the command that did not answer.
    Other(String),
}

impl Component {
    /// All but [`Self::Other`].
    const NAMED: [Self; 6] = [
        Self::GpuBusy,
        Self::GpuPermission,
        Self::SwitchboxProbe,
        Self::Switchbox,
        Self::CheckCommand,
        Self::Probe,
    ];

    /// The text of documents and of the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::GpuBusy => "gpu-busy",
            Self::GpuPermission => "gpu-permission",
            Self::SwitchboxProbe => "switchbox-probe",
            Self::Switchbox => "switchbox",
            Self::CheckCommand => "check-command",
            Self::Probe => "probe",
            Self::Other(name) => name,
        }
    }

    /// Nothing is known to be broken: the node is excluded and not tainted.
    #[must_use]
    pub fn is_nothing_broken(&self) -> bool {
        matches!(self, Self::GpuBusy | Self::GpuPermission | Self::SwitchboxProbe | Self::CheckCommand)
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for Component {
    fn from(text: &str) -> Self {
        Self::NAMED
            .into_iter()
            .find(|named| named.as_str() == text)
            .unwrap_or_else(|| Self::Other(text.to_owned()))
    }
}

impl From<String> for Component {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Component> for String {
    fn from(component: Component) -> Self {
        component.as_str().to_owned()
    }
}
