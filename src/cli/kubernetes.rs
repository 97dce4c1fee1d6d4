//! Connecting a command to the API server.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};

use super::exit::Failure;
use crate::kube::{ConnectError, KubeClient, Limits};

/// Refuses a `--kubeconfig` that was typed where Kubernetes is left out. A conflict of clap would also count the variable of
/// either flag, even one that says false; a kubeconfig of a variable is left out together with Kubernetes. It stands before both flags,
/// since each takes its value out of the matches.
#[derive(Clone, Copy, Debug)]
pub struct NotBoth;

impl FromArgMatches for NotBoth {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let typed = matches.value_source("kubeconfig") == Some(ValueSource::CommandLine);
        match typed && matches.get_flag("no_kubernetes") {
            true => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                "--kubeconfig cannot be used with --no-kubernetes, nor where QUORATE_NO_KUBERNETES says true: leave the one or the other out\n",
            )),
            false => Ok(Self),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|checked| *self = checked)
    }
}

impl Args for NotBoth {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Unconnected {
    /// The kubeconfig cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration is missing or unusable.
    #[error(transparent)]
    Configuration(#[from] ConnectError),
    /// The plugin for credentials that the kubeconfig names has panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// The runtime is ending.
    #[error("no connection was tried")]
    NotTried,
}

/// A client for this kubeconfig, or for the usual places. A plugin for credentials, which the kubeconfig may name, blocks its thread
/// for as long as it runs: this one only waits for it.
///
/// # Errors
/// [`Unconnected`]; a server that is down is none.
pub async fn connect(kubeconfig: Option<PathBuf>, limits: Limits) -> Result<KubeClient, Unconnected> {
    let runtime = Handle::current();
    let mut connecting = JoinSet::new();
    connecting
        .spawn_blocking(move || runtime.block_on(KubeClient::connect_with(kubeconfig.as_deref(), limits)));
    match connecting.join_next().await {
        Some(connected) => connected?.map_err(unreadable),
        None => Err(Unconnected::NotTried),
    }
}

/// Says of a kubeconfig that cannot be read what the system says of it.
fn unreadable(error: ConnectError) -> Unconnected {
    match error {
        ConnectError::Kubeconfig { path, why } => match File::open(&path) {
            Err(source) => Unconnected::Unreadable { path, source },
            Ok(_) => ConnectError::Kubeconfig { path, why }.into(),
        },
        error => error.into(),
    }
}

impl From<Unconnected> for Failure {
    fn from(unconnected: Unconnected) -> Self {
        match unconnected {
            Unconnected::Unreadable { .. } => Self::usage(unconnected),
            _ => Self::failed(unconnected),
        }
    }
}
