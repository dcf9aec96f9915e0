//! Rules of the kernel's packet filter (nf_tables). They are written over netlink, so that no
//! program needs to be installed.
//!
//! Implements only the needs of a pod network: one table with three chains. The table is replaced
//! as a whole in one transaction, so repeating it has no effect.
//!
//! Source: the kernel's `include/uapi/linux/netfilter/nf_tables.h`. Numbers in messages are
//! big-endian, values in registers are in the processor's byte order.

use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};

const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFPROTO_IPV4: u8 = 2;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLA_F_NESTED: u16 = 0x8000;
const HEADER_LEN: usize = 16;
/// Maximum size of an acknowledgement: a header, an error number and the header of the request.
const ANSWER_MAX: usize = 4096;
/// Maximum size of the part of a list that the kernel sends at once.
const PART_MAX: usize = 64 * 1024;

const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_LOCAL_IN: u32 = 1;
const NF_INET_FORWARD: u32 = 2;
const NF_INET_POST_ROUTING: u32 = 4;
/// Priority -150, as the kernel's number.
const PRIORITY_MANGLE: u32 = u32::MAX - 149;
const PRIORITY_FILTER: u32 = 0;
const PRIORITY_SOURCE_NAT: u32 = 100;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const IPV4_PROTOCOL: u32 = 9;
const IPV4_SOURCE: u32 = 12;
const IPV4_DESTINATION: u32 = 16;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const NFT_META_IIFNAME: u32 = 6;
const NFT_META_OIFNAME: u32 = 7;
const NFT_CT_STATE: u32 = 0;
/// Connection states `established` (2) and `related` (4).
const STATE_KNOWN: u32 = 6;
const IFNAMSIZ: usize = 16;
/// Prefix of the names of bridges.
const BRIDGES: &str = "berth-";

/// Comparison of a register with a value.
#[derive(Clone, Copy)]
enum Compare {
    Equal = 0,
    Different = 1,
}

/// Lets the pods of `bridge` reach other networks with the machine's address. Drops packets from
/// other networks to the pods, unless they reply to a pod, and to the machine's addresses in the
/// ranges of pods and Services.
pub(super) fn install(table: &str, bridge: &str, pods: Ipv4Net, services: Option<Ipv4Net>) -> io::Result<()> {
    let mut batch = Batch::begin();
    batch.table(NFT_MSG_NEWTABLE, table);
    batch.table(NFT_MSG_DELTABLE, table);
    batch.table(NFT_MSG_NEWTABLE, table);
    batch.chain(table, "outgoing", "nat", NF_INET_POST_ROUTING, PRIORITY_SOURCE_NAT);
    let mut outgoing = Rule::default();
    outgoing.address(IPV4_SOURCE, pods, Compare::Equal);
    outgoing.address(IPV4_DESTINATION, pods, Compare::Different);
    outgoing.interface(NFT_META_OIFNAME, bridge, Compare::Different);
    outgoing.expression("masq", Vec::new());
    batch.rule(table, "outgoing", outgoing);
    batch.chain(table, "incoming", "filter", NF_INET_FORWARD, PRIORITY_FILTER);
    let mut incoming = Rule::default();
    incoming.interface(NFT_META_OIFNAME, bridge, Compare::Equal);
    incoming.interface(NFT_META_IIFNAME, bridge, Compare::Different);
    incoming.unknown_connection();
    incoming.drop();
    batch.rule(table, "incoming", incoming);
    batch.chain(table, "local", "filter", NF_INET_LOCAL_IN, PRIORITY_FILTER);
    // Other clusters on this machine serve their pods at the same addresses of Services.
    for (range, is_services) in [(Some(pods), false), (services, true)] {
        let Some(range) = range else { continue };
        let mut local = Rule::default();
        if is_services {
            local.interfaces(NFT_META_IIFNAME, BRIDGES, Compare::Different);
        } else {
            local.interface(NFT_META_IIFNAME, bridge, Compare::Different);
        }
        local.interface(NFT_META_IIFNAME, "lo", Compare::Different);
        local.address(IPV4_DESTINATION, range.trunc(), Compare::Equal);
        local.drop();
        batch.rule(table, "local", local);
    }
    batch.commit()
}

