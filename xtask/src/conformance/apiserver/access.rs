//! Suites of authentication, impersonation and RBAC.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apiserver::UserInfo;
use berth_apiserver::auth::authn::{Bearer, bearer_token, with_authenticated_group, x509_user};
use berth_apiserver::auth::paths::AllowedPaths;
use berth_apiserver::auth::rbac::{self, Policies, Rule};
use berth_apiserver::auth::request_header::RequestHeaders;
use berth_apiserver::auth::{Attributes, Decision, authn, impersonation, reconcile, tokens};
use serde_json::Value;

use super::{input, same, text, texts, want};
use crate::conformance::{Case, Runner, Verdict};

pub(super) fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "authn-anonymous" => anonymous,
        "authn-audiences" => audiences,
        "authn-bearer-token" => bearer,
        "authn-group-adder" => group_adder,
        "authn-request-header" => request_header,
        "authn-service-account" => service_account,
        "authn-websocket-token" => websocket_token,
        "authn-x509" => x509,
        "authz-always-allow-paths" => always_allowed,
        "forbidden-message" => forbidden_message,
        "impersonation" => impersonate,
        "rbac-authorizer" => authorizer,
        "rbac-covers" => covers,
        "rbac-non-resource-url-covers" => url_covers,
        "rbac-reconcile-binding" => reconcile_binding,
        "rbac-reconcile-role" => reconcile_role,
        "rbac-rule-allows" => rule_allows,
        "rbac-rules-for" => rules_for,
        "rbac-subject-applies" => subject_applies,
        _ => return None,
    })
}

fn user(value: &Value) -> UserInfo {
    let extra = value.get("extra").and_then(Value::as_object).into_iter().flatten();
    UserInfo {
        name: text(value, "name").to_owned(),
        uid: text(value, "uid").to_owned(),
        groups: texts(value.get("groups").unwrap_or(&Value::Null)),
        extra: extra.map(|(key, values)| (key.clone(), texts(values))).collect(),
    }
}

fn anonymous(case: &Case) -> Verdict {
    let url = input(case, "path").as_str().unwrap_or_default();
    let path = url.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])).unwrap_or(url);
    let authenticator = authn::Authenticator::new(BTreeMap::new(), None);
    let got = authenticator.authenticate(None, path, &mut http::HeaderMap::new());
    same("allowed", got.is_ok(), want(case, "wantAllowed").as_bool().unwrap_or_default())?;
    same("user", got.unwrap_or_default(), user(want(case, "want")))
}

fn bearer(case: &Case) -> Verdict {
    let headers = texts(input(case, "authorizationHeaders"));
    let got = headers.first().map_or(Bearer::None, |header| bearer_token(header));
    // The authenticator accepts the token in the cases named `valid…` only.
    let is_valid = case.name.starts_with("valid");
    let my_user = || UserInfo { name: "myuser".to_owned(), ..UserInfo::default() };
    let tokens = match got {
        Bearer::Token(token) if is_valid => BTreeMap::from([(token.to_owned(), my_user())]),
        _ => BTreeMap::new(),
    };
    let mut sent = http::HeaderMap::new();
    for header in &headers {
        sent.append(http::header::AUTHORIZATION, header.parse().map_err(|error| format!("{header}: {error}"))?);
    }
    let user = authn::Authenticator::new(tokens, None).authenticate(None, "/api", &mut sent);
    let user = user.map(|user| user.name).unwrap_or_default();
    same("user", user.as_str(), text(&case.want, "expectedUserName"))?;
    let left = sent.get_all(http::header::AUTHORIZATION).iter();
    let left: Vec<String> = left.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
    same("headers", left, texts(want(case, "expectedAuthorizationHeaders")))?;
    let flag = |field: &str| want(case, field).as_bool().unwrap_or_default();
    same("ok", matches!(got, Bearer::Token(_)) && is_valid, flag("expectedOK"))?;
    same("error", matches!(got, Bearer::Token(_)) && !is_valid, flag("expectedErr"))?;
    let warned = !want(case, "expectedRecordedWarning").as_str().unwrap_or_default().is_empty();
    same("warning", got == Bearer::Misspelt, warned)
}

fn audiences(case: &Case) -> Verdict {
    let got = tokens::matching_audiences(&texts(input(case, "auds")), &texts(input(case, "tauds")));
    same("audiences", got, texts(want(case, "expected")))
}

