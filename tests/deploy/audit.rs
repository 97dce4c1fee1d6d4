//! The requests of a user and the server's responses, from the audit log of a kube-apiserver.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::directory::directory;
use crate::support::kubernetes::Kubernetes;

/// An audit log of one user's requests.
pub struct Audit {
    directory: TempDir,
}

/// A request and the status of its response.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `patch`, `list`, …
    pub verb: String,
    /// The plural of the resource, or the path of a request that is not about a resource.
    pub target: String,
    /// The name of the object; empty for requests about a whole kind.
    pub name: String,
    /// HTTP status of the response.
    pub code: u64,
}

impl Audit {
    /// Starts a kube-apiserver that logs the requests of this user.
    pub async fn of(user: &str) -> (Self, Kubernetes) {
        let directory = directory();
        let audit = Self { directory };
        let policy = audit.file("policy.json");
        let rules = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": [user]}, {"level": "None"}],
        });
        fs::write(&policy, rules.to_string()).unwrap();
        let flags = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.file("audit.log").display()),
        ];
        let kubernetes = Kubernetes::with(Vec::new(), &flags.each_ref().map(String::as_str)).await;
        (audit, kubernetes)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The distinct requests so far.
    pub fn requests(&self) -> Vec<Request> {
        let log = fs::read_to_string(self.file("audit.log")).unwrap();
        let mut requests: Vec<Request> = log
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .map(|event: Value| {
                let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
                Request {
                    verb: text("/verb").unwrap(),
                    target: text("/objectRef/resource")
                        .or_else(|| text("/requestURI"))
                        .unwrap(),
                    name: text("/objectRef/name").unwrap_or_default(),
                    code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
                }
            })
            .collect();
        requests.sort();
        requests.dedup();
        requests
    }
}
