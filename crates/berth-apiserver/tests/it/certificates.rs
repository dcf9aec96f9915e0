//! Certificate signing requests: creating, approving and signing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::pki::Pki;
use berth_apiserver::{ApiServer, UserInfo};
use berth_store::{MemoryStore, Store, Write};
use http::Method;
use rcgen::{CertificateParams, DnType, DnValue, KeyPair};
use serde_json::{Value, json};

use crate::harness::{Answer, Server, config_on, server};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const JSON: &str = "application/json";
const SIGNER: &str = "example.com/servers";

/// A certificate request of a new key, as base64 of PEM.
fn request(organization: impl Into<DnValue>) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "ann");
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let key = KeyPair::generate().expect("a key");
    STANDARD.encode(params.serialize_request(&key).expect("signed").pem().expect("PEM"))
}

fn wanted(name: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": request("team-a"), "signerName": SIGNER, "usages": ["digital signature", "client auth"]}})
}

/// A user with permission to write all parts of requests, and `verb` for these signers.
async fn user(server: &Server, name: &str, verb: &str, signers: &[&str]) -> UserInfo {
    let all = json!([
        "certificatesigningrequests",
        "certificatesigningrequests/approval",
        "certificatesigningrequests/status"
    ]);
    let mut rules = vec![json!({"apiGroups": ["certificates.k8s.io"], "resources": all,
        "verbs": ["create", "get", "update", "patch"]})];
    if !signers.is_empty() {
        rules.push(json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": signers,
            "verbs": [verb]}));
    }
    let role = json!({"metadata": {"name": name}, "rules": rules});
    server.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": name}]});
    server.post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
    let mut user = UserInfo::new(name, &["people"]);
    user.uid = "7".to_owned();
    user.extra.insert("example.com/desk".to_owned(), vec!["3".to_owned()]);
    user
}

async fn put(server: &Server, user: &UserInfo, name: &str, subresource: &str, object: &Value) -> Answer {
    server.request_as(user, Method::PUT, &format!("{REQUESTS}/{name}{subresource}"), JSON, object).await
}

#[track_caller]
fn rejected(answer: Answer, code: u16, text: &str) {
    let answer = answer.expect(code);
    assert!(answer["message"].as_str().unwrap().contains(text), "{text}: {answer:#}");
}

