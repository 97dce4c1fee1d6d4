//! What etcd is started with: variables of its environment, of which each stands for a flag. Pure.

use std::path::{Path, PathBuf};

use super::record::Record;
use super::urls::any_is_encrypted;
use super::{Settings, plan};
use crate::identity::etcd::MEMBER;

/// The files of TLS, as etcd is pointed to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    /// The certificate, those above it, and the key. One file: the two are replaced at once.
    pub certificate: PathBuf,
    /// The certificates that etcd trusts.
    pub authorities: PathBuf,
    /// The list of revoked certificates.
    pub list: PathBuf,
}

/// The variables that are the agent's. Beside those that it sets: what would move the data from where it looks, or have etcd begin
/// another cluster.
const OWN: &[&str] = &[
    "ETCD_NAME",
    "ETCD_DATA_DIR",
    "ETCD_WAL_DIR",
    "ETCD_CONFIG_FILE",
    "ETCD_INITIAL_CLUSTER",
    "ETCD_INITIAL_CLUSTER_STATE",
    "ETCD_INITIAL_CLUSTER_TOKEN",
    "ETCD_INITIAL_ADVERTISE_PEER_URLS",
    "ETCD_ADVERTISE_CLIENT_URLS",
    "ETCD_LISTEN_PEER_URLS",
    "ETCD_LISTEN_CLIENT_URLS",
    "ETCD_LISTEN_METRICS_URLS",
    "ETCD_FORCE_NEW_CLUSTER",
    "ETCD_DISCOVERY",
    "ETCD_DISCOVERY_SRV",
    "ETCD_DISCOVERY_ENDPOINTS",
    "ETCD_STRICT_RECONFIG_CHECK",
    "ETCD_LOGGER",
    "ETCD_CERT_FILE",
    "ETCD_KEY_FILE",
    "ETCD_TRUSTED_CA_FILE",
    "ETCD_CLIENT_CERT_AUTH",
    "ETCD_CLIENT_CRL_FILE",
    "ETCD_AUTO_TLS",
    "ETCD_PEER_CERT_FILE",
    "ETCD_PEER_KEY_FILE",
    "ETCD_PEER_TRUSTED_CA_FILE",
    "ETCD_PEER_CLIENT_CERT_AUTH",
    "ETCD_PEER_CRL_FILE",
    "ETCD_PEER_CERT_ALLOWED_CN",
    "ETCD_PEER_CERT_ALLOWED_HOSTNAME",
    "ETCD_PEER_AUTO_TLS",
    "ETCD_CLIENT_CERT_ALLOWED_HOSTNAME",
    "ETCD_PROXY",
];

/// Variables with their values, in order.
pub type Variables = Vec<(String, String)>;

/// What etcd is started with as this member. `tls` where any of its URLs needs it.
pub fn environment(record: &Record, settings: &Settings, tls: Option<&TlsPaths>) -> Variables {
    let mut variables = Variables::new();
    let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
    set("ETCD_NAME", record.name.clone());
    set("ETCD_DATA_DIR", path(&settings.data));
    // With the members, etcd would start a member that has lost its data as one that has forgotten its log and its votes. Without
    // them an empty directory is an error, and a data directory needs none.
    if record.noted.stage == plan::Stage::New
        && let Some(members) = &record.initial_cluster
    {
        set("ETCD_INITIAL_CLUSTER", members.clone());
    }
    set("ETCD_INITIAL_CLUSTER_STATE", "existing".to_owned());
    set("ETCD_INITIAL_ADVERTISE_PEER_URLS", settings.peer_urls.join(","));
    set("ETCD_LISTEN_PEER_URLS", settings.listen_peer_urls.join(","));
    set("ETCD_ADVERTISE_CLIENT_URLS", settings.client_urls.join(","));
    set("ETCD_LISTEN_CLIENT_URLS", settings.listen_client_urls.join(","));
    set("ETCD_LISTEN_METRICS_URLS", format!("http://{}", settings.metrics));
    // The default of 3.4 is another one.
    set("ETCD_LOGGER", "zap".to_owned());
    if let Some(tls) = tls {
        let files = [
            ("CERT_FILE", path(&tls.certificate)),
            ("KEY_FILE", path(&tls.certificate)),
            ("TRUSTED_CA_FILE", path(&tls.authorities)),
            ("CLIENT_CERT_AUTH", "true".to_owned()),
        ];
        let of_clients = any_is_encrypted(&settings.listen_client_urls);
        let of_peers = any_is_encrypted(&settings.listen_peer_urls);
        let prefixes = [("ETCD_", of_clients), ("ETCD_PEER_", of_peers)];
        for (prefix, _) in prefixes.into_iter().filter(|(_, needs)| *needs) {
            for (name, value) in &files {
                set(&format!("{prefix}{name}"), value.clone());
            }
        }
        if of_clients {
            set("ETCD_CLIENT_CRL_FILE", path(&tls.list));
        }
        if of_peers {
            set("ETCD_PEER_CRL_FILE", path(&tls.list));
            // Otherwise any certificate of its authority passes at the peer port.
            set("ETCD_PEER_CERT_ALLOWED_CN", MEMBER.to_owned());
        }
    }
    variables.extend(settings.more.iter().cloned());
    variables
}

