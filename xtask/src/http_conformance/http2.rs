//! A client that speaks HTTP/2 and nothing else, with the credentials of a kubeconfig.

use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use kube::{Client, Config};

/// Makes one; its requests fail when the server does not agree on HTTP/2 in the handshake.
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
