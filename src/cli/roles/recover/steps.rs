//! The steps of a recovery, in words. Pure.

use std::fmt::Write;

use crate::cli::output::{one_line, shell_word};
use crate::etcd::members::{Alarm, Inquiry, NotAsked, Status};
use crate::roles::membership::{Member, Membership};
use crate::roles::quorum::Quorum;

/// The flags by which the printed commands reach etcd with the credentials of this one, each after a space.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// For `etcdctl`.
    pub etcdctl: String,
    /// For `quorate`.
    pub quorate: String,
}

/// The steps for a cluster as its members show it.
pub fn steps(membership: &Membership, credentials: &Credentials) -> String {
    let mut text = members(membership);
    if membership.serves() {
        text += &with_quorum(membership);
        return text;
    }
    let unasked: Vec<&Member> = membership.voters().filter(is_unasked).collect();
    if !unasked.is_empty() {
        _ = writeln!(
            text,
            "\nNo voter answers a linearizable read. The removal of {} is decided, so that it was not asked what it holds, and it may \
             hold the most. Run this again.",
            names(unasked),
        );
        return text;
    }
    let quorum = Quorum::of(&membership.votes());
    let (answering, silent): (Vec<_>, Vec<_>) =
        membership.voters().partition(|member| status(member).is_some());
    let (voters, needed) = (quorum.voters, quorum.needed());
    if answering.len() >= needed {
        let data = match names(membership.voters().filter(|member| member.corrupt)) {
            none if none.is_empty() => "Their data is whole".to_owned(),
            corrupt => {
                format!("The data of {corrupt} is corrupt, as etcd says, and that of the others whole")
            }
        };
        _ = writeln!(
            text,
            "\netcd has no quorum, though {} of {voters} voters run, and {needed} are enough: they do not find each other. {data}, \
             so there is nothing to recover. Look at their peer URLs and ports, the certificates between them, their clocks and \
             their logs.",
            answering.len(),
        );
        return text;
    }
    let silent = names(silent);
    _ = writeln!(
        text,
        "\nNo voter answers a linearizable read: of {voters} voters {} answer here, and {needed} are needed.\n\n\
         1. Look on the machines of {silent} whether their etcd runs. No answer here is no proof that it does not: where enough of \
         them run and reach each other, they are a quorum, and the steps below would make a second cluster of the same data.\n   \
         Start stopped members with their data, if that is possible for {} of them: nothing is lost then, and the rest of this \
         plan is void.",
        answering.len(),
        needed - answering.len(),
    );
    match best(membership) {
        Some(survivor) => from_survivor(&mut text, membership, survivor, credentials),
        None => text += "2. No voter answers with its data. Restore a snapshot: docs/recover.md.\n",
    }
    text
}

/// Whether nothing is known of what it holds, because its removal is decided.
fn is_unasked(member: &&Member) -> bool {
    matches!(member.evidence.status, Inquiry::NotAsked(NotAsked::Leaving))
}

fn status(member: &Member) -> Option<&Status> {
    member.evidence.status.answer()
}

/// The voters from which the cluster can come back, each with its status: those that answer, and whose data is not corrupt.
fn candidates(membership: &Membership) -> impl Iterator<Item = (&Status, &Member)> {
    let intact = membership.voters().filter(|member| !member.corrupt);
    intact.filter_map(|member| Some((status(member)?, member)))
}

/// The one of them that has the most of the log.
fn best(membership: &Membership) -> Option<&Member> {
    let most =
        candidates(membership).max_by_key(|(status, member)| (status.committed, status.applied, member.id));
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

fn names<'a>(members: impl IntoIterator<Item = &'a Member>) -> String {
    let names: Vec<String> = members.into_iter().map(name).collect();
    names.join(" and ")
}

fn members(membership: &Membership) -> String {
    let mut text = String::from("Members:\n");
    for member in membership.listed() {
        let kind = member.kind_word();
        let said = match &member.evidence.status {
            Inquiry::Asked {
                answer: Ok(status), ..
            } => format!(
                "runs, has applied {} of {} entries{}",
                status.applied,
                status.committed,
                if member.corrupt {
                    ", and its data is corrupt"
                } else {
                    ""
                }
            ),
            Inquiry::Asked { answer: Err(_), .. } => "does not answer here".to_owned(),
            Inquiry::NotAsked(why @ NotAsked::Leaving) => why.to_string(),
            Inquiry::NotAsked(_) => "does not answer here".to_owned(),
        };
        _ = writeln!(text, "  {}  {}  {kind}  {said}", member.id, name(member));
    }
    text
}

