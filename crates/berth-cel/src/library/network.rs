//! Functions on IP addresses, networks and URLs.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Implementation, no_overload, of_text};
use crate::error::EvalError;
use crate::value::{Map, Outcome, OwnedMap, Url, Value, parse_cidr, parse_ip};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    addresses(name).or_else(|| urls(name))
}

fn addresses(name: &str) -> Option<Implementation> {
    Some(match name {
        "ip" => |_, args| match args {
            [Value::String(text)] => parse_ip(text).map(Value::Ip),
            [Value::Cidr(cidr)] => Ok(Value::Ip(cidr.ip)),
            _ => no_overload(),
        },
        "isIP" => |_, args| of_text(args, |text| Value::Bool(parse_ip(text).is_ok())),
        "ip.isCanonical" => |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(parse_ip(text)?.to_string() == **text)),
            _ => no_overload(),
        },
        "family" => |_, args| about(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => |_, args| about(args, |ip| Value::Bool(ip.is_unspecified())),
        "isLoopback" => |_, args| about(args, |ip| Value::Bool(ip.is_loopback())),
        "isLinkLocalMulticast" => |_, args| about(args, |ip| Value::Bool(is_link_local_multicast(ip))),
        "isLinkLocalUnicast" => |_, args| about(args, |ip| Value::Bool(is_link_local_unicast(ip))),
        "isGlobalUnicast" => |_, args| about(args, |ip| Value::Bool(is_global_unicast(ip))),
        "cidr" => |_, args| match args {
            [Value::String(text)] => parse_cidr(text).map(Value::Cidr),
            _ => no_overload(),
        },
        "isCIDR" => |_, args| of_text(args, |text| Value::Bool(parse_cidr(text).is_ok())),
        "containsIP" => |_, args| match args {
            [Value::Cidr(cidr), Value::Ip(ip)] => Ok(Value::Bool(cidr.contains(*ip))),
            [Value::Cidr(cidr), Value::String(text)] => Ok(Value::Bool(cidr.contains(parse_ip(text)?))),
            _ => no_overload(),
        },
        "containsCIDR" => |_, args| {
            let (cidr, other) = match args {
                [Value::Cidr(cidr), Value::Cidr(other)] => (cidr, *other),
                [Value::Cidr(cidr), Value::String(text)] => (cidr, parse_cidr(text)?),
                _ => return no_overload(),
            };
            Ok(Value::Bool(cidr.bits <= other.bits && cidr.contains(other.ip)))
        },
        "prefixLength" => |_, args| match args {
            [Value::Cidr(cidr)] => Ok(Value::Int(i64::from(cidr.bits))),
            _ => no_overload(),
        },
        "masked" => |_, args| match args {
            [Value::Cidr(cidr)] => Ok(Value::Cidr(cidr.masked())),
            _ => no_overload(),
        },
        _ => return None,
    })
}

fn about<'a>(args: &[Value<'a>], answer: fn(&IpAddr) -> Value<'static>) -> Outcome<'a> {
    match args {
        [Value::Ip(ip)] => Ok(answer(ip)),
        _ => no_overload(),
    }
}

fn is_link_local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_global_unicast(ip: &IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || broadcast || is_link_local_unicast(ip))
}

fn urls(name: &str) -> Option<Implementation> {
    Some(match name {
        "url" => |_, args| match args {
            [Value::String(text)] => Url::parse(text)
                .map(|url| Value::Url(Arc::new(url)))
                .map_err(|why| EvalError::message(format!("URL parse error during conversion from string: {why}"))),
            _ => no_overload(),
        },
        "isURL" => |_, args| of_text(args, |text| Value::Bool(Url::parse(text).is_ok())),
        "getScheme" => |_, args| part(args, |url| &url.scheme),
        "getHost" => |_, args| part(args, |url| &url.host),
        "getHostname" => |_, args| part(args, Url::hostname),
        "getPort" => |_, args| part(args, Url::port),
        "getEscapedPath" => |_, args| part(args, |url| &url.path),
        "getQuery" => |_, args| match args {
            [Value::Url(url)] => {
                let mut map = OwnedMap::default();
                for (key, values) in url.query() {
                    let values: Vec<Value<'_>> = values.into_iter().map(Value::from).collect();
                    map.insert(Value::from(key), Value::from(values))?;
                }
                Ok(Value::Map(Map::Owned(Arc::new(map))))
            }
            _ => no_overload(),
        },
        _ => return None,
    })
}

fn part<'a>(args: &[Value<'a>], take: fn(&Url) -> &str) -> Outcome<'a> {
    match args {
        [Value::Url(url)] => Ok(Value::from(take(url).to_owned())),
        _ => no_overload(),
    }
}
