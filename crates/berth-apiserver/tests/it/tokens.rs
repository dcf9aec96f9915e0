//! Service account tokens: in Secrets, on request, and the published keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::ApiServer;
use berth_apiserver::auth::tokens::{Account, TokenKey};
use serde_json::{Value, json};

use crate::harness::{Server, config};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn server() -> Server {
    let mut config = config();
    config.token_key = Some(TokenKey::generate().expect("a key"));
    Server { api: ApiServer::new(config) }
}

fn secret(name: &str, account: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}},
        "type": "kubernetes.io/service-account-token"})
}

fn decoded(secret: &Value, key: &str) -> String {
    let bytes = STANDARD.decode(secret["data"][key].as_str().unwrap_or_default()).expect("base64");
    String::from_utf8(bytes).expect("text")
}

#[tokio::test(start_paused = true)]
async fn a_token_secret_is_filled_and_its_token_is_valid_while_secret_and_account_exist() {
    let server = server();
    let tokens = server.api.tokens().expect("a key");
    let account = server.post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await.expect(201);
    let authority = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "PEM"}});
    server.post("/api/v1/namespaces/default/configmaps", authority).await.expect(201);
    let made = server.post(SECRETS, secret("t", "robot")).await.expect(201);
    assert_eq!((decoded(&made, "namespace"), decoded(&made, "ca.crt")), ("default".to_owned(), "PEM".to_owned()));
    let uid = &account["metadata"]["uid"];
    assert_eq!(&made["metadata"]["annotations"]["kubernetes.io/service-account.uid"], uid);
    let token = decoded(&made, "token");
    let user = tokens.verify(&token, None).expect("valid").user;
    let expected = Account { namespace: "default", name: "robot", uid: uid.as_str().unwrap(), ..Account::default() };
    assert_eq!(user, expected.user());
    assert!(tokens.verify(&token, Some(&["vault".to_owned()])).is_err(), "the token is for this server only");

    // The token does not expire, and updates keep it.
    tokio::time::advance(std::time::Duration::from_secs(366 * 24 * 3600)).await;
    assert!(tokens.verify(&token, None).is_ok());
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let kept = server.patch(&format!("{SECRETS}/t"), "merge-patch", label).await.expect(200);
    assert_eq!(decoded(&kept, "token"), token);
    server.delete(&format!("{SECRETS}/t"), Value::Null).await.expect(200);
    assert!(tokens.verify(&token, None).is_err(), "the secret is deleted");

    let again = server.post(SECRETS, secret("u", "robot")).await.expect(201);
    let token = decoded(&again, "token");
    server.delete(&format!("{ACCOUNTS}/robot"), Value::Null).await.expect(200);
    assert!(tokens.verify(&token, None).is_err(), "the account is deleted");
    server.post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await.expect(201);
    assert!(tokens.verify(&token, None).is_err(), "the new account has another uid");
}

#[tokio::test(start_paused = true)]
async fn a_token_secret_without_an_existing_account_is_rejected_or_stays_empty() {
    let server = server();
    let without_account = json!({"metadata": {"name": "t"}, "type": "kubernetes.io/service-account-token"});
    let rejected = server.post(SECRETS, without_account).await.expect(422);
    assert_eq!(rejected["details"]["causes"][0]["field"], "metadata.annotations[kubernetes.io/service-account.name]");
    let made = server.post(SECRETS, secret("t", "missing")).await.expect(201);
    assert_eq!(made["data"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_the_issuer_are_published() {
    let server = server();
    let configuration = server.get("/.well-known/openid-configuration").await.expect(200);
    assert_eq!(configuration["id_token_signing_alg_values_supported"], json!(["ES256"]));
    let uri = configuration["jwks_uri"].as_str().unwrap();
    assert!(uri.ends_with("/openid/v1/jwks"), "{uri}");
    let keys = server.get("/openid/v1/jwks").await.expect(200);
    let key = &keys["keys"][0];
    assert_eq!((&key["kty"], &key["crv"], &key["use"]), (&json!("EC"), &json!("P-256"), &json!("sig")));
}

#[tokio::test(start_paused = true)]
async fn malformed_token_requests_are_rejected() {
    let server = server();
    server.post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await.expect(201);
    let uri = format!("{ACCOUNTS}/robot/token");
    // Audiences that are not a list must not count as absent: the default audience is the API
    // server itself.
    for (spec, field) in [
        (json!({"audiences": "vault"}), "spec.audiences"),
        (json!({"audiences": [1]}), "spec.audiences"),
        (json!({"expirationSeconds": "3600"}), "spec.expirationSeconds"),
        (json!({"boundObjectRef": "p"}), "spec.boundObjectRef"),
        (json!("vault"), "spec"),
    ] {
        let rejected = server.post(&uri, json!({"spec": spec})).await.expect(400);
        let message = rejected["message"].as_str().unwrap();
        assert!(message.contains("cannot unmarshal") && message.contains(field), "{spec}: {message}");
    }
    let made = server.post(&uri, json!({"spec": {"audiences": ["vault"]}})).await.expect(201);
    assert_eq!(made["spec"]["audiences"], json!(["vault"]));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_bound_to_pods_of_its_own_account_only() {
    let server = server();
    server.post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await.expect(201);
    server.post(ACCOUNTS, json!({"metadata": {"name": "other"}})).await.expect(201);
    let spec = json!({"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]});
    server.post("/api/v1/namespaces/default/pods", json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
    let request = json!({"spec": {"audiences": [], "boundObjectRef": bound}});
    server.post(&format!("{ACCOUNTS}/robot/token"), request.clone()).await.expect(201);
    let rejected = server.post(&format!("{ACCOUNTS}/other/token"), request).await.expect(400);
    let why = "cannot bind token for serviceaccount \"other\" to pod running with different serviceaccount name.";
    assert_eq!(rejected["message"], why);
}
