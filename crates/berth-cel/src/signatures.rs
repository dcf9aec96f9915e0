//! The signatures of every function that expressions can call, operators included.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::types::Type;

/// An overload of a function.
#[derive(Clone, Debug)]
pub(crate) struct Overload {
    pub member: bool,
    /// Parameter types; the target of a method comes first.
    pub params: Vec<Type>,
    pub result: Type,
    /// The compatibility version (minor) that introduced it.
    pub since: u32,
}

/// Every function with its overloads.
pub(crate) static FUNCTIONS: LazyLock<BTreeMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: BTreeMap<&'static str, Vec<Overload>> = BTreeMap::new();
    for (since, signatures) in SIGNATURES {
        for signature in signatures.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, overload) =
                parse_signature(signature, *since).unwrap_or_else(|| panic!("a signature cannot be read: {signature}"));
            functions.entry(name).or_default().push(overload);
        }
    }
    functions
});

/// Parses `target :: name(param, param) result`, or without a target for plain functions. Capital
/// letters are type parameters.
fn parse_signature(text: &'static str, since: u32) -> Option<(&'static str, Overload)> {
    let (target, rest) = match text.split_once(" :: ") {
        Some((target, rest)) => (Some(target), rest),
        None => (None, text),
    };
    let open = rest.find('(')?;
    let name = &rest[..open];
    let close = rest.rfind(") ")?;
    let mut params: Vec<Type> = Vec::new();
    if let Some(target) = target {
        params.push(parse_type(target)?);
    }
    for param in split_params(&rest[open + 1..close]) {
        params.push(parse_type(param)?);
    }
    let result = parse_type(rest[close + 2..].trim())?;
    Some((name, Overload { member: target.is_some(), params, result, since }))
}

fn split_params(text: &'static str) -> Vec<&'static str> {
    let mut depth = 0;
    text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|param| !param.is_empty())
    .collect()
}

fn parse_type(text: &'static str) -> Option<Type> {
    if let (Some(open), true) = (text.find('('), text.ends_with(')')) {
        let mut params = split_params(&text[open + 1..text.len() - 1]).into_iter().map(parse_type);
        let first = params.next()??;
        return Some(match &text[..open] {
            "list" => Type::list(first),
            "map" => Type::map(first, params.next()??),
            "opt" => Type::optional(first),
            "type" => Type::Type(Some(Arc::new(first))),
            _ => return None,
        });
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Type(None),
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        opaque => Type::Opaque(opaque),
    })
}

