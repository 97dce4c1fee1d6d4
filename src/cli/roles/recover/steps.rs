//! The steps of a recovery, in words. Pure.

use std::fmt::Write;

use crate::cli::output::one_line;
use crate::etcd::members::Status;
use crate::roles::membership::{Member, Membership};
use crate::roles::quorum::Quorum;

/// The steps for a cluster as its members show it.
pub fn steps(membership: &Membership) -> String {
    let quorum = Quorum::of(&membership.votes());
    let mut text = members(membership);
    if quorum.holds() {
        text += &with_quorum(membership, quorum);
        return text;
    }
    let running = membership
        .voters()
        .filter(|member| status(member).is_some())
        .count();
    _ = writeln!(
        text,
        "\netcd has no quorum: of {} voters {running} run, and {} are needed.\n\n\
         1. Start stopped members with their data, if that is possible for {} of them: nothing is lost then, and the rest of \
         this plan is void.\n   What follows gives up what only the others have acknowledged.",
        quorum.voters,
        quorum.needed(),
        quorum.needed().saturating_sub(running).max(1),
    );
    match best(membership) {
        Some(survivor) => from_survivor(&mut text, membership, survivor),
        None => text += "2. No voter answers with its data. Restore a snapshot: docs/recover.md.\n",
    }
    text
}

fn status(member: &Member) -> Option<&Status> {
    member.evidence.status.answer()
}

/// The voter that has the most of the log.
fn best(membership: &Membership) -> Option<&Member> {
    let voters = membership
        .voters()
        .filter_map(|member| Some((status(member)?, member)));
    let most = voters.max_by_key(|(status, member)| (status.committed, status.applied, member.id));
    most.map(|(_, member)| member)
}

/// The name of the member and that of its node, which may differ.
fn name(member: &Member) -> String {
    let etcd = member.listed.as_ref().map_or("", |listed| &listed.name);
    let name = match (etcd, member.node()) {
        ("", "") => member.id.to_string(),
        ("", node) | (node, "") => node.to_owned(),
        (etcd, node) if etcd == node => node.to_owned(),
        (etcd, node) => format!("{node} ({etcd})"),
    };
    one_line(&name)
}

fn members(membership: &Membership) -> String {
    let mut text = String::from("Members:\n");
    for member in membership.listed() {
        let kind = if member.is_learner() { "learner" } else { "voter" };
        let said = match status(member) {
            Some(status) => format!(
                "runs, has applied {} of {} entries",
                status.applied, status.committed
            ),
            None => "does not answer".to_owned(),
        };
        _ = writeln!(text, "  {}  {}  {kind}  {said}", member.id, name(member));
    }
    text
}

fn with_quorum(membership: &Membership, quorum: Quorum) -> String {
    let mut text = format!("\netcd has a quorum ({quorum}): there is nothing to recover.\n");
    for lost in membership.voters().filter(|member| !member.is_healthy()) {
        let _ = match lost.node() {
            "" => writeln!(
                text,
                "If the data of {} is lost: etcdctl member remove {}",
                name(lost),
                lost.id
            ),
            node => writeln!(
                text,
                "If the data of {} is lost: quorate replace {node}",
                name(lost)
            ),
        };
    }
    text
}

fn from_survivor(text: &mut String, membership: &Membership, survivor: &Member) {
    let (own, others) = (
        name(survivor),
        membership.listed().filter(|other| other.id != survivor.id),
    );
    let others: Vec<&Member> = others.collect();
    let names: Vec<String> = others.iter().map(|other| name(other)).collect();
    let urls = survivor
        .listed
        .as_ref()
        .map(|listed| listed.client_urls.join(","));
    let url = urls.unwrap_or_default();
    _ = writeln!(
        text,
        "2. Stop every replica of Quorate, and everything else that writes to etcd.\n\
         3. {own} has the most. Save what it has, then stop its etcd and copy its data directory:\n   \
         ETCDCTL_API=3 etcdctl --endpoints={url} snapshot save before-recovery.db\n\
         4. See to it that no etcd of {} starts again, and set their data directories aside: their data is void from the next \
         step on.\n\
         5. Start the etcd of {own} on its data directory once with --force-new-cluster beside its usual flags. Once it serves, \
         start it again without that flag.\n\
         6. etcd has one voter now: quorate get members --etcd-endpoints={url}\n\
         7. Start the replicas of Quorate. The leader forgets the other members; their nodes stay managers.",
        names.join(" and "),
    );
    for (step, other) in (8..).zip(others) {
        let urls = other.peer_urls().join(",");
        let _ = match other.node() {
            "" => writeln!(
                text,
                "{step}. {}: let it join by etcdctl member add --learner, on an empty data directory.",
                name(other)
            ),
            node => writeln!(
                text,
                "{step}. {}: empty its data directory, then start its etcd with what this prints:\n   \
                 quorate join {node} --peer-url {urls} -o env\n   \
                 and wait until it votes: quorate join {node} --peer-url {urls} --wait",
                name(other)
            ),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

    #[test]
    fn with_a_quorum_there_is_nothing_to_recover_and_a_lost_member_is_replaced() {
        let text = steps(&surveyed(vec![voter(1), voter(2), voter(3).down()]));
        assert!(
            text.contains("etcd has a quorum (2 of 3 voters healthy, 2 needed)"),
            "{text}"
        );
        assert!(text.contains("quorate replace n3"), "{text}");
        assert!(!text.contains("--force-new-cluster"), "{text}");
    }

    #[test]
    fn without_one_the_member_with_the_most_data_is_what_the_cluster_comes_back_from() {
        let cut_off = |id, applied| voter(id).applied(applied).unread();
        let members = vec![
            cut_off(1, 90),
            cut_off(2, 100),
            voter(3).down(),
            voter(4).down(),
            voter(5).down(),
        ];
        let text = steps(&surveyed(members));
        for part in [
            "of 5 voters 2 run, and 3 are needed",
            "3. n2 has the most.",
            "--endpoints=http://10.0.0.2:2379 snapshot save",
            "no etcd of n1 and n3 and n4 and n5 starts again",
            "the etcd of n2 on its data directory once with --force-new-cluster",
            "quorate join n1 --peer-url http://10.0.0.1:2380 -o env",
        ] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        let none = steps(&surveyed(vec![voter(1).down(), voter(2).down()]));
        assert!(none.contains("No voter answers with its data"), "{none}");
    }
}
