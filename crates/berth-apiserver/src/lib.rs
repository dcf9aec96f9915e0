//! The embedded Kubernetes API server: one path for every kind, a kind is a row in a table.
