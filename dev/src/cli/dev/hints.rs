//! Commands to try on a cluster that is up.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use crate::etcd::Member;
use crate::{Error, ports};
use quorate::kube::ObjectRef;
use quorate::resources::Bundle;
use quorate::resources::bundle::LABEL;

/// The facts that the commands need.
pub(super) struct Hints {
    /// Client URLs of etcd, comma-separated.
    pub endpoints: String,
    /// The name of each replica, and the address of its status page.
    pub pages: Vec<(String, String)>,
    /// The command for Kubernetes; none without it.
    pub kubectl: Option<Kubectl>,
    /// The file with the Plugin object; none without a CSI plugin.
    pub csi_plugin: Option<PathBuf>,
    /// The prefix of every key.
    pub prefix: String,
    /// The nodes of the agents.
    pub agents: Vec<String>,
    /// The data directory.
    pub data: PathBuf,
    /// The file of the program quorate.
    pub program: PathBuf,
    /// The commands that change roles.
    pub roles: Roles,
}

/// The node in the examples for roles: an existing one that can leave, or a new one.
pub(super) struct Roles {
    node: String,
    exists: bool,
    peer_url: String,
    client_url: String,
}

impl Roles {
    /// Of several members, the last one: it can leave and join again. Beside a single member, a second one.
    pub fn of(members: &[Member]) -> Result<Self, Error> {
        if let [_, .., last] = members {
            return Ok(Self {
                node: last.name.clone(),
                exists: true,
                peer_url: last.peer_url.clone(),
                client_url: last.client_url.clone(),
            });
        }
        let url = || Ok::<_, Error>(format!("http://127.0.0.1:{}", ports::free_port()?));
        Ok(Self {
            node: "n2".to_owned(),
            exists: false,
            peer_url: url()?,
            client_url: url()?,
        })
    }

    fn text(&self) -> String {
        let Self {
            node,
            peer_url,
            client_url,
            ..
        } = self;
        let demote = format!("  quorate demote {node} --yes --wait\n");
        let mut text = "  quorate get members\n".to_owned();
        if self.exists {
            text += &demote;
        } else {
            let spec = "spec: {desiredRole: worker}";
            text += &format!(
                "  echo '{{apiVersion: quorate.dev/v1, kind: Node, metadata: {{name: {node}}}, {spec}}}' | quorate apply -f -\n"
            );
        }
        text += &format!("  quorate promote {node} --wait\n");
        text += &format!(
            "  quorate join {node} --peer-url {peer_url} --client-url {client_url} -o env > {node}.env\n"
        );
        text +=
            &format!("  env $(cat {node}.env) etcd --data-dir $(mktemp -d)    # in a terminal of its own\n");
        if !self.exists {
            text += &demote;
        }
        text
    }
}

/// The command that lists the resources of the bundle.
pub(super) struct Kubectl {
    kubeconfig: PathBuf,
    kinds: BTreeSet<String>,
    namespaced: bool,
    selector: String,
}

impl Kubectl {
    /// With the administrator's kubeconfig.
    pub fn new(kubeconfig: PathBuf, bundle: &Bundle) -> Self {
        Self {
            kubeconfig,
            kinds: bundle
                .manifests
                .iter()
                .map(|manifest| resource(&manifest.object))
                .collect(),
            namespaced: bundle
                .manifests
                .iter()
                .any(|manifest| manifest.object.namespace.is_some()),
            selector: format!("{LABEL}={}", bundle.name),
        }
    }

    fn text(&self) -> String {
        let kubeconfig = quoted(&self.kubeconfig);
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        let (kinds, selector) = (kinds.join(","), &self.selector);
        let scope = if self.namespaced { " --all-namespaces" } else { "" };
        format!("kubectl --kubeconfig {kubeconfig} get {kinds}{scope} -l {selector}")
    }
}

/// A kind as kubectl takes it. Kubernetes' own kinds need no group: kubectl prefers them where a name is ambiguous.
fn resource(object: &ObjectRef) -> String {
    let ObjectRef { group, kind, .. } = object;
    let kind = kind.to_lowercase();
    if group.ends_with(".k8s.io") || !group.contains('.') {
        kind
    } else {
        format!("{kind}.{group}")
    }
}

