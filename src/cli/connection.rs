//! The flags of every command: etcd's endpoints, the credentials, the prefix.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::exit::Failure;
use super::output::warn;
use crate::causes;
use crate::etcd::{self, Class, Config, ConnectError, Etcd};
use crate::metrics::Metrics;
use crate::retry::Delays;
use crate::store::{Keys, Store};

/// How to reach etcd, and the prefix of Quorate's keys.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "etcd")]
pub struct EtcdArgs {
    /// Comma-separated client URLs of the etcd cluster
    #[arg(
        long,
        global = true,
        env = "QUORATE_ETCD_ENDPOINTS",
        value_name = "URL,…",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub etcd_endpoints: Vec<String>,

    /// Prefix of every key
    #[arg(
        long,
        global = true,
        env = "QUORATE_PREFIX",
        value_name = "PREFIX",
        default_value = "/quorate"
    )]
    pub prefix: String,

    /// Certificate authority that signed etcd's certificate (PEM; default: the system's)
    #[arg(long, global = true, env = "QUORATE_ETCD_CACERT", value_name = "FILE")]
    pub etcd_cacert: Option<PathBuf>,

    /// Client certificate (PEM)
    #[arg(long, global = true, env = "QUORATE_ETCD_CERT", value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,

    /// Key of the client certificate (PEM)
    #[arg(long, global = true, env = "QUORATE_ETCD_KEY", value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,

    /// etcd user
    #[arg(long, global = true, env = "QUORATE_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,

    /// File that holds the etcd user's password
    #[arg(long, global = true, env = "QUORATE_ETCD_PASSWORD_FILE", value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// The configuration that these flags describe. Touches neither files nor the network.
    pub fn config(&self) -> Config {
        // An empty variable is one empty endpoint.
        let given = self.etcd_endpoints.iter().filter(|endpoint| !endpoint.is_empty());
        let mut config = Config::new(given.cloned().collect());
        config.tls.ca.clone_from(&self.etcd_cacert);
        config.tls.identity = self.etcd_cert.clone().zip(self.etcd_key.clone());
        config.user = self.etcd_user.clone().zip(self.etcd_password_file.clone());
        config
    }

    /// The keys below the prefix. Each command that asks etcd begins with them, so the flags are checked here: one that asks nothing
    /// must not be refused for a variable of etcd.
    ///
    /// # Errors
    /// A usage failure if the prefix is malformed, or one of two flags that need each other is missing.
    pub fn keys(&self) -> Result<Keys, Failure> {
        needs_both(
            ("--etcd-cert", self.etcd_cert.is_some()),
            ("--etcd-key", self.etcd_key.is_some()),
        )?;
        needs_both(
            ("--etcd-user", self.etcd_user.is_some()),
            ("--etcd-password-file", self.etcd_password_file.is_some()),
        )?;
        let prefix = self
            .prefix
            .parse()
            .map_err(|error| Failure::usage(format!("--prefix: {error}")))?;
        Ok(Keys::new(prefix))
    }
}

fn needs_both(one: (&str, bool), other: (&str, bool)) -> Result<(), Failure> {
    let ((given, _), (missing, _)) = match (one.1, other.1) {
        (true, false) => (one, other),
        (false, true) => (other, one),
        _ => return Ok(()),
    };
    Err(Failure::usage(format_args!("{given} needs {missing}"))
        .hint("each may come from its variable: see --help"))
}

/// How long a command waits while the members of etcd elect their leader, as after their leader was demoted.
const ELECTION_PATIENCE: Duration = Duration::from_secs(3);

/// Connects a command to etcd, and checks with a linearizable read that it may read below the prefix.
///
/// # Errors
/// A failure that names the endpoint or file at fault, with a hint.
pub async fn connect(args: &EtcdArgs) -> Result<Store, Failure> {
    let keys = args.keys()?;
    let until = Instant::now() + ELECTION_PATIENCE;
    let etcd = connect_while(args, |error| {
        let passes = match error {
            ConnectError::NoneAnswers(answers) => answers.iter().any(|(_, error)| error.is_between_leaders()),
            ConnectError::Unopened(_) => error.is_retryable(),
            ConnectError::Config(_) | ConnectError::Setup(_) | ConnectError::SeveralClusters(_) => false,
        };
        passes && Instant::now() < until
    });
    let etcd = etcd.await?;
    etcd.get(&keys.status())
        .await
        .map_err(|error| unreadable(&error, &keys))?;
    Ok(Store { etcd, keys })
}

/// [`connect`] for a command that only shows. Without a quorum it shows what the members that answer hold, and says so.
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_show(args: &EtcdArgs) -> Result<Store, Failure> {
    let failure = match connect(args).await {
        Ok(store) => return Ok(store),
        Err(failure) => failure,
    };
    let Ok(store) = connect_without_quorum(args).await else {
        return Err(failure);
    };
    warn(&format!(
        "QuorumLost: etcd answers no linearizable read: this is what {} holds, and may be out of date (quorate recover plan says \
         what to do)",
        store.etcd.live_endpoints().join(", ")
    ));
    Ok(store)
}

/// Connects to whichever members answer by themselves. What is read may be out of date, and nothing can be written.
///
/// # Errors
/// No member answers.
pub async fn connect_without_quorum(args: &EtcdArgs) -> Result<Store, Failure> {
    let keys = args.keys()?;
    let mut config = args.config();
    config.serializable = true;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let connected = Etcd::connect(config, metrics).await;
    let store = Store {
        etcd: connected.map_err(|error| refused_without_quorum(args, &error))?,
        keys,
    };
    let read = store.etcd.get(&store.keys.status()).await;
    read.map_err(|error| unreadable(&error, &store.keys))?;
    Ok(store)
}

