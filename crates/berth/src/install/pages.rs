//! The web pages of an installation: the address, the Service, the certificate, the trusted proxy
//! and the right to impersonate readers.

use berth_controllers::rights;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::manifests::Values;
use crate::controller::webhook::DASHBOARD_SERVICE;

/// Port of the pages in the pods.
pub const PORT: u16 = 8443;
/// Folders in the pods: the pages' own certificate, and the authority of the proxy.
const CERTIFICATE: &str = "/etc/berth-dashboard/certificate";
const PROXY: &str = "/etc/berth-dashboard/proxy";
const PROXY_CA: &str = "/etc/berth-dashboard/proxy/ca.crt";
/// Name of the option's role: `berth-controller-` and this.
pub const ROLE: &str = "dashboard-impersonator";

/// Options of `berth install` for the web pages.
#[derive(Args)]
#[command(next_help_heading = "Web pages")]
pub struct PagesOptions {
    /// Let the controllers serve the web pages over HTTPS, behind Service berth-dashboard. Every
    /// reader sees what its own rights in the cluster allow.
    #[arg(long)]
    dashboard: bool,
    /// Port of the pages in the pods. The Service has port 443.
    #[arg(long, value_name = "PORT", default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..), requires = "dashboard")]
    dashboard_port: u16,
    /// Type of the Service.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ServiceType::ClusterIp, requires = "dashboard")]
    dashboard_service_type: ServiceType,
    /// Host names under which readers open the pages, such as that of an ingress, separated by
    /// commas.
    #[arg(long, value_name = "NAME,…", requires = "dashboard")]
    dashboard_hosts: Option<String>,
    /// Secret with the certificate of the pages: tls.crt and tls.key. Default: the webhooks'
    /// certificate.
    #[arg(long, value_name = "SECRET", requires = "dashboard")]
    dashboard_tls_secret: Option<String>,
    /// Authenticate readers by client certificates of the cluster. The controllers get the right to
    /// impersonate users and groups.
    #[arg(long, requires = "dashboard")]
    dashboard_impersonation: bool,
    /// Secret with ca.crt, the certificate authority of a proxy that authenticates readers (such as
    /// by OIDC) and passes on their names in headers. Implies --dashboard-impersonation.
    #[arg(long, value_name = "SECRET", requires = "dashboard")]
    dashboard_proxy_secret: Option<String>,
    /// Common name of the proxy's certificate. Default: any name.
    #[arg(long, value_name = "NAME", requires = "dashboard_proxy_secret")]
    dashboard_proxy_name: Option<String>,
}

/// Type of the Service of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServiceType {
    /// Inside of the cluster.
    #[value(name = "ClusterIP")]
    ClusterIp,
    /// At a port of every node.
    #[value(name = "NodePort")]
    NodePort,
    /// At an address of a load balancer.
    #[value(name = "LoadBalancer")]
    LoadBalancer,
}

/// The pages of an installation. Texts may be a template's placeholders.
#[derive(Clone, Debug, PartialEq)]
pub struct Pages {
    /// Port in the pods: a number, or a placeholder.
    pub port: Value,
    /// Type of the Service.
    pub service_type: String,
    /// Host names, separated by commas.
    pub hosts: Option<String>,
    /// Secret with the certificate.
    pub tls_secret: Option<String>,
    /// True if readers are impersonated.
    pub impersonation: bool,
    /// Secret with the certificate authority of the proxy.
    pub proxy_secret: Option<String>,
    /// Common name of the proxy's certificate.
    pub proxy_name: Option<String>,
}

impl PagesOptions {
    /// The pages; `None` without the option.
    pub fn pages(&self) -> Option<Pages> {
        let service_type = match self.dashboard_service_type {
            ServiceType::ClusterIp => "ClusterIP",
            ServiceType::NodePort => "NodePort",
            ServiceType::LoadBalancer => "LoadBalancer",
        };
        self.dashboard.then(|| Pages {
            port: self.dashboard_port.into(),
            service_type: service_type.to_owned(),
            hosts: self.dashboard_hosts.clone(),
            tls_secret: self.dashboard_tls_secret.clone(),
            impersonation: self.dashboard_impersonation,
            proxy_secret: self.dashboard_proxy_secret.clone(),
            proxy_name: self.dashboard_proxy_name.clone(),
        })
    }
}

/// The arguments, ports, mounts and volumes of the controllers' pods.
#[derive(Debug, Default)]
pub struct OfPod {
    /// Arguments.
    pub arguments: Vec<String>,
    /// Ports.
    pub ports: Vec<Value>,
    /// Mounts.
    pub mounts: Vec<Value>,
    /// Volumes.
    pub volumes: Vec<Value>,
}

impl Pages {
    /// What the pages add to the pods.
    pub fn of_pod(&self) -> OfPod {
        let text = |port: &Value| port.as_str().map_or_else(|| port.to_string(), str::to_owned);
        let mut arguments = vec![format!("--dashboard-bind-address=:{}", text(&self.port))];
        let mut add = |option: &str, value: Option<&str>| {
            arguments.extend(value.map(|value| format!("--dashboard-{option}={value}")));
        };
        add("host", self.hosts.as_deref());
        add("cert-dir", self.tls_secret.as_ref().map(|_| CERTIFICATE));
        add("proxy-ca-file", self.proxy_secret.as_ref().map(|_| PROXY_CA));
        add("proxy-name", self.proxy_name.as_deref());
        let secrets =
            [("dashboard-certificate", CERTIFICATE, &self.tls_secret), ("dashboard-proxy", PROXY, &self.proxy_secret)];
        let mut of_pod = OfPod {
            arguments,
            ports: vec![json!({"name": "dashboard", "containerPort": self.port, "protocol": "TCP"})],
            ..OfPod::default()
        };
        for (name, path, secret) in secrets {
            let Some(secret) = secret else { continue };
            of_pod.mounts.push(json!({"name": name, "mountPath": path, "readOnly": true}));
            of_pod.volumes.push(json!({"name": name, "secret": {"secretName": secret}}));
        }
        of_pod
    }

    /// The Service. A session of a browser is in the memory of one replica, so that a client stays
    /// with its replica.
    pub fn service(&self, values: &Values, selector: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": DASHBOARD_SERVICE, "namespace": values.namespace, "labels": rights::labels(&[])},
            "spec": {
                "type": self.service_type, "selector": selector, "sessionAffinity": "ClientIP",
                "ports": [{"name": "dashboard", "port": 443, "targetPort": "dashboard"}],
            },
        })
    }

    /// The rules of the right to impersonate readers; `None` if they are not impersonated. Readers
    /// with a token need none: the API server gets their token.
    pub fn rules(&self) -> Option<Value> {
        let is_needed = self.impersonation || self.proxy_secret.is_some();
        is_needed.then(|| json!([{"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]}]))
    }
}

/// The conditions of the chart for items of lists in the Deployment, by a text that only such an
/// item contains.
pub const CONDITIONS: [(&str, &str); 7] = [
    ("--dashboard-bind-address", ".Values.dashboard"),
    ("--dashboard-host", "and .Values.dashboard .Values.dashboardHosts"),
    ("--dashboard-proxy-name", "and .Values.dashboard .Values.dashboardProxyName"),
    ("dashboard-proxy", "and .Values.dashboard .Values.dashboardProxySecret"),
    ("--dashboard-cert-dir", "and .Values.dashboard .Values.dashboardTlsSecret"),
    ("dashboard-certificate", "and .Values.dashboard .Values.dashboardTlsSecret"),
    ("name: dashboard", ".Values.dashboard"),
];