/// Delivers the TCP connections and datagrams of the pods of `bridge` to other networks to the
/// transparent sockets at the ports of `to`, and drops their other packets to other networks.
pub(super) fn divert(table: &str, bridge: &str, own: &[Ipv4Net], to: Diversion) -> io::Result<()> {
    let mut batch = Batch::begin();
    batch.table(NFT_MSG_NEWTABLE, table);
    batch.table(NFT_MSG_DELTABLE, table);
    batch.table(NFT_MSG_NEWTABLE, table);
    batch.chain(table, "outgoing", "filter", NF_INET_PRE_ROUTING, PRIORITY_MANGLE);
    let to_others = || {
        let mut rule = Rule::default();
        rule.interface(NFT_META_IIFNAME, bridge, Compare::Equal);
        for range in own {
            rule.address(IPV4_DESTINATION, range.trunc(), Compare::Different);
        }
        rule
    };
    for (protocol, port) in [(PROTOCOL_TCP, to.tcp), (PROTOCOL_UDP, to.udp)] {
        let mut rule = to_others();
        rule.protocol(protocol);
        rule.transparent_proxy(port);
        rule.verdict(NF_ACCEPT);
        batch.rule(table, "outgoing", rule);
    }
    let mut others = to_others();
    others.verdict(NF_DROP);
    batch.rule(table, "outgoing", others);
    batch.commit()
}

/// The ports of the transparent sockets that receive the traffic to other networks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Diversion {
    pub(crate) tcp: u16,
    pub(crate) udp: u16,
}

/// Removes the table. Succeeds if it does not exist.
pub(super) fn remove(table: &str) -> io::Result<()> {
    let mut batch = Batch::begin();
    batch.table(NFT_MSG_NEWTABLE, table);
    batch.table(NFT_MSG_DELTABLE, table);
    batch.commit()
}

/// Names of the IPv4 tables of this machine's packet filter.
pub(super) fn tables() -> io::Result<Vec<String>> {
    let mut request = Batch { bytes: Vec::new(), sequence: 0, last: 0 };
    request.request(NFT_MSG_GETTABLE, NLM_F_DUMP, &[]);
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.set_non_blocking(true)?;
    socket.send_to(&request.bytes, &SocketAddr::new(0, 0), 0)?;
    let mut names = Vec::new();
    loop {
        let mut part = Vec::with_capacity(PART_MAX);
        socket.recv(&mut part, 0)?;
        if read_tables(&part, &mut names)? {
            return Ok(names);
        }
    }
}

/// Adds the names of the tables in one part of a list. Returns true at the end of the list.
fn read_tables(part: &[u8], names: &mut Vec<String>) -> io::Result<bool> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's list of tables is cut off");
    let mut rest = part;
    while !rest.is_empty() {
        let header = rest.first_chunk::<6>().ok_or_else(short)?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let length = usize::try_from(length).map_err(|_| short())?;
        let message = rest.get(..length).filter(|it| it.len() >= HEADER_LEN).ok_or_else(short)?;
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = message.get(HEADER_LEN..).and_then(|it| it.first_chunk()).ok_or_else(short)?;
                return Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*code)));
            }
            _ => names.extend(table_name(message.get(HEADER_LEN + 4..).ok_or_else(short)?)),
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The first attribute of a table, its name.
fn table_name(attributes: &[u8]) -> Option<String> {
    let [a, b, c, d] = *attributes.first_chunk::<4>()?;
    let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
    let name = attributes.get(4..length)?.strip_suffix(&[0])?;
    (kind == 1).then(|| String::from_utf8_lossy(name).into_owned())
}

/// A transaction: its messages take effect either all together or not at all.
struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    /// Position of the last message, which the kernel acknowledges.
    last: usize,
}

impl Batch {
    fn begin() -> Self {
        let mut batch = Self { bytes: Vec::new(), sequence: 0, last: 0 };
        batch.message(NFNL_MSG_BATCH_BEGIN, 0, 0, NFNL_SUBSYS_NFTABLES, &[]);
        batch
    }

