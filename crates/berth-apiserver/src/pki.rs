//! The certificate authority, serving and client certificates.