/// Signatures by the compatibility version that introduced them; `target :: name(params) result`.
const SIGNATURES: &[(u32, &str)] = &[
    (
        0,
        "
        !_(bool) bool
        -_(int) int
        -_(double) double
        @not_strictly_false(bool) bool
        _?_:_(bool, A, A) A
        _&&_(bool, bool) bool
        _||_(bool, bool) bool
        _+_(bytes, bytes) bytes
        _+_(double, double) double
        _+_(duration, duration) duration
        _+_(duration, timestamp) timestamp
        _+_(timestamp, duration) timestamp
        _+_(int, int) int
        _+_(list(A), list(A)) list(A)
        _+_(string, string) string
        _+_(uint, uint) uint
        _-_(double, double) double
        _-_(duration, duration) duration
        _-_(int, int) int
        _-_(timestamp, duration) timestamp
        _-_(timestamp, timestamp) duration
        _-_(uint, uint) uint
        _*_(double, double) double
        _*_(int, int) int
        _*_(uint, uint) uint
        _/_(double, double) double
        _/_(int, int) int
        _/_(uint, uint) uint
        _%_(int, int) int
        _%_(uint, uint) uint
        _==_(A, A) bool
        _!=_(A, A) bool
        @in(A, list(A)) bool
        @in(A, map(A, B)) bool
        _[_](list(A), int) A
        _[_](map(A, B), A) B
        size(bytes) int
        size(list(A)) int
        size(map(A, B)) int
        size(string) int
        bytes :: size() int
        list(A) :: size() int
        map(A, B) :: size() int
        string :: size() int
        type(A) type(A)
        dyn(A) dyn
        bool(bool) bool
        bool(string) bool
        bytes(bytes) bytes
        bytes(string) bytes
        double(double) double
        double(int) double
        double(string) double
        double(uint) double
        duration(duration) duration
        duration(int) duration
        duration(string) duration
        int(int) int
        int(double) int
        int(duration) int
        int(string) int
        int(timestamp) int
        int(uint) int
        string(string) string
        string(bool) string
        string(bytes) string
        string(double) string
        string(duration) string
        string(int) string
        string(timestamp) string
        string(uint) string
        timestamp(timestamp) timestamp
        timestamp(int) timestamp
        timestamp(string) timestamp
        uint(uint) uint
        uint(double) uint
        uint(int) uint
        uint(string) uint
        string :: contains(string) bool
        string :: endsWith(string) bool
        string :: startsWith(string) bool
        string :: matches(string) bool
        matches(string, string) bool
        timestamp :: getFullYear() int
        timestamp :: getFullYear(string) int
        timestamp :: getMonth() int
        timestamp :: getMonth(string) int
        timestamp :: getDayOfYear() int
        timestamp :: getDayOfYear(string) int
        timestamp :: getDayOfMonth() int
        timestamp :: getDayOfMonth(string) int
        timestamp :: getDate() int
        timestamp :: getDate(string) int
        timestamp :: getDayOfWeek() int
        timestamp :: getDayOfWeek(string) int
        timestamp :: getHours() int
        timestamp :: getHours(string) int
        duration :: getHours() int
        timestamp :: getMinutes() int
        timestamp :: getMinutes(string) int
        duration :: getMinutes() int
        timestamp :: getSeconds() int
        timestamp :: getSeconds(string) int
        duration :: getSeconds() int
        timestamp :: getMilliseconds() int
        timestamp :: getMilliseconds(string) int
        duration :: getMilliseconds() int
        string :: charAt(int) string
        string :: indexOf(string) int
        string :: indexOf(string, int) int
        string :: lastIndexOf(string) int
        string :: lastIndexOf(string, int) int
        string :: lowerAscii() string
        string :: upperAscii() string
        string :: replace(string, string) string
        string :: replace(string, string, int) string
        string :: split(string) list(string)
        string :: split(string, int) list(string)
        string :: substring(int) string
        string :: substring(int, int) string
        string :: trim() string
        list(string) :: join() string
        jsonpatch.escapeKey(string) string
        list(string) :: join(string) string
        url(string) kubernetes.URL
        isURL(string) bool
        kubernetes.URL :: getScheme() string
        kubernetes.URL :: getHost() string
        kubernetes.URL :: getHostname() string
        kubernetes.URL :: getPort() string
        kubernetes.URL :: getEscapedPath() string
        kubernetes.URL :: getQuery() map(string, list(string))
        string :: find(string) string
        string :: findAll(string) list(string)
        string :: findAll(string, int) list(string)
        list(int) :: isSorted() bool
        list(uint) :: isSorted() bool
        list(double) :: isSorted() bool
        list(bool) :: isSorted() bool
        list(timestamp) :: isSorted() bool
        list(duration) :: isSorted() bool
        list(string) :: isSorted() bool
        list(bytes) :: isSorted() bool
        list(int) :: sum() int
        list(uint) :: sum() uint
        list(double) :: sum() double
        list(duration) :: sum() duration
        list(int) :: min() int
        list(uint) :: min() uint
        list(double) :: min() double
        list(bool) :: min() bool
        list(timestamp) :: min() timestamp
        list(duration) :: min() duration
        list(string) :: min() string
        list(bytes) :: min() bytes
        list(int) :: max() int
        list(uint) :: max() uint
        list(double) :: max() double
        list(bool) :: max() bool
        list(timestamp) :: max() timestamp
        list(duration) :: max() duration
        list(string) :: max() string
        list(bytes) :: max() bytes
        list(A) :: indexOf(A) int
        list(A) :: lastIndexOf(A) int
        kubernetes.authorization.Authorizer :: path(string) kubernetes.authorization.PathCheck
        kubernetes.authorization.Authorizer :: group(string) kubernetes.authorization.GroupCheck
        kubernetes.authorization.Authorizer :: serviceAccount(string, string) kubernetes.authorization.Authorizer
        kubernetes.authorization.PathCheck :: check(string) kubernetes.authorization.Decision
        kubernetes.authorization.GroupCheck :: resource(string) kubernetes.authorization.ResourceCheck
        kubernetes.authorization.ResourceCheck :: subresource(string) kubernetes.authorization.ResourceCheck
        kubernetes.authorization.ResourceCheck :: namespace(string) kubernetes.authorization.ResourceCheck
        kubernetes.authorization.ResourceCheck :: name(string) kubernetes.authorization.ResourceCheck
        kubernetes.authorization.ResourceCheck :: check(string) kubernetes.authorization.Decision
        kubernetes.authorization.Decision :: errored() bool
        kubernetes.authorization.Decision :: error() string
        kubernetes.authorization.Decision :: allowed() bool
        kubernetes.authorization.Decision :: reason() string
        ",
    ),
    (
        28,
        "
        isQuantity(string) bool
        quantity(string) kubernetes.Quantity
        kubernetes.Quantity :: isInteger() bool
        kubernetes.Quantity :: asInteger() int
        kubernetes.Quantity :: asApproximateFloat() double
        sign(kubernetes.Quantity) int
        kubernetes.Quantity :: add(kubernetes.Quantity) kubernetes.Quantity
        kubernetes.Quantity :: add(int) kubernetes.Quantity
        kubernetes.Quantity :: sub(kubernetes.Quantity) kubernetes.Quantity
        kubernetes.Quantity :: sub(int) kubernetes.Quantity
        kubernetes.Quantity :: isLessThan(kubernetes.Quantity) bool
        kubernetes.Quantity :: isGreaterThan(kubernetes.Quantity) bool
        kubernetes.Quantity :: compareTo(kubernetes.Quantity) int
        ",
    ),
    (
        29,
        "
        optional.of(A) opt(A)
        optional.ofNonZeroValue(A) opt(A)
        optional.none() opt(A)
        opt(A) :: value() A
        opt(A) :: hasValue() bool
        opt(A) :: or(opt(A)) opt(A)
        opt(A) :: orValue(A) A
        _?._(dyn, string) opt(A)
        _[?_](list(A), int) opt(A)
        _[?_](opt(list(A)), int) opt(A)
        _[?_](map(A, B), A) opt(B)
        _[?_](opt(map(A, B)), A) opt(B)
        _[_](opt(list(A)), int) opt(A)
        _[_](opt(map(A, B)), A) opt(B)
        sets.contains(list(A), list(A)) bool
        sets.equivalent(list(A), list(A)) bool
        sets.intersects(list(A), list(A)) bool
        string :: format(list(dyn)) string
        strings.quote(string) string
        ",
    ),
    (
        30,
        "
        isIP(string) bool
        ip(string) net.IP
        ip.isCanonical(string) bool
        string(net.IP) string
        net.IP :: family() int
        net.IP :: isUnspecified() bool
        net.IP :: isLoopback() bool
        net.IP :: isLinkLocalMulticast() bool
        net.IP :: isLinkLocalUnicast() bool
        net.IP :: isGlobalUnicast() bool
        isCIDR(string) bool
        cidr(string) net.CIDR
        string(net.CIDR) string
        net.CIDR :: containsIP(net.IP) bool
        net.CIDR :: containsIP(string) bool
        net.CIDR :: containsCIDR(net.CIDR) bool
        net.CIDR :: containsCIDR(string) bool
        net.CIDR :: ip() net.IP
        net.CIDR :: masked() net.CIDR
        net.CIDR :: prefixLength() int
        format.named(string) opt(kubernetes.NamedFormat)
        format.dns1123Label() kubernetes.NamedFormat
        format.dns1123Subdomain() kubernetes.NamedFormat
        format.dns1035Label() kubernetes.NamedFormat
        format.dns1123LabelPrefix() kubernetes.NamedFormat
        format.dns1123SubdomainPrefix() kubernetes.NamedFormat
        format.dns1035LabelPrefix() kubernetes.NamedFormat
        format.qualifiedName() kubernetes.NamedFormat
        format.labelValue() kubernetes.NamedFormat
        format.uri() kubernetes.NamedFormat
        format.uuid() kubernetes.NamedFormat
        format.byte() kubernetes.NamedFormat
        format.date() kubernetes.NamedFormat
        format.datetime() kubernetes.NamedFormat
        kubernetes.NamedFormat :: validate(string) opt(list(string))
        ",
    ),
    (
        31,
        "
        kubernetes.authorization.ResourceCheck :: fieldSelector(string) kubernetes.authorization.ResourceCheck
        kubernetes.authorization.ResourceCheck :: labelSelector(string) kubernetes.authorization.ResourceCheck
        ",
    ),
    (
        32,
        "
        cel.@mapInsert(map(A, B), A, B) map(A, B)
        cel.@mapInsert(map(A, B), map(A, B)) map(A, B)
        ",
    ),
    (
        33,
        "
        isSemver(string) bool
        isSemver(string, bool) bool
        semver(string) kubernetes.Semver
        semver(string, bool) kubernetes.Semver
        kubernetes.Semver :: major() int
        kubernetes.Semver :: minor() int
        kubernetes.Semver :: patch() int
        kubernetes.Semver :: isLessThan(kubernetes.Semver) bool
        kubernetes.Semver :: isGreaterThan(kubernetes.Semver) bool
        kubernetes.Semver :: compareTo(kubernetes.Semver) int
        ",
    ),
    (
        34,
        "
        list(list(A)) :: flatten() list(A)
        list(dyn) :: flatten(int) list(dyn)
        list(A) :: slice(int, int) list(A)
        list(A) :: distinct() list(A)
        list(A) :: reverse() list(A)
        lists.range(int) list(int)
        list(int) :: sort() list(int)
        list(uint) :: sort() list(uint)
        list(double) :: sort() list(double)
        list(bool) :: sort() list(bool)
        list(duration) :: sort() list(duration)
        list(timestamp) :: sort() list(timestamp)
        list(string) :: sort() list(string)
        list(bytes) :: sort() list(bytes)
        list(A) :: @sortByAssociatedKeys(list(int)) list(A)
        list(A) :: @sortByAssociatedKeys(list(uint)) list(A)
        list(A) :: @sortByAssociatedKeys(list(double)) list(A)
        list(A) :: @sortByAssociatedKeys(list(bool)) list(A)
        list(A) :: @sortByAssociatedKeys(list(duration)) list(A)
        list(A) :: @sortByAssociatedKeys(list(timestamp)) list(A)
        list(A) :: @sortByAssociatedKeys(list(string)) list(A)
        list(A) :: @sortByAssociatedKeys(list(bytes)) list(A)
        ",
    ),
];
