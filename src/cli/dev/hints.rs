//! What a person can do next with a cluster that is up.

use std::env;
use std::path::{Path, PathBuf};

/// The commands to look at the cluster.
pub(super) struct Hints {
    /// Client URLs of etcd, comma-separated.
    pub endpoints: String,
    /// The administrator's, where there is Kubernetes.
    pub kubeconfig: Option<PathBuf>,
    /// Of every key.
    pub prefix: String,
    /// The data directory.
    pub data: PathBuf,
}

impl Hints {
    /// As they are printed.
    pub fn text(&self) -> String {
        let Self {
            endpoints, prefix, ..
        } = self;
        let mut text = String::from("\nLook at it:\n");
        let program = env::args_os().next().unwrap_or_else(|| "quorate".into());
        let program = quoted(Path::new(&program));
        text += &format!("  {program} status --etcd-endpoints {endpoints} --prefix {prefix}\n");
        text += &format!("  etcdctl --endpoints {endpoints} get --prefix {prefix}/ --keys-only\n");
        if let Some(kubeconfig) = &self.kubeconfig {
            let status = format!("{prefix}/kubernetes/reconciler/status.json");
            text += &format!("  etcdctl --endpoints {endpoints} get --print-value-only {status}\n");
            let kubeconfig = quoted(kubeconfig);
            text += &format!(
                "  kubectl --kubeconfig {kubeconfig} get clusterroles,storageclasses,csidrivers,runtimeclasses -l quorate.dev/bundle\n"
            );
        }
        let data = quoted(&self.data);
        text += &format!("  tail -f {data}/replicas/*.log\n\nCtrl-C stops everything.\n");
        text
    }
}

/// A path as a shell takes it.
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
}
