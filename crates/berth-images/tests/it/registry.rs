//! Pulls from a real registry server.
