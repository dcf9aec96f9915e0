//! IP addresses and networks with Kubernetes' strictness: no zones, no IPv4-mapped IPv6, no leading
//! zeros.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::EvalError;

/// A network: an address and its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub(crate) ip: IpAddr,
    pub(crate) bits: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

impl Cidr {
    /// Number of octets that the prefix covers.
    pub(crate) fn octets(&self) -> usize {
        usize::from(self.bits).div_ceil(8)
    }

    pub(crate) fn masked(self) -> Cidr {
        Cidr { ip: mask(self.ip, self.bits), bits: self.bits }
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.ip.is_ipv4() && mask(ip, self.bits) == mask(self.ip, self.bits)
    }
}

fn mask(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
        }
    }
}

/// Parses an address.
pub(crate) fn parse_ip(text: &str) -> Result<IpAddr, EvalError> {
    let fail = |why: String| {
        EvalError::message(format!("IP Address \"{text}\" parse error during conversion from string: {why}"))
    };
    if let Ok(ip) = text.parse::<IpAddr>() {
        if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
            return Err(fail("IPv4-mapped IPv6 address is not allowed".to_owned()));
        }
        return Ok(ip);
    }
    if text.contains('%') {
        return Err(fail("IP address with zone value is not allowed".to_owned()));
    }
    Err(fail(format!("ParseAddr(\"{text}\"): {}", why_not_ip(text))))
}

/// Why a string is not an address.
fn why_not_ip(text: &str) -> String {
    if !text.contains(':') {
        if !text.contains('.') {
            return "unable to parse IP".to_owned();
        }
        let parts: Vec<&str> = text.split('.').collect();
        for part in &parts {
            if part.is_empty() {
                return "IPv4 field must have at least one digit".to_owned();
            }
            if !part.bytes().all(|b| b.is_ascii_digit()) {
                return format!(
                    "unexpected character (at \"{}\")",
                    part.trim_start_matches(|c: char| c.is_ascii_digit())
                );
            }
            if part.len() > 1 && part.starts_with('0') {
                return "IPv4 field has octet with leading zero".to_owned();
            }
            if part.parse::<u16>().map_or(true, |value| value > 255) {
                return "IPv4 field has value >255".to_owned();
            }
        }
        return if parts.len() > 4 { "IPv4 address too long" } else { "IPv4 address too short" }.to_owned();
    }
    if let Some(at) = text.find(":::") {
        return format!("each colon-separated field must have at least one digit (at \"{}\")", &text[at + 2..]);
    }
    let mut rest = text;
    for field in text.split(':') {
        if field.len() > 4 && !field.contains('.') {
            return format!("each group must have 4 or fewer digits (at \"{rest}\")");
        }
        if let Some(bad) = field.find(|c: char| !c.is_ascii_hexdigit() && c != '.') {
            return format!("unexpected character, want colon (at \"{}\")", &rest[bad..]);
        }
        rest = rest.get(field.len() + 1..).unwrap_or_default();
    }
    if text.split(':').count() > 8 { "trailing garbage after address" } else { "address string too short" }.to_owned()
}

/// Parses a network.
pub(crate) fn parse_cidr(text: &str) -> Result<Cidr, EvalError> {
    let fail = |why: &str| {
        EvalError::message(format!(
            "network address parse error during conversion from string: network address parse error during conversion from string: {why}"
        ))
    };
    let quoted = |why: String| fail(&format!("netip.ParsePrefix(\"{text}\"): {why}"));
    let Some((address, bits)) = text.rsplit_once('/') else { return Err(quoted("no '/'".to_owned())) };
    let ip: IpAddr = match address.parse() {
        Ok(ip) => ip,
        Err(_) if address.contains('%') => return Err(quoted("IPv6 zones cannot be present in a prefix".to_owned())),
        Err(_) => return Err(quoted(format!("ParseAddr(\"{address}\"): {}", why_not_ip(address)))),
    };
    if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
        return Err(fail("IPv4-mapped IPv6 address is not allowed"));
    }
    let plain = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let max = if ip.is_ipv4() { 32 } else { 128 };
    match bits.parse::<u16>() {
        Ok(bits) if plain && bits <= max => Ok(Cidr { ip, bits: bits as u8 }),
        Ok(_) if plain => Err(quoted("prefix length out of range".to_owned())),
        _ => Err(quoted(format!("bad bits after slash: \"{bits}\""))),
    }
}