fn with_quorum(membership: &Membership) -> String {
    let serves = |member: &&Member| member.evidence.is_healthy();
    let (serving, silent): (Vec<_>, Vec<_>) = membership.voters().partition(serves);
    let mut text = format!(
        "\netcd has a quorum, which the linearizable read through {} proves: there is nothing to recover.\n",
        names(serving)
    );
    if !silent.is_empty() {
        let silent = names(silent);
        _ = writeln!(
            text,
            "No linearizable read through {silent} is answered here: look on the machine whether etcd runs, and whether this \
             machine reaches it."
        );
    }
    for lost in membership.voters().filter(|member| !member.is_healthy()) {
        let replace = match lost.node() {
            "" => format!("etcdctl member remove {}", lost.id),
            node => format!("quorate replace {node}"),
        };
        let (name, before) = (name(lost), Alarm::BEFORE_REPLACEMENT);
        _ = match lost.corrupt {
            true => writeln!(
                text,
                "The data of {name} is corrupt, as etcd says: {before}, then {replace}"
            ),
            false => writeln!(text, "If the data of {name} is lost: {replace}"),
        };
    }
    text
}

fn from_survivor(text: &mut String, membership: &Membership, survivor: &Member, credentials: &Credentials) {
    let own = name(survivor);
    let others: Vec<&Member> = membership
        .listed()
        .filter(|other| other.id != survivor.id)
        .collect();
    let known = status(survivor).map(|status| status.committed);
    let as_much = candidates(membership)
        .filter(|(status, other)| other.id != survivor.id && Some(status.committed) == known);
    let tie = match names(as_much.map(|(_, other)| other)) {
        none if none.is_empty() => String::new(),
        equals => format!(" {equals} knows as much, and will do as well."),
    };
    let endpoints = format!("={}", shell_word(&client_urls(survivor)));
    let Credentials { etcdctl, quorate } = credentials;
    _ = writeln!(
        text,
        "2. Stop every replica of Quorate, and everything else that writes to etcd.\n\
         3. {own} knows the most entries to be committed.{tie} What follows gives up every entry that {own} does not know to be \
         committed, also those that it holds.\n   \
         Save what it has, then stop its etcd and copy its data directory:\n   \
         ETCDCTL_API=3 etcdctl --endpoints{endpoints}{etcdctl} snapshot save before-recovery.db\n\
         4. See to it that no etcd of {} starts again, and set their data directories aside: their data is void from the next \
         step on.\n\
         5. Start the etcd of {own} on its data directory once with --force-new-cluster beside its usual flags. Once it serves, \
         start it again without that flag.\n\
         6. etcd has one voter now: quorate get members --etcd-endpoints{endpoints}{quorate}\n\
         7. Start the replicas of Quorate. The leader forgets the other members; their nodes stay managers.",
        names(others.iter().copied()),
    );
    for (step, other) in (8..).zip(others) {
        _ = match other.node() {
            "" => writeln!(
                text,
                "{step}. {}: let it join by etcdctl member add --learner, on an empty data directory.",
                name(other)
            ),
            node => {
                let join = join(node, other);
                let connection = format!("--etcd-endpoints{endpoints}{quorate}");
                writeln!(
                    text,
                    "{step}. {}: empty its data directory, then start its etcd with what this prints:\n   \
                     {join} -o env {connection}\n   \
                     and wait until it votes: {join} --wait {connection}\n   \
                     From then on, start it with what the first command prints by then.",
                    name(other)
                )
            }
        };
    }
}

/// Lets the node join at the URLs of its former member.
fn join(node: &str, former: &Member) -> String {
    let mut join = format!(
        "quorate join {node} --peer-url {}",
        shell_word(&former.peer_urls().join(","))
    );
    let client_urls = client_urls(former);
    if !client_urls.is_empty() {
        _ = write!(join, " --client-url {}", shell_word(&client_urls));
    }
    join
}

