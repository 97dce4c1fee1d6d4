//! What the plugins name the node by.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;
use tracing::warn;

use super::files::Files;
use crate::proto::CsiNode;

/// What each plugin last said of the node, in this process or in an earlier one.
pub(super) struct Nodes {
    known: BTreeMap<String, CsiNode>,
    /// The plugins of which that cannot be read: nothing is reported before they have said it again (INV-12).
    unread: BTreeSet<String>,
    shown: watch::Sender<Option<Vec<CsiNode>>>,
}

impl Nodes {
    /// Reads what earlier processes have kept of these plugins. `shown` gets what is reported.
    pub fn read<'a>(
        files: &Files,
        plugins: impl Iterator<Item = &'a str>,
        shown: watch::Sender<Option<Vec<CsiNode>>>,
    ) -> Self {
        let (mut known, mut unread) = (BTreeMap::new(), BTreeSet::new());
        for plugin in plugins {
            match files.known_node(plugin) {
                Ok(Some(node)) => _ = known.insert(plugin.to_owned(), node),
                Ok(None) => {}
                Err(error) => {
                    warn!(plugin, %error, "what the plugin last said of the node cannot be read");
                    unread.insert(plugin.to_owned());
                }
            }
        }
        Self { known, unread, shown }
    }

    /// Takes what a plugin says now, and keeps it for the next process.
    pub fn take(&mut self, files: &Files, node: CsiNode) {
        if let Err(error) = files.keep_node(&node) {
            warn!(%error, "what a plugin says of the node is not kept for the next start");
        }
        self.unread.remove(&node.plugin);
        self.known.insert(node.plugin.clone(), node);
    }

    /// Reports what is known. Call it once each plugin has answered or failed: an earlier report would withdraw what the others
    /// reported before (INV-12).
    pub fn show(&self) {
        if !self.unread.is_empty() {
            return;
        }
        let nodes = Some(self.known.values().cloned().collect());
        self.shown.send_if_modified(|shown| {
            let is_news = *shown != nodes;
            *shown = nodes;
            is_news
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(plugin: &str) -> CsiNode {
        CsiNode {
            plugin: plugin.to_owned(),
            node_id: format!("{plugin}-n1"),
            ..CsiNode::default()
        }
    }

    #[test]
    fn what_a_plugin_said_is_reported_by_the_next_process_and_nothing_while_one_of_them_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::open(&directory.path().join("volumes")).unwrap();
        let (shown, mut seen) = watch::channel(None);
        let plugins = || ["a", "b"].into_iter();
        let mut first = Nodes::read(&files, plugins(), shown.clone());
        first.show();
        assert_eq!(*seen.borrow_and_update(), Some(vec![]));
        first.take(&files, node("b"));
        first.take(&files, node("a"));
        first.show();
        assert_eq!(*seen.borrow_and_update(), Some(vec![node("a"), node("b")]));
        first.show();
        assert!(!seen.has_changed().unwrap(), "it is no news");

        shown.send_replace(None);
        Nodes::read(&files, plugins(), shown.clone()).show();
        assert_eq!(*seen.borrow_and_update(), Some(vec![node("a"), node("b")]));
        std::fs::write(files.layout().plugins().join("a.json"), "").unwrap();
        shown.send_replace(None);
        let mut last = Nodes::read(&files, plugins(), shown);
        last.show();
        assert_eq!(*seen.borrow_and_update(), None);
        last.take(&files, node("a"));
        last.show();
        assert_eq!(*seen.borrow_and_update(), Some(vec![node("a"), node("b")]));
    }
}
