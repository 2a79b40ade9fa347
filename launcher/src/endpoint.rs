//! Where something listens, as people write it: `HOST:PORT`, with an IPv6 address in brackets.

use std::fmt;

pub(crate) use rules::node::is_loopback;

/// A name or an address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// An IPv6 address is without its brackets.
    pub host: String,
    /// At least 1.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Endpoint {
    /// Parses `DLROVER_MASTER_ADDR`. Some tools write it as an URL.
    ///
    /// # Errors
    ///
    /// What would be right.
    pub fn of_master(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "give HOST:PORT, such as master-0:50001 or [fd00::7]:50001";
        let text = text.trim();
        let text = text.strip_prefix("http://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        // Without brackets the start of the port is ambiguous.
        if text.is_empty() || (!text.starts_with('[') && text.matches(':').count() > 1) {
            return Err(FORM);
        }
        let (host, port) =
            split(text).map_err(|why| if why == NOT_A_PORT { NOT_A_MASTERS_PORT } else { why })?;
        let port = port.filter(|port| *port > 0).ok_or(FORM)?;
        Ok(Self { host: host.to_owned(), port })
    }
}

const NOT_A_PORT: &str =
    "the port must be a number from 1 to 65535 (0, any free one, for a single-node job only)";

const NOT_A_MASTERS_PORT: &str = "the port must be a number from 1 to 65535";

pub(crate) const NOT_A_HOST: &str = "give a host name, an IPv4 address, or an IPv6 address in brackets";

/// Splits `host[:port]`; an empty text is this machine. The rule is that of torch's
/// `parse_rendezvous_endpoint`.
///
/// # Errors
///
/// What would be right.
pub(crate) fn split(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    if text.is_empty() {
        return Ok(("localhost", None));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some(_) if text.starts_with('[') && text.ends_with(']') => (text, None),
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let number = |port: &str| {
        let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| port.parse().ok()).flatten()
    };
    let port = match port {
        None => None,
        Some(port) => Some(number(port).ok_or(NOT_A_PORT)?),
    };
    Ok((host_of(host)?, port))
}

/// A host by itself, with or without brackets around it.
///
/// # Errors
///
/// When it is neither a name nor an address.
pub(crate) fn host_of(text: &str) -> Result<&str, &'static str> {
    let text = text.trim();
    let host = text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text);
    let is_host =
        !host.is_empty() && host.chars().all(|letter| letter.is_alphanumeric() || "_.:-".contains(letter));
    if is_host { Ok(host) } else { Err(NOT_A_HOST) }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_masters_address_is_a_host_and_a_port() {
        for (text, shown) in [
            ("10.0.0.1:50001", "10.0.0.1:50001"),
            (" master-0:1 ", "master-0:1"),
            ("http://master.ns.svc:50001/", "master.ns.svc:50001"),
            ("[fd00::7]:50001", "[fd00::7]:50001"),
            ("http://[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(Endpoint::of_master(text).unwrap().to_string(), shown, "{text}");
        }
        for bad in
            ["", "/", "http://", "h", "h:", "h:0", "h:70000", ":1", "::1:50001", "[::1]", "h:1/x", "a b:1"]
        {
            assert!(Endpoint::of_master(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn torchs_rule_for_an_endpoint_is_kept() {
        assert_eq!(split(""), Ok(("localhost", None)));
        assert_eq!(split("h"), Ok(("h", None)));
        assert_eq!(split("[::1]"), Ok(("::1", None)));
        assert_eq!(split("[::1]:5"), Ok(("::1", Some(5))));
        assert_eq!(split("h:0"), Ok(("h", Some(0))));
        assert!(split("h:http").is_err());
        assert!(split("a/b:1").is_err());
    }

    #[test]
    fn a_loopback_is_told_by_its_text() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "::1"] {
            assert!(is_loopback(host), "{host}");
        }
        assert!(!is_loopback("10.0.0.1") && !is_loopback("node-0"));
    }

    proptest! {
        #[test]
        fn whatever_is_written_gets_an_answer(text in "\\PC{0,24}") {
            let _ = split(&text);
            if let Ok(endpoint) = Endpoint::of_master(&text) {
                prop_assert!(endpoint.port > 0 && !endpoint.host.is_empty());
            }
        }

        #[test]
        fn what_is_shown_is_read_as_the_same(
            host in prop_oneof!["[a-z][a-z0-9.-]{0,20}", any::<IpAddr>().prop_map(|addr| addr.to_string())],
            port in 1_u16..,
            is_url: bool,
        ) {
            let endpoint = Endpoint { host, port };
            let text = if is_url { format!("http://{endpoint}/") } else { endpoint.to_string() };
            prop_assert_eq!(Endpoint::of_master(&text), Ok(endpoint));
        }
    }
}
