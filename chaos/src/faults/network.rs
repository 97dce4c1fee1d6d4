//! What the networks of replicas, agents and members do.

use quorate_dev::proxy::{Cut as ProxyCut, Network, Proxy};

use super::Faults;
use crate::schedule::{Cut, Lost};
use crate::target::Target;

/// A cut of the network of a replica or an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct InForce {
    /// The number of the fault.
    pub number: u32,
    /// Whose network.
    pub of: Target,
    /// Towards which of its servers; none: all of them.
    pub server: Option<usize>,
    /// What it does.
    pub network: Network,
}

/// A partition between members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    /// The number of the fault.
    pub number: u32,
    /// Which member.
    pub member: usize,
    /// From which other one; none: from all others.
    pub other: Option<usize>,
    /// What is lost.
    pub lost: Lost,
}

impl Faults {
    /// What the network of a replica or an agent does now: the youngest cut counts.
    pub(super) fn set_network(&self, of: Target) {
        for (index, proxy) in self.proxies(of).iter().enumerate() {
            let mut cuts = self.cuts.iter().rev();
            let cut = cuts.find(|cut| cut.of == of && cut.server.is_none_or(|server| server == index));
            proxy.set(cut.map_or(Network::Passes, |cut| cut.network));
        }
    }

    fn proxies(&self, of: Target) -> &[Proxy] {
        match of {
            Target::Replica(index) => &self.world.replicas[index].proxies,
            Target::Agent(index) => &self.world.links[index].replicas,
            Target::Member(_) | Target::Apiserver => &[],
        }
    }

    /// What the network between members does now: all partitions hold at once.
    pub(super) fn set_partitions(&self) {
        let members = self.world.etcd.members.iter();
        let members = members.map(|member| member.peer_proxy.as_ref());
        let of_agents = self.world.links.iter().map(|link| link.peers.as_ref());
        for (index, proxy) in members.chain(of_agents).enumerate() {
            if let Some(proxy) = proxy {
                proxy.cut(cuts_at(index, &self.partitions, &self.world.member_ids));
            }
        }
    }
}

/// What the proxy in front of a member does. `ids` are those of the first members; the proxies after theirs are in front of members
/// that agents keep, which are of the others to each partition.
///
/// What a member sends goes over connections that it made, as requests, and over those that others made to it, as replies.
fn cuts_at(at: usize, partitions: &[Partition], ids: &[u64]) -> Vec<ProxyCut> {
    let cut = |partition: &Partition| {
        let Partition {
            member, other, lost, ..
        } = *partition;
        if member == at {
            let network = match lost {
                Lost::Both => Network::BlackHole,
                Lost::Sent => Network::LosesReplies,
                Lost::Received => Network::LosesRequests,
            };
            let from = other.map(|other| ids[other]);
            return Some(ProxyCut { from, network });
        }
        let network = match lost {
            Lost::Both => Network::BlackHole,
            Lost::Sent => Network::LosesRequests,
            Lost::Received => Network::LosesReplies,
        };
        let from = Some(ids[member]);
        other
            .is_none_or(|other| other == at)
            .then_some(ProxyCut { from, network })
    };
    partitions.iter().filter_map(cut).collect()
}

/// What a proxy does for a cut.
pub(super) fn network(cut: Cut) -> Network {
    match cut {
        Cut::BlackHole => Network::BlackHole,
        Cut::LosesReplies => Network::LosesReplies,
        Cut::LosesRequests => Network::LosesRequests,
        Cut::Resets => Network::Resets,
        Cut::Delays(delay) => Network::Delays(delay),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [u64; 3] = [10, 11, 12];

    fn cuts(at: usize, other: Option<usize>, lost: Lost) -> Vec<(Option<u64>, Network)> {
        let partition = Partition {
            number: 1,
            member: 1,
            other,
            lost,
        };
        let cuts = cuts_at(at, &[partition], &IDS).into_iter();
        cuts.map(|cut| (cut.from, cut.network)).collect()
    }

    #[test]
    fn a_member_is_cut_off_from_all_others_also_from_those_of_agents() {
        assert_eq!(cuts(1, None, Lost::Both), [(None, Network::BlackHole)]);
        for other in [0, 2, 3] {
            assert_eq!(cuts(other, None, Lost::Both), [(Some(11), Network::BlackHole)]);
        }
    }

    #[test]
    fn a_partition_between_two_leaves_the_third_alone() {
        assert_eq!(cuts(1, Some(2), Lost::Both), [(Some(12), Network::BlackHole)]);
        assert_eq!(cuts(2, Some(2), Lost::Both), [(Some(11), Network::BlackHole)]);
        assert_eq!(cuts(0, Some(2), Lost::Both), []);
        assert_eq!(cuts(3, Some(2), Lost::Both), []);
    }

    #[test]
    fn what_a_member_sends_is_lost_on_the_connections_of_both_sides() {
        assert_eq!(cuts(1, None, Lost::Sent), [(None, Network::LosesReplies)]);
        assert_eq!(cuts(0, None, Lost::Sent), [(Some(11), Network::LosesRequests)]);
        assert_eq!(cuts(1, None, Lost::Received), [(None, Network::LosesRequests)]);
        assert_eq!(cuts(0, None, Lost::Received), [(Some(11), Network::LosesReplies)]);
    }
}
