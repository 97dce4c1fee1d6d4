//! Tests against the real thing: etcd, kube-apiserver, the quorate binary.
