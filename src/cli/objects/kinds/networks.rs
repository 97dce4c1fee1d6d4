//! The Network kind for commands.

use futures::FutureExt;

use super::{Affected, Kind, Shown, Words};
use crate::cli::objects::delete::{Blockers, Deletable, Ending, marked};
use crate::cli::objects::pending::NetworkUsers;
use crate::cli::objects::view::Item;
use crate::cli::output::Description;
use crate::proto::Network;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, network};

/// The kind.
pub static NETWORKS: Kind = Kind {
    applied: Some(Of::<Network>::CODEC),
    beside: |keys, _| vec![keys.services()],
    // A service that changed may have stopped using any network.
    affected: |keys, key| match keys.parse_service(key) {
        Some(_) => Affected::All,
        None => Affected::Nothing,
    },
    ..Kind::new(
        Words::new(Network::KIND, "network", "networks", &["net"]),
        KeySpace::NETWORKS,
        &["NAME", "SERVICES", "DELETING", "BLOCKERS", "AGE"],
        &["UID", "LABELS"],
        show,
        describe,
        Ok(&DELETED),
    )
};

static DELETED: Deletable = Deletable {
    plan: |request| marked::plan::<Network>(request, "it goes once no service uses it").boxed(),
    plan_absent: None,
    ending: Some(Ending::of_marked(Blockers::Objects(|view, id| {
        NetworkUsers::of(view).blockers(id.name.as_str())
    }))),
};

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let network: Network = item.object()?;
    let users = NetworkUsers::of(item.view);
    let cells = vec![users.known(item.name).len().to_string()];
    let users = users.blockers(item.name);
    Ok(Shown::marked(&network, item, cells, &users, network::to_document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(network) = description.object::<Network>(item) else {
        return;
    };
    let users = NetworkUsers::of(item.view);
    description.field("Services", users.known(item.name).len().to_string());
    description.deletion(&network, item.now, &users.blockers(item.name));
}
