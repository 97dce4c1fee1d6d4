//! The sessions of the plugins on this node.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};

use super::Times;
use super::plan::{Ready, Wait};
use crate::agent::CsiNodePlugin;
use crate::csi::{self, Limits, Method, NodeSession, NotReady, Settings, Tls};
use crate::metrics::Metrics;

/// Between two questions whether a plugin is ready. It answers from memory: the delays between handshakes are its own.
const LOOK: Duration = Duration::from_millis(200);

/// A plugin on this node.
pub(super) struct Plugin {
    pub state: Result<Session, Wait>,
    /// Whether it has answered or failed since the agent started.
    pub was_tried: bool,
}

/// The session of a plugin.
#[derive(Clone)]
pub(super) struct Session {
    pub ready: Ready,
    pub session: Arc<NodeSession>,
}

impl Plugin {
    pub fn new() -> Self {
        Self {
            state: Err(Wait {
                reason: "PluginUnreachable",
                message: "the plugin was not asked yet".to_owned(),
            }),
            was_tried: false,
        }
    }
}

/// A change of a plugin: it has a session, or none any more.
pub(super) type Event = (String, Result<Arc<NodeSession>, Wait>);

/// The changes of one plugin, for ever.
pub(super) fn follow(plugin: &CsiNodePlugin, times: &Times, metrics: &Metrics) -> BoxStream<'static, Event> {
    // A file system may have to be made, checked or grown.
    let limits = [
        Method::NodeStageVolume,
        Method::NodePublishVolume,
        Method::NodeExpandVolume,
    ]
    .into_iter()
    .fold(Limits::all(times.call), |limits, method| {
        limits.with(method, times.long_call)
    });
    let settings = Settings {
        limits,
        tls: Tls::default(),
    };
    let client = csi::Plugin::on_node(&plugin.name, plugin.endpoint.clone(), settings, metrics.clone());
    let name = plugin.name.clone();
    let events = unfold((client, None), |(client, last)| async move {
        let now = next(&client, last).await;
        Some((now.clone(), (client, Some(now))))
    });
    let events = events.map(move |event| (name.clone(), event.map_err(|error| why(&error))));
    events.boxed()
}

/// What follows after the last change.
async fn next(
    client: &csi::Plugin<NodeSession>,
    last: Option<Result<Arc<NodeSession>, NotReady>>,
) -> Result<Arc<NodeSession>, NotReady> {
    if let Some(Ok(session)) = &last {
        session.ended().await;
    }
    loop {
        match client.session().await {
            Err(error)
                if last
                    .as_ref()
                    .is_some_and(|last| last.as_ref().err() == Some(&error)) =>
            {
                tokio::time::sleep(LOOK).await;
            }
            now => return now,
        }
    }
}

fn why(error: &NotReady) -> Wait {
    Wait {
        reason: error.reason(),
        message: error.to_string(),
    }
}

/// Why a volume waits whose plugin the agent does not know.
pub(super) fn missing(plugin: &str) -> Wait {
    Wait {
        reason: "PluginMissing",
        message: format!("the agent has no --csi-node {plugin}=…"),
    }
}
