//! What the index tells people about its volumes.

use super::troubles::Said;
use super::{Index, State};
use crate::store::Name;

impl Index {
    /// What is blocked: volumes, publications by their nodes, and volumes whose record cannot be read. One pass over all.
    pub fn troubled(&self) -> impl Iterator<Item = (&Name, Option<&Name>)> {
        let is_blocked = |said: &[Said]| said.iter().any(Said::is_blocked);
        self.volumes.iter().flat_map(move |(volume, entry)| {
            let mut own = entry.volume.iter();
            let is_own = own.any(|stored| is_blocked(&stored.said)) || entry.state == Some(State::Malformed);
            let publications = entry.publications.all();
            let publications = publications.filter(move |(_, stored)| is_blocked(&stored.said));
            let nodes = publications.map(|(node, _)| Some(node));
            is_own
                .then_some(None)
                .into_iter()
                .chain(nodes)
                .map(move |node| (volume, node))
        })
    }

    /// The volumes in a state. One pass over all.
    pub fn in_state(&self, state: State) -> impl Iterator<Item = &Name> {
        let volumes = self.volumes.iter();
        let in_state = volumes.filter(move |(_, entry)| entry.state == Some(state));
        in_state.map(|(name, _)| name)
    }

    /// The nodes of a volume's publications, in order.
    pub fn published_to(&self, volume: &Name) -> impl Iterator<Item = &Name> {
        let entry = self.volumes.get(volume).into_iter();
        entry.flat_map(|entry| entry.publications.nodes())
    }
}