impl Hints {
    /// The program quorate as the user called it, or else its file.
    fn called(&self) -> PathBuf {
        let called = env::args_os().next().map(PathBuf::from);
        let same = |called: &PathBuf| called.file_name() == self.program.file_name();
        called.filter(same).unwrap_or_else(|| self.program.clone())
    }

    /// The text to print.
    pub fn text(&self) -> String {
        let Self {
            endpoints, prefix, ..
        } = self;
        let mut text = String::from("\nLook at it:\n");
        for (replica, page) in &self.pages {
            text += &format!("  {page}    # in a browser: the status page of {replica}\n");
        }
        let program = quoted(&self.called());
        text += &format!("  {program} status --etcd-endpoints {endpoints} --prefix {prefix}\n");
        text += &format!("  etcdctl --endpoints {endpoints} get --prefix {prefix}/ --keys-only\n");
        if let Some(kubectl) = &self.kubectl {
            let status = format!("{prefix}/kubernetes/reconciler/status.json");
            text += &format!("  etcdctl --endpoints {endpoints} get --print-value-only {status}\n");
            text += &format!("  {}\n", kubectl.text());
        }
        let data = quoted(&self.data);
        text += &format!("  tail -f {data}/replicas/*.log\n");
        if let Some(file) = &self.csi_plugin {
            let file = quoted(file);
            text += "\nTo use the CSI plugin:\n";
            text += &format!("  {program} apply -f {file} --etcd-endpoints {endpoints} --prefix {prefix}\n");
        }
        if let Some(last) = self.agents.last() {
            let first = self.agents.first().unwrap_or(last);
            let etcd = format!("--etcd-endpoints {endpoints} --prefix {prefix}");
            text += "\nEach agent is the worker node of its name. To make one a manager, whose agent starts an etcd, and a worker again:\n";
            text += &format!("  {program} promote {first} --wait {etcd}\n");
            text += &format!("  {program} demote {first} --yes --wait {etcd}\n");
            text += "To remove one, and end its agent:\n";
            text += &format!(
                "  {program} delete node {last} --yes --force --etcd-endpoints {endpoints} --prefix {prefix}\n"
            );
            text += &format!("  tail -f {data}/agents/*.log\n");
        }
        text += "\nOr, to leave the flags out in a terminal of yours:\n";
        text += &format!("  export QUORATE_ETCD_ENDPOINTS={endpoints} QUORATE_PREFIX={prefix}\n");
        text += &format!("  export ETCDCTL_ENDPOINTS={endpoints}\n");
        if let Some(kubectl) = &self.kubectl {
            text += &format!("  export KUBECONFIG={}\n", quoted(&kubectl.kubeconfig));
        }
        if let Some(folder) = self.program.parent() {
            text += &format!("  export PATH={}:$PATH\n", quoted(folder));
        }
        text += "\nThen change roles (each member of etcd is a node, and a manager):\n";
        text += &self.roles.text();
        text += "\nCtrl-C stops everything.\n";
        text
    }
}

/// A path, quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    if text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-+,=:@".contains(c))
    {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_so_that_a_shell_takes_it_as_one_word() {
        assert_eq!(quoted(Path::new("/tmp/a-1.b")), "/tmp/a-1.b");
        assert_eq!(quoted(Path::new("/tmp/my data")), "'/tmp/my data'");
        assert_eq!(quoted(Path::new("/tmp/it's")), r"'/tmp/it'\''s'");
    }
    #[test]
    fn the_kinds_of_the_bundle_are_named_as_kubectl_takes_them() {
        let kubectl = Kubectl::new(PathBuf::from("/data/admin.kubeconfig"), &Bundle::builtin());
        assert_eq!(
            kubectl.text(),
            "kubectl --kubeconfig /data/admin.kubeconfig get \
             clusterrole,clusterrolebinding,csidriver,runtimeclass,storageclass -l quorate.dev/bundle=builtin"
        );
        let custom = ObjectRef {
            group: "example.org".to_owned(),
            kind: "Widget".to_owned(),
            namespace: None,
            name: "one".to_owned(),
        };
        assert_eq!(resource(&custom), "widget.example.org");
    }
}
