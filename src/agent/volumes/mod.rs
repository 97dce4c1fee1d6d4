//! The volumes of a node: staged, published, expanded and unpublished by the plugins that run on it.
//!
//! Each view of the session says what the node has to do about each of its publications. `plan` chooses the next step of one
//! volume, purely; an `operation` carries it out. The steps of one volume follow each other (INV-6), volumes run side by side under
//! a limit a plugin. `files` says what is kept on disk, [`mounts`] what is mounted, [`paths`] where.
//!
//! A mount may hang: whatever touches it waits for a server that is gone. The agent touches none. The table of mounts says what is
//! mounted, the files of the agent are reached across no mount (`beneath`), and the rest is the plugin's, whose calls have limits.
//!
//! Secrets stay in the view, which the next one replaces, and are copied for a call alone.

mod beneath;
mod files;
mod keeper;
pub mod mounts;
mod nodes;
mod operation;
pub mod paths;
mod places;
mod plan;
mod plugins;
mod states;
mod volume;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::confirm::Confirm;
use super::freshness::SessionReceiver;
use super::{CsiNodePlugin, ViewReceiver, passage};
use crate::metrics::Metrics;
use crate::proto::CsiNode;
use crate::retry::Delays;
use files::Files;
use keeper::Keeper;
use nodes::Nodes;
use paths::Layout;

/// Where the volumes are, and who mounts them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory with a path a volume. It is made where it is missing.
    pub directory: PathBuf,
    /// The plugins of this node.
    pub plugins: Vec<CsiNodePlugin>,
    /// The waits of the agent.
    pub times: Times,
}

/// The waits of the agent.
#[derive(Clone, Debug)]
pub struct Times {
    /// Between two looks at what is mounted.
    pub look_every: Duration,
    /// The limit of a call to a plugin.
    pub call: Duration,
    /// The limit of a call that may make, check or grow a file system.
    pub long_call: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            look_every: Duration::from_secs(5),
            call: Duration::from_secs(15),
            long_call: Duration::from_secs(120),
        }
    }
}

/// The mounts of volumes below this directory, whether the volumes are those of this node or not.
///
/// # Errors
/// What is mounted cannot be read.
pub fn mounted(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mounts = Layout::new(directory.to_owned()).mounts();
    let table = files::look()?;
    Ok(table.below(&mounts).map(|mount| mount.path.clone()).collect())
}

/// Keeps the volumes of the node as the views say. Never returns. Dropping it ends the calls in flight, and unmounts nothing.
///
/// Without a `session`, nothing is taken into use: an operator may have confirmed in the node's place that it uses a volume no more
/// (INV-6). What is in use stays, and what is wanted back is given back.
///
/// `csi` gets what the plugins name the node by, once each of them has answered or failed: an earlier answer would withdraw what the
/// others reported before (INV-12). A plugin that is away has the answer that it last gave. Without plugins it gets that at once.
pub async fn run(
    settings: Settings,
    views: ViewReceiver,
    control: impl Confirm,
    csi: watch::Sender<Option<Vec<CsiNode>>>,
    session: SessionReceiver,
    metrics: Metrics,
) {
    if settings.plugins.is_empty() {
        // The agent reports nothing before: a directory that cannot be used must not hold back what it says of etcd.
        csi.send_replace(Some(Vec::new()));
    }
    let mut delays = Delays::new(Duration::from_secs(1), Duration::from_secs(60));
    let files = loop {
        match Files::open(&settings.directory) {
            Ok(files) => break files,
            Err(error) => warn!(%error, "the directory of the volumes cannot be used"),
        }
        delays.wait().await;
    };
    if !settings.plugins.is_empty()
        && let Some(closed) = passage::closed(files.layout().directory())
    {
        let closed = closed.display();
        warn!(
            "only their owner's programs reach the volumes: others do not pass through {closed} (chmod a+x {closed})"
        );
    }
    let plugins = settings.plugins.iter().map(|plugin| &*plugin.name);
    let nodes = Nodes::read(&files, plugins, csi);
    Keeper::new(settings, files, control, nodes, views, session, metrics)
        .run()
        .await;
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::agent::confirm::NotConfirmed;

    #[derive(Clone)]
    struct NoServer;

    impl Confirm for NoServer {
        async fn confirm_unpublished(&self, _: &str, _: &str) -> Result<(), NotConfirmed> {
            Err(NotConfirmed::Failed("no server".to_owned()))
        }

        async fn confirm_expanded(&self, _: &str, _: &str, _: i64) -> Result<(), NotConfirmed> {
            Err(NotConfirmed::Failed("no server".to_owned()))
        }
    }

    #[tokio::test]
    async fn without_plugins_there_is_nothing_to_wait_for_in_a_directory_that_cannot_be_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = Settings {
            directory: file.path().join("volumes"),
            plugins: Vec::new(),
            times: Times::default(),
        };
        let (csi, mut seen) = watch::channel(None);
        let ((_views, views), (_session, session)) = (watch::channel(None), watch::channel(None));
        let running = run(settings, views, NoServer, csi, session, Metrics::new("test"));
        tokio::select! {
            () = running => unreachable!("it never returns"),
            known = timeout(Duration::from_secs(10), seen.wait_for(Option::is_some)) => {
                assert_eq!(*known.unwrap().unwrap(), Some(Vec::new()));
            }
        }
    }
}
