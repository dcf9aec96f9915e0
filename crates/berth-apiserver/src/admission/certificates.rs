//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction. A user needs
//! permission on the signer's name to approve or sign a request. No request to the signer of
//! client certificates may ask for membership in `system:masters`.
//!
//! Source of the behaviour: Kubernetes documentation, "Certificates and Certificate Signing
//! Requests" and "Admission Controllers".

use berth_apimachinery::status::Status;
use serde_json::Value;

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden};
use crate::auth::{self, Attributes, MASTERS};
use crate::strategy::{same, signing_request};

const GROUP: &str = "certificates.k8s.io";
/// The signer whose certificates authenticate clients of the API server.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub(crate) struct Certificates;

impl AdmissionPlugin for Certificates {
    fn name(&self) -> &str {
        "CertificateApproval"
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if request.group != GROUP || request.resource != "certificatesigningrequests" {
            return Ok(());
        }
        match (request.operation, request.subresource, &request.object, request.old_object.as_deref()) {
            (Operation::Create, "", Some(new), _) => check_subject(request, new),
            (Operation::Update, "approval", _, Some(old)) => check_signer(request, old, "approve"),
            (Operation::Update, "status", Some(new), Some(old)) => {
                let is_same = |field: &str| same(&new["status"][field], &old["status"][field]);
                if is_same("certificate") && is_same("conditions") {
                    return Ok(());
                }
                check_signer(request, old, "sign")
            }
            _ => Ok(()),
        }
    }
}

/// Checks that the user has the permission for the signer, or for all signers of its domain. Uses
/// the signer of the stored object; it is immutable.
fn check_signer(request: &AdmissionRequest<'_>, stored: &Value, verb: &str) -> Result<(), Status> {
    let signer = stored["spec"]["signerName"].as_str().unwrap_or_default();
    let of_domain = signer.split_once('/').map(|(domain, _)| format!("{domain}/*"));
    let is_allowed = [Some(signer), of_domain.as_deref()].into_iter().flatten().any(|name| {
        let (group, resource) = (GROUP, "signers");
        let attributes = Attributes { verb, group, resource, name, is_resource_request: true, ..Attributes::default() };
        auth::decide(request.objects, &attributes, request.user).allowed
    });
    if is_allowed {
        return Ok(());
    }
    let signer = berth_apimachinery::field::quote(signer);
    Err(forbidden(request, &format!("user not permitted to {verb} requests with signerName {signer}")))
}

fn check_subject(request: &AdmissionRequest<'_>, wanted: &Value) -> Result<(), Status> {
    if wanted["spec"]["signerName"] != CLIENT_SIGNER {
        return Ok(());
    }
    let organizations = signing_request::organizations(&wanted["spec"]["request"])
        .map_err(|error| forbidden(request, &format!("failed to parse CSR: {error}")))?;
    if !organizations.iter().any(|name| name == MASTERS) {
        return Ok(());
    }
    Err(forbidden(request, &format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed")))
}
