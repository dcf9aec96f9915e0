//! The rest of an embedded cluster: what kube-controller-manager, kube-scheduler, kubelet, the autoscaler and a cloud do.
