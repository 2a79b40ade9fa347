//! The links of a model of accelerator: whether its pairs should have a link, where none of them shows one.

use super::Path;

/// The links of a model, and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Equipment<'a> {
    /// A link from each to each, of this kind.
    Link(Path, &'a str),
    /// The host's bus. Some take a bridge between two cards, which may be absent.
    Bus(&'a str),
    /// The name of the model is unknown or absent, or the devices differ.
    Unknown,
}

/// Cards of NVIDIA's for the bus only. Those of the `RTX` and `GeForce` kind are recognized by that token.
const OF_BUS: [&str; 21] = [
    "L2", "L4", "L20", "L40", "L40S", "L40G", "A2", "A10", "A10G", "A10M", "A16", "A30", "A40", "T4", "T4G",
    "P4", "P6", "P40", "M60", "K80", "GEFORCE",
];

/// Boards of NVIDIA's that exist only with links: their plain name has nothing else.
const OF_LINKS: [&str; 11] =
    ["H200", "H800", "H20", "B100", "B200", "B300", "GB200", "GB300", "H20Z", "NVL72", "NVL36"];

impl<'a> Equipment<'a> {
    /// Of the two devices of a pair, as the probe names them; else of all devices of the host.
    pub(super) fn of_pair(devices: Option<&'a (String, String)>, models: &'a [String]) -> Self {
        let of_pair = devices.map_or(Self::Unknown, |(one, other)| Self::common([one, other]));
        match of_pair {
            Self::Unknown => Self::common(models),
            known => known,
        }
    }

    /// The links of all of them. Unknown names are skipped; contradictions make it unknown.
    fn common(names: impl IntoIterator<Item = &'a String>) -> Self {
        let mut known = names.into_iter().map(|name| Self::of(name)).filter(|it| *it != Self::Unknown);
        let Some(first) = known.next() else { return Self::Unknown };
        if known.all(|it| it.link() == first.link()) { first } else { Self::Unknown }
    }

    const fn link(self) -> Option<Path> {
        match self {
            Self::Link(path, _) => Some(path),
            Self::Bus(_) | Self::Unknown => None,
        }
    }

    /// By its name, as drivers and their tools spell it: `NVIDIA A100-SXM4-80GB`, `MetaX MXC500`.
    pub(super) fn of(name: &'a str) -> Self {
        let upper = name.to_ascii_uppercase();
        // `0000:a2:00.0` is an address on the bus, and no A2.
        let parts = upper.split_whitespace().filter(|part| !part.contains(':'));
        let tokens = parts.flat_map(|part| part.split(|it: char| !it.is_ascii_alphanumeric()));
        let tokens: Vec<&str> = tokens.filter(|token| !token.is_empty()).collect();
        let has = |token: &str| tokens.contains(&token);
        let begins = |with: &str| tokens.iter().any(|token| token.starts_with(with));
        let is_metax = begins("METAX") || begins("MXC") || begins("MXN");
        if is_metax {
            return if tokens.iter().any(|token| is_c_series(token)) {
                Self::Link(Path::Metaxlink, name)
            } else {
                Self::Unknown
            };
        }
        // Shares of a device have no links of their own. NVL cards and the Hopper on Grace may or may not have one;
        // an SXM2 board links only some pairs.
        if has("MIG") || has("GRID") || has("NVL") || has("GH200") || begins("SXM2") {
            return Self::Unknown;
        }
        if begins("PCIE") || has("RTX") || OF_BUS.iter().any(|it| has(it)) {
            return Self::Bus(name);
        }
        let is_hopper_board = has("H100") && (begins("HBM"));
        if begins("SXM") || has("HGX") || is_hopper_board || OF_LINKS.iter().any(|it| has(it)) {
            return Self::Link(Path::Nvlink, name);
        }
        Self::Unknown
    }
}

/// `C500`, `MXC500`, `C500X`: of MetaX's series for training, which has links.
fn is_c_series(token: &str) -> bool {
    let token = token.strip_prefix("MX").unwrap_or(token);
    let number = token.strip_prefix('C').unwrap_or_default();
    number.len() >= 3 && number.bytes().take(3).all(|it| it.is_ascii_digit())
}
