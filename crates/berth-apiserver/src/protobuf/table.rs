//! The messages of Kubernetes' kinds, as [`PROTOBUF_FIELDS`] lists them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use berth_apimachinery::builtin::PROTOBUF_FIELDS;

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    /// `core.v1.Pod`.
    pub(super) name: &'static str,
    /// By number.
    pub(super) fields: Vec<Field>,
}

impl Message {
    /// The field of a number.
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        self.fields.binary_search_by_key(&number, |field| field.number).ok().map(|at| &self.fields[at])
    }

    /// The field of a name.
    pub(super) fn named(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// One field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// What JSON calls it; empty for a message whose fields belong to the object around it.
    pub(super) name: &'static str,
    pub(super) many: Many,
    pub(super) kind: Kind,
    /// Whether Go shows it in JSON when it is zero, too.
    pub(super) shown: bool,
}

/// How many values a field has, and which of them are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Many {
    /// One, which is written when it is zero, too.
    Value,
    /// One or none, in Go a pointer: zero and none differ.
    Optional,
    /// A list.
    List,
    /// A map from texts, written in the order of the keys.
    Map,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Flag,
    Integer,
    Double,
    /// Base64 in JSON.
    Bytes,
    /// A list of texts in a message of its own.
    Texts,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// A message of nothing but the text of a JSON value.
    Raw,
    /// In definitions' schemas: one schema or several.
    SchemaOrArray,
    /// A schema or a flag.
    SchemaOrFlag,
    /// A schema or texts.
    SchemaOrTexts,
    /// The message at this place of the table.
    Message(usize),
}

/// All messages.
#[derive(Debug)]
pub(super) struct Table {
    /// By name.
    messages: Vec<Message>,
    /// What the names of a group and version's messages begin with.
    prefixes: BTreeMap<&'static str, &'static str>,
}

/// The table, read on first use.
pub(super) fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| Table::read(PROTOBUF_FIELDS))
}

impl Table {
    /// The message at a place.
    pub(super) fn at(&self, place: usize) -> &Message {
        &self.messages[place]
    }

    /// The message of that name.
    pub(super) fn named(&self, name: &str) -> Option<&Message> {
        self.place(name).map(|place| &self.messages[place])
    }

    /// Where the message of that name is.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.messages.binary_search_by(|message| message.name.cmp(name)).ok()
    }

    /// The message of a kind: of its group's, or one of those that every group has.
    pub(super) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Message> {
        let own = self.prefixes.get(api_version).and_then(|prefix| self.named(&format!("{prefix}.{kind}")));
        own.or_else(|| {
            // Options are sent under the group of what they are for; discovery in its oldest form says no version.
            let is_everywhere = kind.ends_with("Options") || matches!(api_version, "" | "v1");
            let meta = is_everywhere || api_version.starts_with("meta.k8s.io/");
            meta.then(|| self.named(&format!("meta.v1.{kind}"))).flatten()
        })
    }

    /// All lists and objects that can be answered, with the group and version they are of.
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

    /// Reads the table, which is ours: a test reads all of it.
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

    /// Reads `7=env:*.EnvVar`, a field of a message of `package`.
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
