//! The Network kind for commands.

use futures::FutureExt;

use super::{AGE, Affected, KeySpace, Kind, LABELS, NAME, Shown, UID, Words};
use crate::cli::objects::delete::{Deletable, Ending, marked};
use crate::cli::objects::pending::{self, NetworkUsers};
use crate::cli::objects::view::Item;
use crate::cli::output::{Column, Description, yes_no};
use crate::proto::Network;
use crate::store::Keys;
use crate::store::object::change::Of;
use crate::store::object::mark::Marked;
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
        KeySpace::new(
            |keys, id| keys.network(&id.name),
            Keys::networks,
            Keys::parse_network,
        ),
        &[
            NAME,
            Column::new("SERVICES"),
            Column::new("DELETING"),
            Column::new("BLOCKERS"),
            AGE,
            UID,
            LABELS,
        ],
        show,
        describe,
        Ok(&DELETED),
    )
};

static DELETED: Deletable = Deletable {
    plan: |request| marked::plan::<Network>(request, "it goes once no service uses it").boxed(),
    ending: Some(Ending::of_marked(|view, id| {
        NetworkUsers::of(view).blockers(id.name.as_str())
    })),
};

/// What holds a network back, if it is marked.
fn blockers(users: &NetworkUsers, name: &str, network: &Network) -> Vec<String> {
    match network.is_marked() {
        true => users.blockers(name),
        false => Vec::new(),
    }
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let network: Network = item.object()?;
    let users = NetworkUsers::of(item.view);
    let blockers = blockers(&users, item.name, &network);
    let cells = vec![
        users.known(item.name).len().to_string(),
        yes_no(network.is_marked()).to_owned(),
        pending::cell(&blockers),
    ];
    let document = network::to_document(&network, item.revision(), &blockers);
    Ok(Shown::object(&network, item.now, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(network) = description.object::<Network>(item) else {
        return;
    };
    let users = NetworkUsers::of(item.view);
    description.field(0, "Services", users.known(item.name).len().to_string());
    description.mark(network.mark(), item.now);
    description.blockers(&blockers(&users, item.name, &network));
}