fn conditions(list: &[(&str, &str)]) -> Value {
    list.iter().map(|(kind, status)| json!({"type": kind, "status": status, "reason": "Test"})).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_names_its_user_and_is_immutable() {
    let server = server();
    let ann = user(&server, "ann", "approve", &[]).await;
    let mut object = wanted("r");
    object["spec"]["username"] = "system:admin".into();
    object["spec"]["uid"] = "0".into();
    object["spec"]["groups"] = json!(["system:masters"]);
    object["spec"]["extra"] = json!({"a": ["b"]});
    object["status"] = json!({"conditions": conditions(&[("Approved", "True")])});
    let mut made = server.request_as(&ann, Method::POST, REQUESTS, JSON, &object).await.expect(201);
    let spec = &made["spec"];
    assert_eq!((&spec["username"], &spec["uid"]), (&json!("ann"), &json!("7")));
    assert_eq!(spec["groups"], json!(["people", "system:authenticated"]));
    assert_eq!(spec["extra"], json!({"example.com/desk": ["3"]}));
    assert!(made["status"]["conditions"].is_null(), "{made}");
    let before = made["spec"].clone();
    made["spec"]["username"] = "bob".into();
    made["spec"]["usages"] = json!(["any"]);
    made["status"] = json!({"conditions": conditions(&[("Approved", "True")]), "certificate": "eA=="});
    made["metadata"]["labels"] = json!({"a": "b"});
    let kept = put(&server, &ann, "r", "", &made).await.expect(200);
    assert_eq!((&kept["spec"], &kept["metadata"]["labels"]["a"]), (&before, &json!("b")));
    assert!(kept["status"]["conditions"].is_null() && kept["status"]["certificate"].is_null(), "{kept}");
    server.put(&format!("{REQUESTS}/new"), wanted("new")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn invalid_certificate_requests_are_rejected() {
    let server = server();
    let try_with = async |field: &str, value: Value| {
        let mut object = wanted("r");
        object["spec"][field] = value;
        server.post(&format!("{REQUESTS}?dryRun=All"), object).await
    };
    try_with("expirationSeconds", json!(600)).await.expect(201);
    let seconds =
        "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)";
    rejected(try_with("expirationSeconds", json!(599)).await, 422, seconds);
    rejected(try_with("usages", json!([])).await, 422, "spec.usages: Required value");
    rejected(try_with("usages", json!(["fun"])).await, 422, "spec.usages[0]: Unsupported value: \"fun\"");
    rejected(try_with("usages", json!(["any", "any"])).await, 422, "spec.usages[1]: Duplicate value: \"any\"");
    for (signer, why) in [
        (Value::Null, "spec.signerName: Required value"),
        (json!("servers"), "must be a fully qualified domain and path of the form 'example.com/signer-name'"),
        (json!("example.com/a/b"), "must be a fully qualified domain and path"),
        (json!("example/servers"), "should be a domain with at least two segments separated by dots"),
        (json!("Example.com/servers"), "validating label \"Example\": a lowercase RFC 1123 label"),
        (json!("example.com/"), "validating label \"\": a lowercase RFC 1123 subdomain"),
        (json!("kubernetes.io/legacy-unknown"), "the legacy signerName is not allowed via this API version"),
    ] {
        rejected(try_with("signerName", signer).await, 422, why);
    }
    let pem = |text: &str| json!(STANDARD.encode(text));
    let sent = String::from_utf8(STANDARD.decode(request("team-a")).unwrap()).unwrap();
    // The last bytes belong to the signature.
    let (start, end) = sent.trim_end().rsplit_once("\n-----END").unwrap();
    let (start, last) = start.split_at(start.len() - 8);
    let forged = format!("{start}{}\n-----END{end}\n", if last.starts_with('A') { "BBBBBBBB" } else { "AAAAAAAA" });
    for (request, why) in [
        (pem("nothing"), "PEM block type must be CERTIFICATE REQUEST"),
        (pem(&sent.replace("CERTIFICATE REQUEST", "CERTIFICATE")), "PEM block type must be CERTIFICATE REQUEST"),
        (pem("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"), "must be a PKCS#10"),
        (pem(&forged), "spec.request: Invalid value"),
    ] {
        rejected(try_with("request", request).await, 422, why);
    }
    // No request for this signer may ask for the group system:masters.
    let mut object = wanted("r");
    object["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client".into();
    server.post(&format!("{REQUESTS}?dryRun=All"), object.clone()).await.expect(201);
    object["spec"]["request"] = request("system:masters").into();
    let why = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    rejected(server.post(REQUESTS, object.clone()).await, 403, why);
    object["spec"]["signerName"] = SIGNER.into();
    server.post(REQUESTS, object.clone()).await.expect(201);
    // Encodings that this server does not support, but that the signer may support.
    object["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client".into();
    let masters = "system:masters";
    let encodings = [
        DnValue::BmpString(masters.try_into().expect("UCS-2")),
        DnValue::TeletexString(masters.try_into().expect("T.61")),
    ];
    object["metadata"]["name"] = "other".into();
    for encoded in encodings {
        object["spec"]["request"] = request(encoded).into();
        let why = "failed to parse CSR: an organization of the subject must be a UTF8String";
        rejected(server.post(REQUESTS, object.clone()).await, 403, why);
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_stored_request_can_be_labelled_and_deleted() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let mut object = wanted("r");
    object["metadata"]["finalizers"] = json!(["example.com/f"]);
    server.post(REQUESTS, object).await.expect(201);
    let key = "/certificates.k8s.io/certificatesigningrequests/r";
    let record = store.get(key).expect("stored");
    let mut value = record.value().as_ref().clone();
    value["spec"]["request"] = "aGk=".into();
    value["spec"]["usages"] = json!(["fun"]);
    value["status"] = json!({"conditions": conditions(&[("Approved", "True"), ("Denied", "True")])});
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    server.api.store_handle().commit(write).await.expect("stored");
    let uri = format!("{REQUESTS}/r");
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = server.patch(&uri, "merge-patch", labelled).await.expect(200);
    assert_eq!((&labelled["spec"]["request"], &labelled["metadata"]["labels"]["a"]), (&json!("aGk="), &json!("b")));
    // Changed parts must be valid.
    let condition =
        json!({"status": {"conditions": conditions(&[("Approved", "True"), ("Denied", "True"), ("", "True")])}});
    rejected(server.patch(&format!("{uri}/approval"), "merge-patch", condition).await, 422, "type: Required value");
    server.delete(&uri, Value::Null).await.expect(200);
    server.patch(&uri, "merge-patch", json!({"metadata": {"finalizers": []}})).await.expect(200);
    server.get(&uri).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn approving_requires_permission_for_the_signer_and_changes_only_conditions() {
    let server = server();
    let clerk = user(&server, "clerk", "approve", &["example.com/clients", "*"]).await;
    let signer = user(&server, "signer", "sign", &[SIGNER]).await;
    let approver = user(&server, "approver", "approve", &["example.com/*"]).await;
    let made = server.post(REQUESTS, wanted("r")).await.expect(201);
    let with = |list: &[(&str, &str)]| {
        let mut object = made.clone();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        object["status"] = json!({"conditions": conditions(list)});
        object
    };
    let mut approved = with(&[("Approved", "True")]);
    let why = "user not permitted to approve requests with signerName \"example.com/servers\"";
    rejected(put(&server, &clerk, "r", "/approval", &approved).await, 403, why);
    rejected(put(&server, &signer, "r", "/approval", &approved).await, 403, why);
    let why = "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"";
    rejected(put(&server, &approver, "r", "/approval", &with(&[("Approved", "False")])).await, 422, why);
    let both = with(&[("Approved", "True"), ("Denied", "True")]);
    let why = "Approved and Denied conditions are mutually exclusive";
    rejected(put(&server, &approver, "r", "/approval", &both).await, 422, why);

    approved["spec"]["usages"] = json!(["any"]);
    approved["status"]["certificate"] = "eA==".into();
    let stored = put(&server, &approver, "r", "/approval", &approved).await.expect(200);
    assert_eq!(stored["spec"], made["spec"]);
    assert!(stored["status"]["certificate"].is_null(), "{stored}");
    let condition = &stored["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Approved"), &json!("True")));
    let start = json!("2026-01-01T00:00:00Z");
    assert_eq!((&condition["lastUpdateTime"], &condition["lastTransitionTime"]), (&start, &start));
    assert_eq!(server.get(&format!("{REQUESTS}/r")).await.expect(200)["status"], stored["status"]);

    let why = "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"";
    rejected(put(&server, &approver, "r", "/approval", &with(&[])).await, 422, why);
    rejected(put(&server, &approver, "r", "/approval", &with(&[("Denied", "True")])).await, 422, why);
    // The timestamp of the decision does not change.
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    let again = put(&server, &approver, "r", "/approval", &with(&[("Approved", "True")])).await.expect(200);
    assert_eq!(again["status"]["conditions"][0]["lastTransitionTime"], start);
}

#[tokio::test(start_paused = true)]
async fn signing_requires_permission_for_the_signer_and_cannot_approve() {
    let server = server();
    let approver = user(&server, "approver", "approve", &[SIGNER]).await;
    let signer = user(&server, "signer", "sign", &["example.com/*"]).await;
    let made = server.post(REQUESTS, wanted("r")).await.expect(201);
    let with = |status: Value| {
        let mut object = made.clone();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        object["status"] = status;
        object
    };
    let pki = Pki::ephemeral("2026-01-01T00:00:00Z".parse().unwrap()).expect("keys");
    let certificate = STANDARD.encode(pki.authority_pem());
    let signed = with(json!({"certificate": certificate}));
    let why = "user not permitted to sign requests with signerName \"example.com/servers\"";
    rejected(put(&server, &approver, "r", "/status", &signed).await, 403, why);
    let approved = with(json!({"conditions": conditions(&[("Approved", "True")])}));
    let why = "updates may not add a condition of type \"Approved\"";
    rejected(put(&server, &signer, "r", "/status", &approved).await, 422, why);
    put(&server, &approver, "r", "/approval", &approved).await.expect(200);
    rejected(put(&server, &signer, "r", "/status", &signed).await, 422, "updates may not remove a condition");

    let with_both = |certificate: &str| {
        let mut both = approved.clone();
        both["status"]["certificate"] = certificate.into();
        both["status"]["conditions"][0]["reason"] = "SignersOwn".into();
        both
    };
    let junk = STANDARD.encode("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
    let why = "only CERTIFICATE PEM blocks are allowed, found \"PUBLIC KEY\"";
    rejected(put(&server, &signer, "r", "/status", &with_both(&junk)).await, 422, why);
    let none = STANDARD.encode("certificate");
    let why = "must contain at least one CERTIFICATE PEM block";
    rejected(put(&server, &signer, "r", "/status", &with_both(&none)).await, 422, why);
    let stored = put(&server, &signer, "r", "/status", &with_both(&certificate)).await.expect(200);
    assert_eq!(stored["status"]["certificate"], certificate);
    assert_eq!(stored["status"]["conditions"][0]["reason"], "Test", "the signer cannot change the decision");
    let other = STANDARD.encode(Pki::ephemeral("2026-01-01T00:00:00Z".parse().unwrap()).expect("keys").authority_pem());
    let why = "updates may not modify existing certificate content";
    rejected(put(&server, &signer, "r", "/status", &with_both(&other)).await, 422, why);
    // A status update that changes neither certificate nor conditions needs no permission for the
    // signer.
    let unchanged = server.get(&format!("{REQUESTS}/r")).await.expect(200);
    put(&server, &approver, "r", "/status", &unchanged).await.expect(200);
}
