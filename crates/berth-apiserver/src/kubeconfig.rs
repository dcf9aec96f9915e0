//! The kubeconfig file clients use.
