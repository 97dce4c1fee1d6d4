//! What the session shows of the etcd of the node.

use crate::agent::ViewReceiver;
use crate::agent::manager::plan::Shown;
use crate::etcd::MemberId;
use crate::identity::node::NodeRole;
use crate::proto::node_certificate::State;
use crate::proto::{NodeView, Role};

/// What a view says of the member, and the list of revoked certificates; empty if it has none.
pub(super) fn read(view: &NodeView) -> (Shown, &[u8]) {
    let member = view.member.as_ref();
    let removed = member.map_or(&[][..], |member| member.removed.as_slice());
    let shown = Shown {
        role: NodeRole::of(view.role()),
        is_demoted: view.desired_role() == Role::Worker,
        is_leaving: member.is_some_and(|member| member.leaving),
        removed: removed.iter().copied().map(MemberId).collect(),
        rotates: member.is_some_and(|member| member.certificate() == State::Rotate),
        restart: member.and_then(|member| Some(member.restart.as_ref()?.number)),
    };
    let list = view
        .revocation
        .as_ref()
        .map_or(&[][..], |list| list.crl.as_slice());
    (shown, list)
}

/// Waits for a view that says something else.
pub(super) async fn another_view(views: &mut ViewReceiver, shown: &Shown, list: &[u8]) {
    loop {
        if views.changed().await.is_err() {
            // The agent ends.
            std::future::pending::<()>().await;
        }
        let view = views.borrow_and_update().clone();
        if view.is_some_and(|view| {
            let (latest, other) = read(&view);
            latest != *shown || other != list
        }) {
            return;
        }
    }
}
