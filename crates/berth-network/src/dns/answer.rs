//! Turns a question into an answer, message by message.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Record};

use super::zone::Answer;

/// Maximum size of an answer over UDP. It fits into one unfragmented packet on all common networks.
const PAYLOAD_MAX: u16 = 1232;
/// Maximum size of an answer over UDP to a client that does not specify a size.
const PAYLOAD_MIN: u16 = 512;

/// A parsed question, or the reply to a message that is not a question.
pub(super) enum Parsed {
    Question(Message, Query),
    Refused(Message),
    /// The message gets no reply, for example because it is a reply itself.
    Ignored,
}

/// Parses a question. Other messages get an error.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let Ok(message) = Message::from_vec(bytes) else {
        // The header of a question suffices for an error.
        return match bytes {
            [a, b, flags, ..] if bytes.len() >= 12 && flags & 0x80 == 0 => {
                let id = u16::from_be_bytes([*a, *b]);
                Parsed::Refused(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr))
            }
            _ => Parsed::Ignored,
        };
    };
    if message.metadata.message_type == MessageType::Response {
        return Parsed::Ignored;
    }
    let code = match message.queries.as_slice() {
        _ if message.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
        _ if message.edns.as_ref().is_some_and(|edns| edns.version() > 0) => ResponseCode::BADVERS,
        [query] if query.query_class() == DNSClass::IN => {
            let query = query.clone();
            return Parsed::Question(message, query);
        }
        [_] => ResponseCode::Refused,
        _ => ResponseCode::FormErr,
    };
    Parsed::Refused(reply(&message, code))
}

/// An answer without records.
pub(super) fn reply(question: &Message, code: ResponseCode) -> Message {
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = code;
    answer.add_queries(question.queries.iter().cloned());
    if question.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(PAYLOAD_MAX).set_version(0);
        if code == ResponseCode::BADVERS {
            edns.set_rcode_high(code.high());
        }
        answer.set_edns(edns);
    }
    answer
}

/// The answer with the zone's records. `authority` is sent with an answer without records.
pub(super) fn local(question: &Message, found: Answer, authority: Record) -> Message {
    let mut answer = reply(question, found.code);
    answer.metadata.authoritative = true;
    if found.answers.is_empty() {
        answer.add_authority(authority);
    }
    answer.add_answers(found.answers);
    answer.add_additionals(found.additionals);
    answer
}

/// The bytes of an answer over UDP. It contains as many records as the client accepts, and is
/// marked as truncated if that is not all.
pub(super) fn for_udp(question: Option<&Message>, mut answer: Message) -> Option<Vec<u8>> {
    let takes = question.and_then(|it| it.edns.as_ref()).map_or(PAYLOAD_MIN, |edns| edns.max_payload());
    let limit = usize::from(takes.clamp(PAYLOAD_MIN, PAYLOAD_MAX));
    loop {
        let bytes = encode(&answer)?;
        if bytes.len() <= limit {
            return Some(bytes);
        }
        if !answer.additionals.is_empty() {
            answer.additionals.clear();
            continue;
        }
        answer.metadata.truncation = true;
        if answer.answers.is_empty() {
            return encode(&answer.truncate());
        }
        let kept = answer.answers.len() * 3 / 4;
        answer.answers.truncate(kept);
    }
}

pub(super) fn encode(answer: &Message) -> Option<Vec<u8>> {
    answer.to_vec().inspect_err(|error| tracing::warn!(%error, "a DNS response could not be encoded")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> Option<ResponseCode> {
        match parse(bytes) {
            Parsed::Refused(answer) => Some(answer.metadata.response_code),
            Parsed::Question(..) | Parsed::Ignored => None,
        }
    }

    #[test]
    fn messages_that_are_no_questions_get_an_error_or_nothing() {
        let question = Message::query();
        assert_eq!(refusal(&question.to_vec().unwrap()), Some(ResponseCode::FormErr));
        let mut update = Message::new(7, MessageType::Query, OpCode::Update);
        update.add_query(Query::new());
        assert_eq!(refusal(&update.to_vec().unwrap()), Some(ResponseCode::NotImp));
        let mut bytes = question.to_vec().unwrap();
        bytes[5] = 9;
        assert_eq!(refusal(&bytes), Some(ResponseCode::FormErr), "the header counts nine questions");
        assert!(matches!(parse(&question.into_response().to_vec().unwrap()), Parsed::Ignored), "no answer to answers");
        assert!(matches!(parse(b"short"), Parsed::Ignored));
        let mut versioned = Message::query();
        versioned.add_query(Query::new());
        versioned.set_edns(Edns::new());
        versioned.edns.as_mut().unwrap().set_version(1);
        assert_eq!(refusal(&versioned.to_vec().unwrap()), Some(ResponseCode::BADVERS));
    }
}
