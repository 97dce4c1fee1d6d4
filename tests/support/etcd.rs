//! etcd clusters, each in a directory of its own.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_dev::etcd::{Etcd, Options, PeerTls, Tls};
use quorate_dev::pki::CertificateFiles;
use tempfile::TempDir;

use super::access::{Access, Credentials, files_in, shared_server, write_certificates};
pub use super::access::{ClientTls, PASSWORD, USER};
use super::clock;
use super::directory::directory;
use super::failures;
use super::proxy::Proxy;
use super::quorate::{Finished, quorate};
pub use super::version::EtcdVersion;
use super::wait::{SOON, eventually};

/// A cluster with a directory of its own. Dereferences to [`Etcd`].
pub struct TestEtcd {
    // Before the directory: its processes end before their files go.
    cluster: Etcd,
    /// The certificates of its clients, with TLS.
    pub tls: Option<ClientTls>,
    /// The file of the password of [`USER`], where every client needs one from the start.
    password: Option<PathBuf>,
    /// The release of its programs.
    pub version: EtcdVersion,
    directory: TempDir,
}

/// The administrator's password.
const ROOT_PASSWORD: &str = "battery staple";

/// The cheapest hash of passwords that etcd takes: these protect nothing.
const CHEAP_HASH: &str = "--bcrypt-cost=4";

/// A counter of each member: the reads that clients began there. Endpoints are probed by a read.
pub const READS_BEGUN: &str =
    r#"grpc_server_started_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"}"#;

/// A counter of each member: the passwords that clients asked it to check.
pub const PASSWORDS_CHECKED: &str = r#"grpc_server_started_total{grpc_method="Authenticate",grpc_service="etcdserverpb.Auth",grpc_type="unary"}"#;

impl TestEtcd {
    /// One member that demands of its clients what this run says.
    pub async fn start() -> Self {
        Self::with(1, &[]).await
    }

    /// A cluster of this many members, with these further flags, that demands of its clients what this run says.
    pub async fn with(members: usize, flags: &[&str]) -> Self {
        let (version, access) = (EtcdVersion::Installed, Access::of_this_run());
        Self::that_demands(access, version, members, flags).await
    }

    /// The same of this release, that demands this. [`USER`] has the rights that docs/operate.md names.
    pub async fn that_demands(access: Access, version: EtcdVersion, members: usize, flags: &[&str]) -> Self {
        let Credentials { tls, password } = Credentials::of(access);
        let mut flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        if access == Access::Password {
            flags.extend(["--auth-token=simple", CHEAP_HASH].map(str::to_owned));
        }
        let demanded = tls.as_ref().map(|tls| Tls {
            ca: tls.ca.clone(),
            server: shared_server(),
            client_certificates: true,
        });
        let options = Options {
            members,
            flags,
            program: Some(version.program("etcd")),
            tls: demanded,
            ..Options::default()
        };
        let mut etcd = Self::in_directory(directory(), &options, tls).await;
        etcd.version = version;
        if access == Access::Password {
            etcd.demand_password("/quorate/");
            etcd.etcdctl_as_root(&["user", "grant-role", USER, "root"]);
            etcd.password = password;
        }
        etcd
    }

    /// A cluster of this release that demands nothing of its clients.
    pub async fn of(version: EtcdVersion, members: usize, flags: &[&str]) -> Self {
        let options = Options {
            members,
            flags: flags.iter().map(ToString::to_string).collect(),
            program: Some(version.program("etcd")),
            ..Options::default()
        };
        let mut etcd = Self::in_directory(directory(), &options, None).await;
        etcd.version = version;
        etcd
    }

    /// One member that demands TLS with client certificates, of an authority of its own.
    pub async fn with_tls() -> Self {
        let directory = directory();
        let client = write_certificates(directory.path());
        let options = Options {
            members: 1,
            tls: Some(Tls {
                ca: client.ca.clone(),
                server: files_in(directory.path(), "etcd"),
                client_certificates: true,
            }),
            ..Options::default()
        };
        Self::in_directory(directory, &options, Some(client)).await
    }

    /// One member of this release that demands TLS of its peers and its clients, with certificates of the etcd authority in a
    /// `--ca-dir`.
    pub async fn of_authority(version: EtcdVersion, ca: &str) -> Self {
        Self::with_issued(version, ca, async |args| quorate(args).await).await
    }

    /// The same, with certificates that were issued by a clock that is off by this much, such as `-1d`.
    pub async fn of_authority_off_by(version: EtcdVersion, ca: &str, offset: &str) -> Self {
        let issue = async |args: &[&str]| clock::quorate_off_by(offset, args).await;
        Self::with_issued(version, ca, issue).await
    }

