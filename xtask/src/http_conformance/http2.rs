//! A client that speaks only HTTP/2.

use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use kube::{Client, Config};

/// Creates a client with the credentials of a configuration. Its requests fail if the server does
/// not select HTTP/2 in the TLS handshake.
pub fn client(config: &Config) -> anyhow::Result<Client> {
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_only()
        .enable_http2()
        .build();
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(tower::BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(connector));
    Ok(Client::new(service, config.default_namespace.clone()))
}
