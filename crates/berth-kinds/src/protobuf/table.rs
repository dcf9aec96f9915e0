//! The protobuf messages of Kubernetes' kinds, parsed from [`PROTOBUF_FIELDS`].

use std::collections::BTreeMap;
use std::sync::OnceLock;

use berth_apimachinery::builtin::PROTOBUF_FIELDS;

/// A protobuf message of a kind.
#[derive(Debug)]
pub(super) struct Message {
    /// Name, such as `core.v1.Pod`.
    pub(super) name: &'static str,
    /// Fields, ordered by number.
    pub(super) fields: Vec<Field>,
}

impl Message {
    /// The field with a number.
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        self.fields.binary_search_by_key(&number, |field| field.number).ok().map(|at| &self.fields[at])
    }

    /// The field with a JSON name.
    pub(super) fn named(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// One field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// Name in JSON. Empty for an embedded message, whose fields belong to the enclosing object.
    pub(super) name: &'static str,
    pub(super) many: Many,
    pub(super) kind: Kind,
    /// True if Go's JSON has the field even when it is zero.
    pub(super) shown: bool,
}

/// Cardinality of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Many {
    /// One value, encoded even when it is zero.
    Value,
    /// At most one value, a pointer in Go: zero and absent differ.
    Optional,
    /// A list.
    List,
    /// A map with string keys, encoded in the order of the keys.
    Map,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Flag,
    Integer,
    Double,
    /// Base64 in JSON.
    Bytes,
    /// A message that holds a list of strings.
    Texts,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// A message that holds the text of a JSON value.
    Raw,
    /// One schema or several, in schemas of CustomResourceDefinitions.
    SchemaOrArray,
    /// A schema or a boolean.
    SchemaOrFlag,
    /// A schema or a list of strings.
    SchemaOrTexts,
    /// The message at this index of the table.
    Message(usize),
}

/// All messages.
#[derive(Debug)]
pub(super) struct Table {
    /// Messages, ordered by name.
    messages: Vec<Message>,
    /// Prefix of message names, by group and version.
    prefixes: BTreeMap<&'static str, &'static str>,
}

/// The table, parsed on first use.
pub(super) fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| Table::read(PROTOBUF_FIELDS))
}

impl Table {
    /// The message at an index.
    pub(super) fn at(&self, place: usize) -> &Message {
        &self.messages[place]
    }

    /// The message with a name.
    pub(super) fn named(&self, name: &str) -> Option<&Message> {
        self.place(name).map(|place| &self.messages[place])
    }

    /// Index of the message with a name.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.messages.binary_search_by(|message| message.name.cmp(name)).ok()
    }

    /// The message of a kind: that of its group, or one of `meta.v1`, which every group has.
    pub(super) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Message> {
        let own = self.prefixes.get(api_version).and_then(|prefix| self.named(&format!("{prefix}.{kind}")));
        own.or_else(|| {
            // Options are sent with the group of their resource. The oldest form of discovery has
            // no version.
            let is_everywhere = kind.ends_with("Options") || matches!(api_version, "" | "v1");
            let meta = is_everywhere || api_version.starts_with("meta.k8s.io/");
            meta.then(|| self.named(&format!("meta.v1.{kind}"))).flatten()
        })
    }

    /// All objects and lists that have metadata: their group and version, and their kind.
    #[cfg(test)]
    pub(super) fn kinds(&self) -> Vec<(&'static str, &'static str)> {
        let mut kinds = Vec::new();
        for (api_version, prefix) in &self.prefixes {
            for message in &self.messages {
                let kind = message.name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
                if let Some(kind) = kind.filter(|_| message.named("metadata").is_some()) {
                    kinds.push((*api_version, kind));
                }
            }
        }
        kinds
    }

    /// Parses the table. It panics on errors, as the table is part of the program.
    fn read(text: &'static str) -> Table {
        let mut table = Table { messages: Vec::new(), prefixes: BTreeMap::new() };
        let mut unread = Vec::new();
        for line in text.lines() {
            let Some((name, rest)) = line.split_once(' ') else { continue };
            match name.strip_prefix('@') {
                Some(group_version) => {
                    table.prefixes.insert(group_version, rest);
                }
                None => {
                    table.messages.push(Message { name, fields: Vec::new() });
                    unread.push(rest);
                }
            }
        }
        for (place, fields) in unread.into_iter().enumerate() {
            let name = table.messages[place].name;
            let package = name.rsplit_once('.').map_or("", |(package, _)| package);
            let fields = fields.split(',').filter(|field| !field.is_empty());
            table.messages[place].fields = fields.map(|field| table.read_field(package, field)).collect();
        }
        table
    }

    /// Parses a field of a message in `package`, such as `7=env:*.EnvVar`.
    fn read_field(&self, package: &str, text: &'static str) -> Field {
        let parts = text.split_once('=').and_then(|(number, rest)| Some((number, rest.split_once(':')?)));
        let (number, (name, kind)) = parts.expect("a field is number=name:type");
        let (kind, shown) = kind.strip_suffix('!').map_or((kind, false), |kind| (kind, true));
        let (many, kind) = match kind.as_bytes().first() {
            Some(b'?') => (Many::Optional, &kind[1..]),
            Some(b'*') => (Many::List, &kind[1..]),
            Some(b'%') => (Many::Map, &kind[1..]),
            _ => (Many::Value, kind),
        };
        let kind = match kind {
            "string" => Kind::Text,
            "bool" => Kind::Flag,
            "int" => Kind::Integer,
            "double" => Kind::Double,
            "bytes" => Kind::Bytes,
            "List" => Kind::Texts,
            "Quantity" => Kind::Quantity,
            "IntOrString" => Kind::IntOrString,
            "Time" => Kind::Time,
            "MicroTime" => Kind::MicroTime,
            "Raw" => Kind::Raw,
            "SchemaOrArray" => Kind::SchemaOrArray,
            "SchemaOrBool" => Kind::SchemaOrFlag,
            "SchemaOrStrings" => Kind::SchemaOrTexts,
            name => {
                let full = if name.starts_with('.') { format!("{package}{name}") } else { name.to_owned() };
                Kind::Message(self.place(&full).expect("a message refers to messages of the table"))
            }
        };
        Field { number: number.parse().expect("a field has a number"), name, many, kind, shown }
    }
}