    fn message(&mut self, kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) {
        let length = HEADER_LEN + 4 + attributes.len();
        self.last = self.bytes.len();
        self.bytes.extend(u32::try_from(length).expect("a rule is small").to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend([family, 0]);
        self.bytes.extend(resource.to_be_bytes());
        self.bytes.extend(attributes);
        self.sequence += 1;
    }

    fn request(&mut self, kind: u16, flags: u16, attributes: &[u8]) {
        self.message((NFNL_SUBSYS_NFTABLES << 8) | kind, flags, NFPROTO_IPV4, 0, attributes);
    }

    fn table(&mut self, kind: u16, name: &str) {
        let flags = if kind == NFT_MSG_NEWTABLE { NLM_F_CREATE } else { 0 };
        self.request(kind, flags, &text(1, name));
    }

    fn chain(&mut self, table: &str, name: &str, kind: &str, hook: u32, priority: u32) {
        let hook = nested(4, &[number(1, hook), number(2, priority)].concat());
        self.request(NFT_MSG_NEWCHAIN, NLM_F_CREATE, &[text(1, table), text(3, name), hook, text(7, kind)].concat());
    }

    fn rule(&mut self, table: &str, chain: &str, rule: Rule) {
        let attributes = [text(1, table), text(2, chain), nested(4, &rule.0)].concat();
        self.request(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, &attributes);
    }

    /// Sends the transaction. The kernel has executed it when the send call returns.
    fn commit(mut self) -> io::Result<()> {
        let flags = self.last + 6;
        let with_ack = u16::from_ne_bytes([self.bytes[flags], self.bytes[flags + 1]]) | NLM_F_ACK;
        self.bytes[flags..flags + 2].copy_from_slice(&with_ack.to_ne_bytes());
        self.message(NFNL_MSG_BATCH_END, 0, 0, NFNL_SUBSYS_NFTABLES, &[]);
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        socket.send_to(&self.bytes, &SocketAddr::new(0, 0), 0)?;
        let mut answer = Vec::with_capacity(ANSWER_MAX);
        socket.recv(&mut answer, 0)?;
        let kind = answer.get(4..6).and_then(|it| it.try_into().ok()).map(u16::from_ne_bytes);
        let code = answer.get(HEADER_LEN..HEADER_LEN + 4).and_then(|it| it.try_into().ok()).map(i32::from_ne_bytes);
        match (kind, code) {
            (Some(NLMSG_ERROR), Some(0)) => Ok(()),
            (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel's response is not an acknowledgement")),
        }
    }
}

/// The expressions of a rule. Each is evaluated only if the previous one matched.
#[derive(Default)]
struct Rule(Vec<u8>);

impl Rule {
    fn expression(&mut self, name: &str, data: Vec<u8>) {
        self.0.extend(nested(1, &[text(1, name), nested(2, &data)].concat()));
    }

    fn compare(&mut self, how: Compare, value: &[u8]) {
        let data = [number(1, NFT_REG_1), number(2, how as u32), nested(3, &attribute(1, value))];
        self.expression("cmp", data.concat());
    }

    fn mask(&mut self, mask: &[u8; 4]) {
        let value = |kind, bytes: &[u8]| nested(kind, &attribute(1, bytes));
        let data = [number(1, NFT_REG_1), number(2, NFT_REG_1), number(3, 4), value(4, mask), value(5, &[0; 4])];
        self.expression("bitwise", data.concat());
    }

    /// Compares the address at an offset of the IPv4 header with a range.
    fn address(&mut self, offset: u32, range: Ipv4Net, how: Compare) {
        let header = number(2, NFT_PAYLOAD_NETWORK_HEADER);
        self.expression("payload", [number(1, NFT_REG_1), header, number(3, offset), number(4, 4)].concat());
        self.mask(&range.netmask().octets());
        self.compare(how, &Ipv4Addr::octets(&range.network()));
    }

    fn interface(&mut self, key: u32, name: &str, how: Compare) {
        let mut padded = [0; IFNAMSIZ];
        padded[..name.len()].copy_from_slice(name.as_bytes());
        self.expression("meta", [number(1, NFT_REG_1), number(2, key)].concat());
        self.compare(how, &padded);
    }

    /// Compares the beginning of the interface's name.
    fn interfaces(&mut self, key: u32, prefix: &str, how: Compare) {
        self.expression("meta", [number(1, NFT_REG_1), number(2, key)].concat());
        self.compare(how, prefix.as_bytes());
    }

    /// Matches packets that do not belong to a known connection.
    fn unknown_connection(&mut self) {
        self.expression("ct", [number(1, NFT_REG_1), number(2, NFT_CT_STATE)].concat());
        self.mask(&STATE_KNOWN.to_ne_bytes());
        self.compare(Compare::Equal, &[0; 4]);
    }

    /// Matches packets of a transport protocol.
    fn protocol(&mut self, protocol: u8) {
        let header = number(2, NFT_PAYLOAD_NETWORK_HEADER);
        self.expression("payload", [number(1, NFT_REG_1), header, number(3, IPV4_PROTOCOL), number(4, 1)].concat());
        self.compare(Compare::Equal, &[protocol]);
    }

    /// Assigns the packet to a transparent socket: that of its connection, or else the socket at
    /// this port of the receiving interface. Does not match without such a socket.
    fn transparent_proxy(&mut self, port: u16) {
        let value = attribute(1, &port.to_be_bytes());
        self.expression("immediate", [number(1, NFT_REG_1), nested(2, &value)].concat());
        self.expression("tproxy", [number(1, NFPROTO_IPV4.into()), number(3, NFT_REG_1)].concat());
    }

    fn verdict(&mut self, verdict: u32) {
        let verdict = nested(2, &number(1, verdict));
        self.expression("immediate", [number(1, NFT_REG_VERDICT), nested(2, &verdict)].concat());
    }

    fn drop(&mut self) {
        self.verdict(NF_DROP);
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("an attribute is small");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, value)
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}
