//! A kube-apiserver without nodes, controllers or scheduler. It stores objects, which is all that Quorate needs of it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::http::{Request, Response};
use super::pki::{Authority, CertificateFiles, write_private, write_signing_key};
use super::process::Program;
use super::restartable::Restartable;
use super::{Error, cache, http, ports, record};
use quorate::cli::companion::{find_on_path, is_executable};

/// Limit until it is ready. It takes about three seconds on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Limit until it has stopped. It waits for requests in flight, and some watches never end.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Attempts of a first start, each on another port, where another process takes the port.
const PORT_ATTEMPTS: usize = 5;

/// The user of [`ApiServer::kubeconfig`], in the group system:masters, which may do everything.
const ADMIN: &str = "admin";

/// How to get a kube-apiserver. Part of messages.
pub const HINT: &str = "set KUBEBUILDER_ASSETS to a directory that holds one, put one on $PATH, or let \
                        .ci/kube-apiserver of Quorate's repository build one from Debian's source package";

/// Finds a kube-apiserver where `.ci/kube-apiserver` does: `$KUBEBUILDER_ASSETS`, `$PATH`, `$QUORATE_CACHE`, then the
/// user's cache.
pub fn find() -> Option<PathBuf> {
    let in_directory = |directory: PathBuf| {
        let file = directory.join("kube-apiserver");
        is_executable(&file).then_some(file)
    };
    cache::path_of("KUBEBUILDER_ASSETS")
        .and_then(in_directory)
        .or_else(|| find_on_path("kube-apiserver"))
        .or_else(|| cache::folder().and_then(in_directory))
}

/// A user in the token file, besides the administrator.
#[derive(Clone, Debug)]
pub struct User {
    /// The name, as in an RBAC subject.
    pub name: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The user's bearer token.
    pub token: String,
}

/// The configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Client URLs of the etcd that stores its objects.
    pub etcd_endpoints: Vec<String>,
    /// Users besides the administrator.
    pub users: Vec<User>,
    /// Flags added to the default ones.
    pub flags: Vec<String>,
}

/// State that a later start on the same directory needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    port: u16,
    token: String,
}

/// A kube-apiserver, running or not. Dereferences to its [`Restartable`].
#[derive(Debug)]
pub struct ApiServer {
    /// `https://127.0.0.1:<port>`
    pub url: String,
    port: u16,
    token: String,
    ca: String,
    directory: PathBuf,
    process: Restartable,
}

