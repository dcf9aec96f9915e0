//! Expressions as users write them, through the public interface.

mod costs;
mod hostile;
mod language;
mod published;
mod rules;