fn client_urls(member: &Member) -> String {
    member
        .listed
        .as_ref()
        .map_or_else(String::new, |listed| listed.client_urls.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::removal::Cause;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

    fn plan(members: Vec<Member>) -> String {
        steps(&surveyed(members), &Credentials::default())
    }

    #[test]
    fn with_a_quorum_there_is_nothing_to_recover_and_a_lost_member_is_replaced() {
        let text = plan(vec![voter(1), voter(2), voter(3).down()]);
        assert!(
            text.contains("the linearizable read through n1 and n2 proves"),
            "{text}"
        );
        assert!(text.contains("quorate replace n3"), "{text}");
        assert!(!text.contains("--force-new-cluster"), "{text}");
    }

    #[test]
    fn a_corrupt_member_is_replaced_and_is_nothing_to_come_back_from() {
        let text = plan(vec![voter(1), voter(2), voter(3).corrupt()]);
        assert!(
            text.contains("The data of n3 is corrupt, as etcd says: stop its etcd"),
            "{text}"
        );
        assert!(!text.contains("No linearizable read through n3"), "{text}");
        let cut_off = |id, applied| voter(id).applied(applied).unread();
        let text = plan(vec![
            cut_off(1, 90),
            cut_off(2, 100).corrupt(),
            voter(3).down(),
            voter(4).down(),
        ]);
        assert!(text.contains("3. n1 knows the most entries"), "{text}");
        assert!(text.contains("of 100 entries, and its data is corrupt"), "{text}");
        // Nor does it do as well where it knows as much.
        let text = plan(vec![
            cut_off(1, 100),
            cut_off(2, 100).corrupt(),
            voter(3).down(),
            voter(4).down(),
            voter(5).down(),
        ]);
        assert!(
            text.contains("3. n1 knows the most entries to be committed. What"),
            "{text}"
        );
    }

    #[test]
    fn one_voter_that_answers_a_linearizable_read_proves_a_quorum_that_this_machine_does_not_reach() {
        let text = plan(vec![voter(1), voter(2).down(), voter(3).down()]);
        for part in [
            "etcd has a quorum, which the linearizable read through n1 proves",
            "No linearizable read through n2 and n3 is answered here",
        ] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        assert!(!text.contains("--force-new-cluster"), "{text}");
        // A learner serves no linearizable read.
        let text = plan(vec![voter(1).unread(), voter(2).down(), voter(3).learner()]);
        assert!(text.contains("of 2 voters 1 answer here"), "{text}");
    }

    #[test]
    fn a_voter_whose_removal_is_decided_runs_and_may_hold_the_most() {
        let cut_off = |id, applied| voter(id).applied(applied).unread();
        let mut leaving = voter(2).leaving(Cause::Demoted).unread();
        leaving.evidence.status = Inquiry::NotAsked(NotAsked::Leaving);
        let text = plan(vec![cut_off(1, 90), leaving, voter(3).down()]);
        assert!(text.contains("it may hold the most. Run this again."), "{text}");
        assert!(!text.contains("--force-new-cluster"), "{text}");
        // Asked for its status, it counts as a voter that runs, and is what the cluster comes back from.
        let leaving = || cut_off(2, 100).leaving(Cause::Demoted);
        let text = plan(vec![cut_off(1, 90), leaving(), voter(3).down()]);
        assert!(text.contains("2 of 3 voters run, and 2 are enough"), "{text}");
        let text = plan(vec![voter(1).down(), leaving(), voter(3).down()]);
        assert!(text.contains("3. n2 knows the most entries"), "{text}");
    }

    #[test]
    fn voters_that_run_and_do_not_find_each_other_lose_no_data() {
        let text = plan(vec![voter(1).unread(), voter(2).unread(), voter(3).down()]);
        assert!(
            text.contains("2 of 3 voters run, and 2 are enough: they do not find each other"),
            "{text}"
        );
        assert!(
            !text.contains("--force-new-cluster") && !text.contains("1. "),
            "{text}"
        );
    }

    #[test]
    fn without_one_the_member_that_knows_the_most_is_what_the_cluster_comes_back_from() {
        let cut_off = |id, applied| voter(id).applied(applied).unread();
        let members = vec![
            cut_off(1, 90),
            cut_off(2, 100),
            voter(3).down(),
            voter(4).down(),
            voter(5).down(),
        ];
        let credentials = Credentials {
            etcdctl: " --cacert=ca.pem".to_owned(),
            quorate: " --etcd-cacert=ca.pem".to_owned(),
        };
        let text = steps(&surveyed(members), &credentials);
        for part in [
            "of 5 voters 2 answer here, and 3 are needed",
            "on the machines of n3 and n4 and n5 whether their etcd runs",
            "3. n2 knows the most entries to be committed. What follows",
            "--endpoints=http://10.0.0.2:2379 --cacert=ca.pem snapshot save",
            "no etcd of n1 and n3 and n4 and n5 starts again",
            "the etcd of n2 on its data directory once with --force-new-cluster",
            "quorate join n1 --peer-url http://10.0.0.1:2380 --client-url http://10.0.0.1:2379 -o env \
             --etcd-endpoints=http://10.0.0.2:2379 --etcd-cacert=ca.pem",
        ] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        let tie = vec![cut_off(1, 90), cut_off(2, 90), voter(3).down(), voter(4).down()];
        let tie = plan(tie);
        assert!(tie.contains("n1 knows as much, and will do as well."), "{tie}");
        let none = plan(vec![voter(1).down(), voter(2).down()]);
        assert!(none.contains("No voter answers with its data"), "{none}");
    }
}
