//! The TLS listener: accepts connections, authenticates, calls [`crate::ApiServer::handle`].