    async fn with_issued(version: EtcdVersion, ca: &str, run: impl AsyncFn(&[&str]) -> Finished) -> Self {
        let directory = directory();
        let issue = async |holder: &[&str], name: &str| {
            let output = directory.path().join(name);
            let (ca, output) = (format!("--ca-dir={ca}"), output.display().to_string());
            let args = [&["ca", "issue"][..], holder, &[&ca, "-o", &output]].concat();
            run(&args).await.expect_done();
        };
        issue(&["etcd-member", "--host=127.0.0.1"], "member").await;
        issue(&["etcd-client"], "client").await;
        let files = |folder: &str, name: &str| files_in(&directory.path().join(folder), name);
        let authority = directory.path().join("member/ca.crt");
        let client = ClientTls {
            ca: authority.clone(),
            client: files("client", "client"),
            renewed: files("client", "client"),
        };
        let options = Options {
            members: 1,
            program: Some(version.program("etcd")),
            tls: Some(Tls {
                ca: authority.clone(),
                server: files("member", "member"),
                client_certificates: true,
            }),
            peer_tls: Some(PeerTls {
                ca: authority,
                member: files("member", "member"),
            }),
            ..Options::default()
        };
        let mut etcd = Self::in_directory(directory, &options, Some(client)).await;
        etcd.version = version;
        etcd
    }

    /// One member that demands a password of [`USER`], whose role covers `prefix`. Tokens live for `token_ttl`
    /// seconds.
    pub async fn with_password(prefix: &str, token_ttl: u32) -> Self {
        let ttl = format!("--auth-token-ttl={token_ttl}");
        let flags = ["--auth-token=simple", &ttl, CHEAP_HASH];
        let etcd = Self::of(EtcdVersion::Installed, 1, &flags).await;
        etcd.demand_password(prefix);
        etcd
    }

    /// The same with tokens that etcd signs. Each names the revision of the users and roles, and ends with every change of those.
    pub async fn with_signed_tokens(prefix: &str) -> Self {
        let directory = directory();
        let key = directory.path().join("tokens.key");
        std::fs::write(&key, "32 bytes or more that protect nothing").unwrap();
        let tokens = format!(
            "--auth-token=jwt,sign-method=HS256,priv-key={},ttl=10m",
            key.display()
        );
        let options = Options {
            members: 1,
            flags: vec![tokens, CHEAP_HASH.to_owned()],
            ..Options::default()
        };
        let etcd = Self::in_directory(directory, &options, None).await;
        etcd.demand_password(prefix);
        etcd
    }

    /// From now on demands a password of [`USER`], whose role covers `prefix`.
    pub fn demand_password(&self, prefix: &str) {
        self.etcdctl(&["user", "add", &format!("root:{ROOT_PASSWORD}")]);
        self.etcdctl(&["user", "grant-role", "root", "root"]);
        self.etcdctl(&["user", "add", &format!("{USER}:{PASSWORD}")]);
        self.etcdctl(&["role", "add", USER]);
        self.etcdctl(&[
            "role",
            "grant-permission",
            "--prefix=true",
            USER,
            "readwrite",
            prefix,
        ]);
        self.etcdctl(&["user", "grant-role", USER, USER]);
        self.etcdctl(&["auth", "enable"]);
    }

    async fn in_directory(directory: TempDir, options: &Options, tls: Option<ClientTls>) -> Self {
        failures::print_at_once();
        let cluster = Etcd::start(directory.path(), options)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        Self {
            cluster,
            tls,
            password: None,
            version: EtcdVersion::Installed,
            directory,
        }
    }

    /// Puts a proxy in front of a member: the member list gives clients the proxy's URL.
    pub async fn behind_proxy(&mut self, index: usize) -> Proxy {
        let member = &mut self.members[index];
        let proxy = Proxy::in_front_of(&member.client_url);
        member.stop().await.unwrap();
        member.advertise(&proxy.url());
        member.start().await.unwrap();
        proxy
    }

