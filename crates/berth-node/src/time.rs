//! The clock of this machine.
//!
//! Processes run in real time. The supervisor is a separate process, so no clock can be passed to
//! it.

use jiff::Timestamp;

/// Returns the time of the machine's clock.
#[expect(clippy::disallowed_methods, reason = "processes of this machine run in real time")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
