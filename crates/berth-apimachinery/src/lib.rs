//! Kubernetes' API mechanics over JSON values, pure.
