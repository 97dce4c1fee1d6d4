//! Holding back what the parts of a term write below `/nodes/`.

use std::sync::Arc;

use tokio::sync::watch;

/// Whether the parts of a term may write below `/nodes/` now. Restricting the status proves that no node was written since the
/// nodes were read (INV-4), so each such write has it refused. All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct NodeWrites {
    held: Arc<watch::Sender<bool>>,
}

impl NodeWrites {
    /// Holds them back until the guard is dropped. Those under way go on.
    #[must_use]
    pub fn hold(&self) -> Held {
        self.held.send_replace(true);
        Held(self.clone())
    }

    /// Resolves once they are not held back.
    pub async fn allowed(&self) {
        // The sender lives as long as this.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }
}

/// Holds writes below `/nodes/` back while it lives.
#[derive(Debug)]
pub struct Held(NodeWrites);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn writes_are_held_back_while_the_guard_lives() {
        let writes = NodeWrites::default();
        let other = writes.clone();
        let allowed = || other.allowed().now_or_never().is_some();
        assert!(allowed());
        let held = writes.hold();
        assert!(!allowed());
        drop(held);
        assert!(allowed());
    }
}