fn path(path: &Path) -> String {
    // The paths are made from flags, which are text where they are given as text: checked at the start.
    path.to_string_lossy().into_owned()
}

/// Reads the settings that an operator adds: a line `ETCD_NAME=value` each. Empty lines, and those that begin with `#`, say nothing.
///
/// # Errors
/// A sentence that names the line.
pub fn added(text: &str) -> Result<Variables, String> {
    let mut added = Variables::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = number + 1;
        let expected = || format!("line {number} is no setting of etcd: expected ETCD_NAME=value");
        let (name, value) = line.split_once('=').ok_or_else(expected)?;
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if !name.starts_with("ETCD_") || !name.chars().all(is_name) {
            return Err(expected());
        }
        if OWN.contains(&name) {
            return Err(format!("line {number} sets {name}, which the agent sets itself"));
        }
        if added.iter().any(|(other, _)| other == name) {
            return Err(format!("line {number} sets {name} again"));
        }
        added.push((name.to_owned(), value.to_owned()));
    }
    Ok(added)
}

/// The variables as a file that systemd reads (`EnvironmentFile=`).
pub fn file(variables: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, value) in variables {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        text += &format!("{name}=\"{value}\"\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::manager::plan::{Noted, OwnMember, Stage};
    use crate::etcd::{ClusterId, MemberId};

    fn record(stage: Stage) -> Record {
        let own = OwnMember {
            cluster: ClusterId(1),
            id: MemberId(2),
        };
        Record {
            noted: Noted { own, stage },
            name: "n2".to_owned(),
            initial_cluster: Some("etcd-1=https://10.0.0.1:2380,n2=https://10.0.0.2:2380".to_owned()),
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
            restarted: 0,
        }
    }

    fn settings(peer: &str, client: &str) -> Settings {
        Settings {
            peer_urls: vec![peer.to_owned()],
            client_urls: vec![client.to_owned()],
            listen_peer_urls: vec![peer.to_owned()],
            listen_client_urls: vec![client.to_owned()],
            more: vec![("ETCD_QUOTA_BACKEND_BYTES".to_owned(), "8".to_owned())],
            data: "/state/etcd".into(),
            ..Settings::default()
        }
    }

    fn tls() -> TlsPaths {
        TlsPaths {
            certificate: "/tls/member.pem".into(),
            authorities: "/tls/ca.crt".into(),
            list: "/tls/revoked.crl".into(),
        }
    }

    fn of<'v>(variables: &'v [(String, String)], name: &str) -> Option<&'v str> {
        let mut found = variables.iter().filter(|(own, _)| own == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice");
        value
    }

    #[test]
    fn a_member_that_may_have_started_gets_no_list_with_which_it_could_start_on_nothing() {
        let settings = settings("https://10.0.0.2:2380", "https://10.0.0.2:2379");
        let new = environment(&record(Stage::New), &settings, Some(&tls()));
        assert!(of(&new, "ETCD_INITIAL_CLUSTER").is_some());
        for stage in [Stage::Started, Stage::Ended] {
            let later = environment(&record(stage), &settings, Some(&tls()));
            assert_eq!(of(&later, "ETCD_INITIAL_CLUSTER"), None);
            // Without this, etcd would start a cluster of its own.
            assert_eq!(of(&later, "ETCD_INITIAL_CLUSTER_STATE"), Some("existing"));
        }
    }

    #[test]
    fn a_peer_shows_the_certificate_of_a_member_and_none_that_was_revoked() {
        let settings = settings("https://10.0.0.2:2380", "https://10.0.0.2:2379");
        let made = environment(&record(Stage::New), &settings, Some(&tls()));
        for (name, value) in [
            ("ETCD_PEER_CERT_FILE", "/tls/member.pem"),
            ("ETCD_PEER_KEY_FILE", "/tls/member.pem"),
            ("ETCD_PEER_TRUSTED_CA_FILE", "/tls/ca.crt"),
            ("ETCD_PEER_CLIENT_CERT_AUTH", "true"),
            ("ETCD_PEER_CERT_ALLOWED_CN", "quorate-etcd"),
            ("ETCD_PEER_CRL_FILE", "/tls/revoked.crl"),
            ("ETCD_CERT_FILE", "/tls/member.pem"),
            ("ETCD_CLIENT_CERT_AUTH", "true"),
            ("ETCD_CLIENT_CRL_FILE", "/tls/revoked.crl"),
            ("ETCD_DATA_DIR", "/state/etcd"),
            ("ETCD_QUOTA_BACKEND_BYTES", "8"),
        ] {
            assert_eq!(of(&made, name), Some(value), "{name}");
        }
    }

    #[test]
    fn a_port_in_clear_text_gets_no_files() {
        let settings = settings("https://10.0.0.2:2380", "http://127.0.0.1:2379");
        let made = environment(&record(Stage::New), &settings, Some(&tls()));
        assert!(of(&made, "ETCD_PEER_CERT_FILE").is_some());
        assert_eq!(of(&made, "ETCD_CERT_FILE"), None);
        assert_eq!(of(&made, "ETCD_CLIENT_CRL_FILE"), None);
    }

    #[test]
    fn each_variable_that_the_agent_sets_is_one_that_an_operator_cannot() {
        let settings = settings("https://10.0.0.2:2380", "https://10.0.0.2:2379");
        let made = environment(&record(Stage::New), &settings, Some(&tls()));
        for (name, _) in made.iter().filter(|(name, _)| name != "ETCD_QUOTA_BACKEND_BYTES") {
            let refused = added(&format!("{name}=x")).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
    }

    #[test]
    fn an_operator_adds_settings_and_a_line_that_is_none_is_named() {
        let text = "# Sizes\nETCD_QUOTA_BACKEND_BYTES=8589934592\n\n  ETCD_HEARTBEAT_INTERVAL=100 \n";
        let read = added(text).unwrap();
        assert_eq!(of(&read, "ETCD_QUOTA_BACKEND_BYTES"), Some("8589934592"));
        assert_eq!(of(&read, "ETCD_HEARTBEAT_INTERVAL"), Some("100"));
        for bad in ["x", "PATH=/bin", "ETCD_wal_dir=x", "ETCD_WAL_DIR=/x"] {
            let refused = added(&format!("# One\n{bad}")).unwrap_err();
            assert!(refused.contains("line 2"), "{refused}");
        }
        let twice = added("ETCD_A=1\nETCD_A=2").unwrap_err();
        assert!(twice.contains("line 2 sets ETCD_A again"), "{twice}");
    }

    #[test]
    fn a_value_means_itself_to_systemd() {
        let variables = [("ETCD_NAME".to_owned(), r#"a "b" \c $d"#.to_owned())];
        assert_eq!(file(&variables), "ETCD_NAME=\"a \\\"b\\\" \\\\c $d\"\n");
    }
}