/// [`refused`], with the hints of a cluster that may have no quorum.
fn refused_without_quorum(args: &EtcdArgs, error: &ConnectError) -> Failure {
    let failure = refused(error);
    let ConnectError::NoneAnswers(answers) = error else {
        return failure;
    };
    let mut errors = answers.iter().map(|(_, error)| error);
    if errors
        .clone()
        .any(|error| error.class != Class::Unavailable || error.is_about_certificates())
    {
        return failure;
    }
    match args.etcd_user.is_some() && errors.any(|error| !error.is_refused_connection()) {
        true => failure.hint(
            "a user's log-in takes a quorum: if there is none, give a client certificate of the user instead of --etcd-user",
        ),
        false => failure.hint(
            "no member answers, so none says what it holds: start one with its data, or restore a snapshot (docs/recover.md)",
        ),
    }
}

/// [`connect`] for a command that waits: tries again after every error that may pass, and reports each as the failure that
/// [`connect`] would return.
///
/// # Errors
/// As [`connect`], for what waiting does not mend.
pub async fn connect_patiently(args: &EtcdArgs, mut report: impl FnMut(&Failure)) -> Result<Store, Failure> {
    let keys = args.keys()?;
    let etcd = connect_while(args, |error| {
        let passes = error.is_retryable();
        if passes {
            report(&refused(error));
        }
        passes
    });
    let etcd = etcd.await?;
    match etcd.get(&keys.status()).await {
        Err(error) if !error.is_retryable() => Err(unreadable(&error, &keys)),
        _ => Ok(Store { etcd, keys }),
    }
}

/// Connects a command. `again` decides after an error whether to try again.
async fn connect_while(
    args: &EtcdArgs,
    mut again: impl FnMut(&ConnectError) -> bool,
) -> Result<Etcd, Failure> {
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let mut config = args.config();
    config.election_patience = ELECTION_PATIENCE;
    let mut delays = Delays::etcd();
    loop {
        match Etcd::connect(config.clone(), metrics.clone()).await {
            Ok(etcd) => return Ok(etcd),
            Err(error) if again(&error) => delays.wait().await,
            Err(error) => return Err(refused(&error)),
        }
    }
}

const CHECK_USER: &str = "check --etcd-user and the file of --etcd-password-file";
const HAS_LEADER: &str = "does the cluster have a leader? etcdctl endpoint health --cluster";

/// The failure of a connection, with a hint for each cause.
pub fn refused(error: &ConnectError) -> Failure {
    let failure = Failure::failed(causes::chain(error));
    match error {
        ConnectError::Config(_) => Failure::usage(causes::chain(error)),
        ConnectError::SeveralClusters(_) => failure.hint("give --etcd-endpoints of one cluster"),
        ConnectError::Setup(_) => failure.hint("check --etcd-cacert, --etcd-cert and --etcd-key"),
        ConnectError::Unopened(error) if error.class == Class::Denied => failure.hint(CHECK_USER),
        ConnectError::Unopened(_) => failure.hint(HAS_LEADER),
        ConnectError::NoneAnswers(answers) => {
            let any = |text: &str| answers.iter().any(|(_, error)| error.message().contains(text));
            // A server that hangs up may expect TLS, or a client certificate.
            let tls = |error: &etcd::Error| error.is_about_certificates() || error.is_hangup();
            if answers.iter().any(|(_, error)| tls(error)) || any("InvalidContentType") || any("handshake") {
                failure.hint(
                    "check --etcd-cacert, --etcd-cert and --etcd-key, and that the URLs say https:// where etcd speaks \
                     TLS, and http:// where it does not",
                )
            } else if any("authentication is not enabled") {
                failure.hint("etcd has no users: leave out --etcd-user and --etcd-password-file")
            } else if answers.iter().any(|(_, error)| error.class == Class::Denied) {
                failure.hint(CHECK_USER)
            } else if answers.iter().any(|(_, error)| error.is_between_leaders()) {
                failure.hint(
                    "members answer and have no leader: where that lasts, they have no quorum, and quorate recover plan says what to do",
                )
            } else {
                failure.hint("check --etcd-endpoints, and that etcd runs and can be reached from here")
            }
        }
    }
}

fn unreadable(error: &etcd::Error, keys: &Keys) -> Failure {
    let failure = Failure::failed(format!("cannot read {} in etcd: {error}", keys.prefix()));
    match error.class {
        Class::Denied => failure.hint(format!(
            "the user needs read and write on the prefix {0}/: etcdctl role grant-permission ROLE --prefix=true readwrite {0}/",
            keys.prefix()
        )),
        Class::Unavailable => failure.hint(HAS_LEADER),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::TlsFiles;

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_the_systems_error() {
        let mut config = Config::new(vec!["https://127.0.0.1:1".to_owned()]);
        config.tls = TlsFiles {
            ca: Some("/does/not/exist".into()),
            identity: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let connected = runtime.block_on(Etcd::connect(config, Metrics::new("test")));
        let failure = refused(&connected.unwrap_err()).to_string();
        assert!(
            failure.starts_with("cannot read /does/not/exist: No such file"),
            "{failure}"
        );
    }
}
