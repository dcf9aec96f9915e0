//! The decisions of a Kueue-compatible batch queueing engine, pure: events in, decisions out.