    /// Runs `etcdctl` on all members and returns its stdout. Panics where it fails.
    pub fn etcdctl(&self, args: &[&str]) -> String {
        self.try_etcdctl(args)
            .unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// Runs `etcdctl` as the administrator of a cluster that demands a password by now.
    pub fn etcdctl_as_root(&self, args: &[&str]) -> String {
        let user = format!("--user=root:{ROOT_PASSWORD}");
        self.etcdctl(&[&[user.as_str()], args].concat())
    }

    /// Gives [`USER`] another password.
    pub fn change_password(&self, password: &str) {
        // `user passwd` needs a terminal. The old user's tokens end with it.
        for args in [
            &["user", "delete", USER][..],
            &["user", "add", &format!("{USER}:{password}")],
            &["user", "grant-role", USER, USER],
        ] {
            self.etcdctl_as_root(args);
        }
    }

    /// Runs `etcdctl` on all members: its stdout, or its stderr where it fails.
    pub fn try_etcdctl(&self, args: &[&str]) -> Result<String, String> {
        let output = self
            .etcdctl_command(&self.endpoints())
            .args(args)
            .output()
            .unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// `etcdctl` on these endpoints, as the administrator where every client needs a password.
    pub fn etcdctl_command(&self, endpoints: &[String]) -> Command {
        let mut command = Command::new(self.version.program("etcdctl"));
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", endpoints.join(",")));
        if let Some(ClientTls { ca, client, .. }) = &self.tls {
            command
                .arg(format!("--cacert={}", ca.display()))
                .arg(format!("--cert={}", client.cert.display()))
                .arg(format!("--key={}", client.key.display()));
        }
        if self.password.is_some() {
            command.arg(format!("--user=root:{ROOT_PASSWORD}"));
        }
        command
    }

    /// What its clients show to it.
    pub fn credentials(&self) -> Credentials {
        Credentials {
            tls: self.tls.clone(),
            password: self.password.clone(),
        }
    }

    /// The value of a key, if it exists.
    pub fn get(&self, key: &str) -> Option<String> {
        let value = self.etcdctl(&["get", "--print-value-only", key]);
        let value = value.strip_suffix('\n').unwrap_or(&value);
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// All keys below a prefix, in order.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.etcdctl(&["get", "--prefix", "--keys-only", prefix])
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The key of the leader of this election, and its value: of all candidates the one that entered first. `election` ends
    /// with a slash.
    pub fn leader_of(&self, election: &str) -> Option<(String, String)> {
        // Without an order etcd applies the limit before it sorts, to the keys in their own order.
        let first = ["--sort-by=CREATE", "--order=ASCEND", "--limit=1"];
        let found = self.etcdctl(&[&["get", "--prefix", election][..], &first].concat());
        let mut lines = found.lines();
        Some((lines.next()?.to_owned(), lines.next()?.to_owned()))
    }

    /// The index of the member that is the raft leader.
    pub async fn raft_leader(&self) -> usize {
        eventually(SOON, "a raft leader", async || {
            for (index, member) in self.members.iter().enumerate() {
                if member.metric("etcd_server_is_leader").await == Some(1.0) {
                    return Ok(index);
                }
            }
            Err("none")
        })
        .await
    }

    /// The current revision.
    pub fn revision(&self) -> i64 {
        let answer = self.etcdctl(&["get", "--write-out=json", "revision-of-no-key"]);
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        answer["header"]["revision"].as_i64().unwrap()
    }

    /// Drops all revisions before the current one, as an operator or an automatic compaction would.
    pub fn compact(&self) {
        // etcdctl repeats a request without an answer, whose first attempt may have succeeded.
        match self.try_etcdctl(&["compaction", &self.revision().to_string()]) {
            Err(error) if !error.contains("has been compacted") => panic!("etcdctl compaction: {error}"),
            _ => {}
        }
    }

    /// Saves a snapshot of the store as it is now, and returns its file.
    pub fn snapshot(&self) -> PathBuf {
        let file = self.directory().join("snapshot.db");
        let saving = self
            .etcdctl_command(&self.endpoints()[..1])
            .args(["snapshot", "save"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(saving.status.success(), "{saving:?}");
        file
    }

    /// Kills all members and starts them again from a snapshot, with the same URLs and token, so that the cluster keeps its
    /// id.
    pub async fn restore(&mut self, snapshot: &Path) {
        let token = self.token().unwrap();
        self.restore_as(&token, snapshot).await;
    }

    /// The same as a cluster of this token. With another one it has another id.
    pub async fn restore_as(&mut self, token: &str, snapshot: &Path) {
        let restored = self
            .cluster
            .restore(&self.version.restorer(), token, snapshot)
            .await;
        restored.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Client URLs, comma-separated, as `--etcd-endpoints` takes them.
    pub fn endpoints_flag(&self) -> String {
        self.endpoints().join(",")
    }

    /// The certificate of the members of a TLS cluster.
    pub fn server_certificate(&self) -> CertificateFiles {
        let file = |name: &str| self.directory().join(name);
        CertificateFiles {
            cert: file("etcd.crt"),
            key: file("etcd.key"),
        }
    }

    /// Its directory, for further files of a test.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }
}

impl Deref for TestEtcd {
    type Target = Etcd;

    fn deref(&self) -> &Etcd {
        &self.cluster
    }
}

impl DerefMut for TestEtcd {
    fn deref_mut(&mut self) -> &mut Etcd {
        &mut self.cluster
    }
}