fn service_account(case: &Case) -> Verdict {
    let (all, flag) = (&case.input, |field: &str| want(case, field).as_bool().unwrap_or_default());
    let (namespace, name) = (text(all, "namespace"), text(all, "name"));
    match text(&case.data, "upstreamTest") {
        "TestMakeUsername" => {
            same("error", tokens::service_account_user_name(namespace, name).is_none(), flag("expectedErr"))
        }
        "TestMatchUsername" => {
            let got = tokens::split_service_account(text(all, "username")) == Some((namespace, name));
            same("match", got, flag("expect"))
        }
        "TestUserInfo" => {
            let info = input(case, "info");
            let account = tokens::Account {
                namespace: text(info, "namespace"),
                name: text(info, "name"),
                uid: text(info, "uid"),
                pod_name: text(info, "podName"),
                pod_uid: text(info, "podUID"),
                node_name: text(info, "nodeName"),
                node_uid: text(info, "nodeUID"),
                credential_id: text(info, "credentialID"),
            };
            same("user", account.user(), user(want(case, "expectedUserInfo")))
        }
        "TestIsServiceAccountToken" => {
            let got = tokens::is_token_of(&all["secret"], &all["sa"]);
            same("token of the account", got, flag("expect"))
        }
        other => Err(format!("unknown test {other}")),
    }
}

fn request_header(case: &Case) -> Verdict {
    let names = |field: &str| texts(input(case, field));
    let rules = RequestHeaders {
        names: names("nameHeaders"),
        uids: names("uidHeaders"),
        groups: names("groupHeaders"),
        extra_prefixes: names("extraPrefixHeaders"),
    };
    let given: Vec<(&str, &str)> = input(case, "requestHeaders")
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(name, values)| {
            let values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
            values.map(move |value| (name.as_str(), value))
        })
        .collect();
    let got = rules.user(&given);
    same("ok", got.is_some(), want(case, "expectedOk").as_bool().unwrap_or_default())?;
    let Some(got) = got else { return Ok(()) };
    same("user", got, user(want(case, "expectedUser")))?;
    // Compare the remaining headers, if the case records them: those that no rule reads.
    let Some(remaining) = input(case, "finalHeaders").as_object() else { return Ok(()) };
    let left: Vec<&str> = given.iter().map(|(name, _)| *name).filter(|name| !rules.is_one(name)).collect();
    same("headers left", left, remaining.keys().map(String::as_str).collect())
}

