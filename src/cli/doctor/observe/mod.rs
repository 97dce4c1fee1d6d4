//! Asks etcd, the API server, the plugins and the files. All are asked side by side, and each within a limit.

mod kubernetes;
mod plugins;
mod store;

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use super::DoctorArgs;
use super::seen::{AuthoritySeen, FileSeen, Seen};
use crate::causes;
use crate::cli::bundle;
use crate::cli::connection::EtcdArgs;
use crate::cli::exit::Failure;
use crate::etcd::{Config, checkup};
use crate::identity::{AuthorityKind, directory, ends};

/// How long one server may take to answer one question. A link of 100 ms and a busy machine need less.
const LIMIT: Duration = Duration::from_secs(2);

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Looks at everything.
///
/// # Errors
/// 64 if a flag is wrong. Whatever cannot be reached is seen as such.
pub async fn observe(args: &DoctorArgs, etcd: &EtcdArgs) -> Result<Seen, Failure> {
    let keys = etcd.keys()?;
    let bundle = bundle::of_flag(args.bundle.as_deref())?;
    let keyring = args.encryption.read()?;
    let config = config(etcd);
    let (endpoints, store, kubernetes) = tokio::join!(
        checkup::look(&config, LIMIT),
        store::observe(&config, &keys),
        kubernetes::observe(args, &bundle),
    );
    let now = Timestamp::now();
    let ca_dir = args.ca_dir.as_deref();
    Ok(Seen {
        now,
        keys,
        logs_in: config.user.is_some(),
        endpoints: endpoints.map_err(|error| causes::chain(&error)),
        files: files(&config),
        store,
        kubernetes,
        authorities: ca_dir.map_or_else(Vec::new, |ca_dir| authorities(ca_dir, now)),
        keyring,
    })
}

fn config(etcd: &EtcdArgs) -> Config {
    let mut config = etcd.config();
    config.request_timeout = LIMIT;
    config.connect_timeout = CONNECT_LIMIT;
    config
}

/// The certificates of the connection to etcd. A file that cannot be read is found with the settings.
fn files(config: &Config) -> Vec<FileSeen> {
    let certificate = config.tls.identity.as_ref().map(|(certificate, _)| certificate);
    let given = [
        ("--etcd-cacert", config.tls.ca.as_ref()),
        ("--etcd-cert", certificate),
    ];
    let file = |(flag, path): (&'static str, Option<&PathBuf>)| {
        let path = path?;
        let text = std::fs::read(path).ok()?;
        Some(FileSeen {
            flag,
            path: path.clone(),
            certificates: ends::of_pem(&text),
        })
    };
    given.into_iter().filter_map(file).collect()
}

fn authorities(ca_dir: &Path, now: Timestamp) -> Vec<AuthoritySeen> {
    let authority = |kind: AuthorityKind| AuthoritySeen {
        path: ca_dir.join(directory::CURRENT).join(kind.certificate_file()),
        outcome: directory::read(ca_dir, kind, now)
            .map(|authority| authority.not_after())
            .map_err(|error| error.to_string()),
    };
    AuthorityKind::ALL.into_iter().map(authority).collect()
}
