//! The Kubernetes API: client, discovery, server-side apply, events. The only place that names `kube`.