fn websocket_token(case: &Case) -> Verdict {
    let mut headers = http::HeaderMap::new();
    for value in texts(input(case, "protocolHeaders")) {
        let value = value.parse().map_err(|error| format!("{value}: {error}"))?;
        headers.append(http::header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    // The authenticator accepts the token in the cases named `valid…` only.
    let is_valid = case.name.starts_with("valid");
    let tokens = BTreeMap::from([("token".to_owned(), UserInfo { name: "myuser".to_owned(), ..UserInfo::default() })]);
    let authenticator = authn::Authenticator::new(if is_valid { tokens } else { BTreeMap::new() }, None);
    let has_token = !matches!(authn::websocket_token(&headers), Ok(None));
    let got = authenticator.authenticate(None, "/api", &mut headers);
    let flag = |field: &str| want(case, field).as_bool().unwrap_or_default();
    same("ok", got.is_ok(), flag("expectedOK"))?;
    same("error", has_token && got.is_err(), flag("expectedErr"))?;
    same("user", got.map(|user| user.name).unwrap_or_default().as_str(), text(&case.want, "expectedUserName"))?;
    let left = headers.get_all(http::header::SEC_WEBSOCKET_PROTOCOL).iter();
    let left: Vec<String> = left.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
    same("headers", left, texts(want(case, "expectedProtocolHeaders")))
}

fn always_allowed(case: &Case) -> Verdict {
    let allowed = AllowedPaths::new(&texts(input(case, "excludedPaths")));
    same("error", allowed.is_err(), want(case, "wantErr").as_bool().unwrap_or_default())?;
    let Ok(allowed) = allowed else { return Ok(()) };
    for (field, wanted) in [("allowed", true), ("noOpinion", false)] {
        for path in texts(want(case, field)) {
            same(&path, allowed.allows(&path), wanted)?;
        }
    }
    Ok(())
}

fn group_adder(case: &Case) -> Verdict {
    same("user", with_authenticated_group(user(input(case, "inputUser"))), user(want(case, "expectedUser")))
}

fn x509(case: &Case) -> Verdict {
    let pem = input(case, "certificates").pointer("/0/pem").and_then(Value::as_str).unwrap_or_default();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let mut wanted = user(&want(case, "response")["user"]);
    let mut got = x509_user(&decode_base64(&body)).ok_or("no user")?;
    if case.name.contains("feature gate disabled") {
        (got.uid, wanted.uid) = (String::new(), String::new());
    }
    same("user", got, wanted)
}

fn decode_base64(text: &str) -> Vec<u8> {
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

pub(super) fn attributes(value: &Value) -> Attributes<'_> {
    Attributes {
        verb: text(value, "verb"),
        group: text(value, "apiGroup"),
        resource: text(value, "resource"),
        subresource: text(value, "subresource"),
        name: text(value, "name"),
        namespace: text(value, "namespace"),
        path: text(value, "path"),
        is_resource_request: value.get("resourceRequest").and_then(Value::as_bool).unwrap_or_default(),
    }
}

fn forbidden_message(case: &Case) -> Verdict {
    let request = input(case, "attributes");
    let status = attributes(request).forbidden(&user(&request["user"]), text(&case.input, "reason"));
    let wanted: Value = serde_json::from_str(want(case, "expected").as_str().unwrap_or_default())
        .map_err(|error| format!("expectation: {error}"))?;
    same("status", status.to_value(), wanted)
}

/// The fake authorizer of the recorded cases (the folder's README).
fn may_impersonate(user: &UserInfo, request: &Attributes<'_>) -> bool {
    if user.name == "system:admin" {
        return true;
    }
    let group = |at: usize| user.groups.get(at).map(String::as_str).unwrap_or_default();
    let by_first = match group(0) {
        "wheel" | "regular-impersonater" => request.resource == "users",
        "sa-impersonater" => request.resource == "serviceaccounts",
        "everything-impersonater" => match request.resource {
            "users" | "groups" => request.group.is_empty(),
            "uids" => request.group == "authentication.k8s.io" && request.name == "some-uid",
            "userextras" => request.group == "authentication.k8s.io" && request.subresource == "scopes",
            _ => false,
        },
        _ => false,
    };
    let by_second = match group(1) {
        "group-impersonater" => request.resource == "groups",
        "extra-setter-scopes" => request.resource == "userextras" && request.subresource == "scopes",
        "extra-setter-particular-scopes" => {
            request.resource == "userextras" && request.subresource == "scopes" && request.name == "scope-a"
        }
        "extra-setter-project" => request.resource == "userextras" && request.subresource == "project",
        "escaped-scopes" | "almost-escaped-scopes" => true,
        _ => false,
    };
    user.name != "tester" && (by_first || by_second)
}

fn impersonate(case: &Case) -> Verdict {
    let mut headers = http::HeaderMap::new();
    for (name, values) in input(case, "headers").as_object().into_iter().flatten() {
        let name: http::HeaderName = name.parse().map_err(|error| format!("{name}: {error}"))?;
        for value in texts(values) {
            headers.append(name.clone(), value.parse().map_err(|error| format!("{value}: {error}"))?);
        }
    }
    let before = user(input(case, "user"));
    let decide = |user: &UserInfo, request: &Attributes<'_>| Decision {
        allowed: may_impersonate(user, request),
        reason: String::new(),
    };
    let (code, got) = match impersonation::apply(before.clone(), &mut headers, decide) {
        Ok(user) => (200, user),
        Err(status) => (i64::from(status.code), before),
    };
    same("code", code, want(case, "code").as_i64().unwrap_or_default())?;
    same("user", got, user(want(case, "user")))
}

/// Roles and bindings of a case.
struct Recorded<'a>(&'a Value);

impl Recorded<'_> {
    fn all(&self, field: &str) -> impl Iterator<Item = Arc<Value>> {
        self.0.get(field).and_then(Value::as_array).into_iter().flatten().cloned().map(Arc::new)
    }
}

