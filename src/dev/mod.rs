//! A whole cluster on this machine: etcd, kube-apiserver and the controller as child processes.