impl ApiServer {
    /// Starts one with its files in `directory` and waits until it is ready. On the directory of an earlier run it
    /// keeps port, token and objects. The objects are below `/kubernetes` in etcd.
    pub async fn start(directory: &Path, options: &Options) -> Result<Self, Error> {
        let binary = find().ok_or(Error::NotInstalled {
            program: "kube-apiserver",
            hint: HINT,
        })?;
        fs::create_dir_all(directory).map_err(Error::write(directory))?;
        let file = directory.join("apiserver.json");
        if let Some(record) = record::read(&file)? {
            let mut server = Self::prepare(directory, &binary, record, options)?;
            server.launch().await?;
            return Ok(server);
        }
        write_signing_key(directory, "service-account")?;
        let mut attempt = 1;
        loop {
            let record = Record {
                port: ports::free_port()?,
                token: uuid::Uuid::new_v4().to_string(),
            };
            let mut server = Self::prepare(directory, &binary, record.clone(), options)?;
            match server.launch().await {
                Ok(()) => {
                    record::write(&file, &record)?;
                    return Ok(server);
                }
                Err(error) if error.is_address_in_use() && attempt < PORT_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the files that the server reads, and the administrator's kubeconfig.
    fn prepare(directory: &Path, binary: &Path, record: Record, options: &Options) -> Result<Self, Error> {
        let Record { port, token } = record;
        let authority = Authority::create(directory, "quorate-dev")?;
        let serving = authority.server("kube-apiserver")?;
        let ca_file = authority.certificate_file();
        let ca = fs::read_to_string(&ca_file).map_err(Error::read(&ca_file))?;
        write_private(&directory.join("tokens.csv"), &token_file(&token, &options.users))?;
        let program = Program {
            name: "kube-apiserver".to_owned(),
            path: binary.to_owned(),
            args: flags(directory, port, &serving, options)
                .into_iter()
                .map(Into::into)
                .collect(),
            env: Vec::new(),
            hidden_env: "",
            log: directory.join("kube-apiserver.log"),
        };
        let server = Self {
            url: format!("https://127.0.0.1:{port}"),
            port,
            token,
            ca,
            directory: directory.to_owned(),
            process: Restartable::new(program, STOP_LIMIT),
        };
        server.write_kubeconfig(ADMIN, &server.token)?;
        Ok(server)
    }

    /// Starts its process, unless it runs, and waits until it is ready.
    pub async fn launch(&mut self) -> Result<(), Error> {
        let (port, ca, token) = (self.port, self.ca.clone(), self.token.clone());
        self.process.launch()?;
        self.process
            .wait_until(START_LIMIT, || ready(port, ca.clone(), token.clone()))
            .await
    }

    /// The kubeconfig of the administrator (group system:masters).
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(ADMIN)
    }

    /// Writes a kubeconfig with this bearer token, such as a ServiceAccount's, and returns its file.
    pub fn write_kubeconfig(&self, user: &str, token: &str) -> Result<PathBuf, Error> {
        // JSON is YAML, and its writer quotes paths correctly.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "dev", "cluster": {
                "server": self.url, "certificate-authority": self.directory.join("ca.crt"),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "dev", "context": {"cluster": "dev", "user": user}}],
            "current-context": "dev",
        });
        let file = self.kubeconfig_of(user);
        write_private(&file, &format!("{config:#}\n"))?;
        Ok(file)
    }

    fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.directory.join(format!("{user}.kubeconfig"))
    }

    /// Sends a request as the administrator; `body` is JSON unless `content_type` says otherwise.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &str)>,
    ) -> std::io::Result<Response> {
        let request = Request {
            port: self.port,
            method,
            path,
            ca: Some(&self.ca),
            token: Some(&self.token),
            body,
        };
        request.send().await
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Deref for ApiServer {
    type Target = Restartable;

    fn deref(&self) -> &Restartable {
        &self.process
    }
}

impl DerefMut for ApiServer {
    fn deref_mut(&mut self) -> &mut Restartable {
        &mut self.process
    }
}

async fn ready(port: u16, ca: String, token: String) -> Result<(), String> {
    let request = Request {
        port,
        method: "GET",
        path: "/readyz",
        ca: Some(&ca),
        token: Some(&token),
        body: None,
    };
    http::is_ok("/readyz", request.send().await)
}

fn flags(directory: &Path, port: u16, serving: &CertificateFiles, options: &Options) -> Vec<String> {
    let file = |name: &str| directory.join(name).display().to_string();
    let mut flags = vec![
        format!("--etcd-servers={}", options.etcd_endpoints.join(",")),
        "--etcd-prefix=/kubernetes".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        // It exits without this on a machine without a default route.
        "--advertise-address=127.0.0.1".to_owned(),
        // Otherwise it makes itself an endpoint of a Service, where a loopback address is not allowed.
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--tls-cert-file={}", serving.cert.display()),
        format!("--tls-private-key-file={}", serving.key.display()),
        format!("--cert-dir={}", file("certificates")),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--authorization-mode=RBAC".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        // The public key: 1.20 does not find it in a PKCS #8 file.
        format!("--service-account-key-file={}", file("service-account.pub")),
        format!(
            "--service-account-signing-key-file={}",
            file("service-account.key")
        ),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--allow-privileged=true".to_owned(),
        // This plugin demands a ServiceAccount of every pod, and no controller runs that creates them.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ];
    flags.extend(options.flags.iter().cloned());
    flags
}

/// The file of `--token-auth-file`: lines of token, user name, user id and groups.
fn token_file(admin_token: &str, users: &[User]) -> String {
    let mut lines = format!("{admin_token},{ADMIN},{ADMIN},\"system:masters\"\n");
    for User { name, groups, token } in users {
        lines += &format!("{token},{name},{name},\"{}\"\n", groups.join(","));
    }
    lines
}
