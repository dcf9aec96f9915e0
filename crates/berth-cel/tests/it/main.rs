//! Expressions as users write them, through the public interface.

mod hostile;
mod language;
mod published;
mod rules;