impl Policies for Recorded<'_> {
    fn role(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.all("roles").find(|role| meta::namespace(role) == namespace && meta::name(role) == name)
    }

    fn cluster_role(&self, name: &str) -> Option<Arc<Value>> {
        self.all("clusterRoles").find(|role| meta::name(role) == name)
    }

    fn cluster_roles(&self) -> Vec<Arc<Value>> {
        self.all("clusterRoles").collect()
    }

    fn role_bindings(&self, namespace: &str) -> Vec<Arc<Value>> {
        self.all("roleBindings").filter(|binding| meta::namespace(binding) == namespace).collect()
    }

    fn cluster_role_bindings(&self) -> Vec<Arc<Value>> {
        self.all("clusterRoleBindings").collect()
    }
}

fn authorizer(case: &Case) -> Verdict {
    let request = input(case, "attributes");
    let decision = rbac::decide(&Recorded(case.input.whole()), &attributes(request), &user(&request["user"]));
    same("allowed", decision.allowed, want(case, "allowed").as_bool().unwrap_or_default())
}

fn rules(list: &Value) -> Vec<Rule> {
    list.as_array().into_iter().flatten().map(Rule::from_value).collect()
}

fn covers(case: &Case) -> Verdict {
    let got = rbac::uncovered(&rules(input(case, "ownerRules")), &rules(input(case, "requestedRules")));
    same("covered", got.is_empty(), want(case, "covered").as_bool().unwrap_or_default())?;
    same("uncovered", sorted(got), sorted(rules(want(case, "uncovered"))))
}

fn sorted(rules: Vec<Rule>) -> Vec<String> {
    let mut texts: Vec<String> = rules.iter().map(|rule| rule.to_value().to_string()).collect();
    texts.sort();
    texts
}

fn url_covers(case: &Case) -> Verdict {
    let url = |field: &str| input(case, field).as_str().unwrap_or_default();
    same("covers", rbac::url_covers(url("owner"), url("requested")), want(case, "want").as_bool().unwrap_or_default())
}

fn rule_allows(case: &Case) -> Verdict {
    let got = Rule::from_value(input(case, "rule")).allows(&attributes(input(case, "attributes")));
    same("match", got, want(case, "match").as_bool().unwrap_or_default())
}

fn rules_for(case: &Case) -> Verdict {
    let namespace = input(case, "namespace").as_str().unwrap_or_default();
    let (got, _) = rbac::rules_for(&Recorded(case.input.whole()), &user(input(case, "user")), namespace);
    same("rules", sorted(got), sorted(rules(want(case, "rules"))))
}

fn subject_applies(case: &Case) -> Verdict {
    let (user, namespace) = (user(input(case, "user")), input(case, "namespace").as_str().unwrap_or_default());
    let subjects = input(case, "subjects").as_array().into_iter().flatten();
    let got = subjects.into_iter().any(|subject| rbac::applies_to(&user, subject, namespace));
    same("applies", got, want(case, "appliesTo").as_bool().unwrap_or_default())
}

fn reconcile_role(case: &Case) -> Verdict {
    let remove_extra = input(case, "removeExtraPermissions").as_bool().unwrap_or_default();
    let got = reconcile::role(input(case, "expectedRole"), input(case, "actualRole"), remove_extra);
    same("needed", got.is_some(), want(case, "expectedReconciliationNeeded").as_bool().unwrap_or_default())?;
    let wanted = want(case, "expectedReconciledRole");
    let Some(got) = got else { return Ok(()) };
    for path in ["/metadata", "/aggregationRule"] {
        let at = |role: &Value| role.pointer(path).cloned().unwrap_or_default();
        same(path, at(&got), at(wanted))?;
    }
    let rules = |role: &Value| rules(role.get("rules").unwrap_or(&Value::Null));
    same("rules", rules(&got), rules(wanted))
}

fn reconcile_binding(case: &Case) -> Verdict {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if !input(case, "expectedBinding").is_object() {
        let (only_a, only_b) = reconcile::difference(&list(input(case, "a")), &list(input(case, "b")));
        same("only a", only_a, list(want(case, "expectedOnlyA")))?;
        return same("only b", only_b, list(want(case, "expectedOnlyB")));
    }
    let remove_extra = input(case, "removeExtraSubjects").as_bool().unwrap_or_default();
    let got = reconcile::binding(input(case, "expectedBinding"), input(case, "actualBinding"), remove_extra);
    same("needed", got.is_some(), want(case, "expectedUpdateNeeded").as_bool().unwrap_or_default())?;
    same("updated", got.unwrap_or_default(), want(case, "expectedUpdatedBinding").clone())
}
