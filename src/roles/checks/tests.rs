use super::*;
use crate::etcd::Revision;
use crate::proto::removal::Cause;
use crate::roles::membership::tests::fixtures::{manager, surveyed, voter};
use crate::roles::owner::Owner;

/// Managers with these healths.
fn managers(healthy: &[bool]) -> Membership {
    let members = (1..).zip(healthy).map(|(id, healthy)| match healthy {
        true => voter(id),
        false => voter(id).down(),
    });
    surveyed(members.collect())
}

/// Changes one of the members.
fn change(membership: &mut Membership, index: usize, change: impl FnOnce(Member) -> Member) {
    membership.members[index] = change(membership.members[index].clone());
}

fn demotion(members: &Membership, node: &str) -> Option<Reason> {
    let uid = node.replace('n', "u");
    let refusal = members.check_demotion(node, &uid, Role::Manager).err();
    refusal.map(|refusal| refusal.rule)
}

#[test]
fn a_manager_may_go_while_the_rest_has_a_healthy_quorum() {
    let three = managers(&[true, true, true]);
    assert_eq!(demotion(&three, "n2"), None);
    let one_down = managers(&[true, true, false]);
    assert_eq!(demotion(&one_down, "n3"), None, "a member that is down may go");
    assert_eq!(demotion(&one_down, "n2"), Some(Reason::QuorumRisk));
    assert_eq!(demotion(&managers(&[true, true]), "n1"), None);
    assert_eq!(
        demotion(&managers(&[true, false]), "n1"),
        Some(Reason::QuorumRisk)
    );
}

#[test]
fn a_member_that_does_not_answer_may_go_although_too_few_would_be_left_once_all_that_leave_are_gone() {
    let mut five = managers(&[true, true, true, false, false]);
    for index in [0, 1] {
        change(&mut five, index, |member| {
            member.demoted().leaving(Cause::Demoted)
        });
    }
    assert_eq!(demotion(&five, "n4"), None);
    change(&mut five, 4, |_| voter(5));
    assert_eq!(demotion(&five, "n3"), Some(Reason::QuorumRisk));
}

#[test]
fn only_a_member_that_has_lost_its_data_is_replaced_and_not_the_last_voter() {
    let rule = |membership: &Membership, id, forced| {
        let member = membership.member(MemberId(id)).unwrap();
        let refusal = membership.check_replacement(member, forced).err();
        refusal.map(|refusal| refusal.rule)
    };
    let three = managers(&[true, true, false]);
    assert_eq!(rule(&three, 3, false), None);
    assert_eq!(rule(&three, 2, false), Some(Reason::MemberHealthy));
    assert_eq!(rule(&three, 2, true), Some(Reason::QuorumRisk));
    assert_eq!(rule(&managers(&[true, true]), 2, true), None);
    assert_eq!(rule(&managers(&[true]), 1, true), Some(Reason::LastVoter));
}

/// So the member that replaces it need not be added first.
#[test]
fn where_etcd_has_a_quorum_any_voter_that_does_not_answer_can_be_replaced() {
    for down in 0_u32..128 {
        for voters in 2..8 {
            let healthy: Vec<bool> = (0..voters).map(|index| down & (1 << index) == 0).collect();
            let cluster = managers(&healthy);
            if !Quorum::of(&cluster.votes()).holds() {
                continue;
            }
            for member in cluster.voters().filter(|member| !member.is_healthy()) {
                assert_eq!(cluster.check_replacement(member, false), Ok(()), "{healthy:?}");
            }
        }
    }
}

#[test]
fn the_last_manager_stays_although_quorum_would_hold_without_it() {
    assert_eq!(demotion(&managers(&[true]), "n1"), Some(Reason::LastManager));
    let mut foreign = managers(&[true, true, true]);
    change(&mut foreign, 1, Member::unmanaged);
    change(&mut foreign, 2, Member::unmanaged);
    assert_eq!(demotion(&foreign, "n1"), Some(Reason::LastManager));
    let mut leaving = managers(&[true, true, true]);
    change(&mut leaving, 1, |member| member.leaving(Cause::Demoted));
    change(&mut leaving, 2, Member::nodeless);
    assert_eq!(demotion(&leaving, "n1"), Some(Reason::LastManager));
    let mut learner = managers(&[true, true]);
    change(&mut learner, 1, Member::learner);
    assert_eq!(demotion(&learner, "n1"), Some(Reason::LastManager));
    assert_eq!(demotion(&learner, "n2"), None, "a learner may always go");
}

#[test]
fn a_learner_may_go_as_the_last_manager_and_only_desired_managers_count() {
    let mut members = managers(&[true, true]);
    change(&mut members, 1, Member::learner);
    change(&mut members, 0, Member::unmanaged);
    assert_eq!(demotion(&members, "n2"), None);
    for unknown in [Owner::Unknown, Owner::Removed, Owner::Missing] {
        let mut members = managers(&[true, true]);
        change(&mut members, 1, |member| member.owned_by(unknown));
        assert_eq!(demotion(&members, "n1"), Some(Reason::LastManager));
    }
    let mut members = managers(&[true, true]);
    change(&mut members, 1, |member| member.desiring(Role::Unspecified));
    assert_eq!(demotion(&members, "n1"), Some(Reason::LastManager));
}

#[test]
fn members_that_are_leaving_count_as_gone() {
    let mut members = managers(&[true, true, true, false]);
    change(&mut members, 1, |member| member.leaving(Cause::Demoted));
    // Without n3, n1 and n4 are left, and n4 is down.
    assert_eq!(demotion(&members, "n3"), Some(Reason::QuorumRisk));
    change(&mut members, 3, |member| member.leaving(Cause::Demoted));
    assert_eq!(demotion(&members, "n3"), None);
}

#[test]
fn a_manager_without_a_member_is_not_demoted_but_a_promotion_not_carried_out_is_withdrawn() {
    let members = managers(&[true]);
    assert_eq!(demotion(&members, "n9"), Some(Reason::NotAMember));
    assert_eq!(members.check_demotion("n9", "u9", Role::Worker), Ok(()));
}

#[test]
fn the_member_of_an_earlier_node_of_that_name_is_not_that_of_the_present_one() {
    let mut members = managers(&[true, true]);
    change(&mut members, 1, Member::node_missing);
    let refusal = members.check_demotion("n2", "of-another", Role::Manager).err();
    assert_eq!(refusal.map(|refusal| refusal.rule), Some(Reason::NotAMember));
    let url = "http://10.0.0.2:2380".to_owned();
    let refusal = members
        .check_join("n2", "of-another", Some(manager()), false, &[url])
        .err();
    assert_eq!(refusal.map(|refusal| refusal.rule), Some(Reason::PeerUrlTaken));
    // It is no move, so the scheme of the others is asked for.
    let url = "https://10.0.0.9:2380".to_owned();
    let refusal = members
        .check_join("n2", "of-another", Some(manager()), false, &[url])
        .err();
    assert_eq!(refusal.map(|refusal| refusal.rule), Some(Reason::BadPeerUrl));
}

#[test]
fn a_desired_manager_with_a_member_is_not_removed_nor_the_node_of_the_last_voter() {
    let members = managers(&[true, true]);
    let rule = |node, desired| {
        members
            .check_removal(node, desired)
            .err()
            .map(|refusal| refusal.rule)
    };
    assert_eq!(rule("n1", Some(Role::Manager)), Some(Reason::MemberOfEtcd));
    assert_eq!(rule("n1", None), Some(Reason::MemberOfEtcd));
    assert_eq!(rule("n1", Some(Role::Worker)), None, "its member is evicted");
    assert_eq!(rule("n9", Some(Role::Manager)), None);
    let last = managers(&[true]).check_removal("n1", Some(Role::Worker));
    assert_eq!(last.map_err(|refusal| refusal.rule), Err(Reason::LastVoter));
    let mut beside_a_learner = managers(&[true, true]);
    change(&mut beside_a_learner, 1, Member::learner);
    let last = beside_a_learner.check_removal("n1", Some(Role::Worker));
    assert_eq!(last.map_err(|refusal| refusal.rule), Err(Reason::LastVoter));
    assert_eq!(beside_a_learner.check_removal("n2", Some(Role::Worker)), Ok(()));
}

#[test]
fn each_impossible_join_is_refused_by_its_rule() {
    let mut members = managers(&[true, true]);
    change(&mut members, 1, Member::unmanaged);
    let roles = |observed| {
        Some(NodeRoles {
            desired: Role::Manager,
            observed,
            revision: Revision(1),
        })
    };
    let free = "http://10.0.0.9:2380";
    for (name, roles, removed, url, expected) in [
        ("n9", roles(Role::Manager), false, free, None),
        ("n9", roles(Role::Manager), true, free, Some(Reason::NodeRemoved)),
        ("n9", None, false, free, Some(Reason::NodeNotFound)),
        ("n9", roles(Role::Worker), false, free, Some(Reason::NotAManager)),
        (
            "n9",
            roles(Role::Manager),
            false,
            "10.0.0.9",
            Some(Reason::BadPeerUrl),
        ),
        (
            "n9",
            roles(Role::Manager),
            false,
            "http://10.0.0.1:2380",
            Some(Reason::PeerUrlTaken),
        ),
        (
            "n9",
            roles(Role::Manager),
            false,
            "http://10.0.0.2:2380",
            Some(Reason::PeerUrlTaken),
        ),
        ("n1", roles(Role::Manager), false, "http://10.0.0.1:2380", None),
        ("n1", roles(Role::Manager), false, free, None),
    ] {
        let uid = name.replace('n', "u");
        let checked = members.check_join(name, &uid, roles, removed, &[url.to_owned()]);
        let refusal = checked.err();
        assert_eq!(refusal.map(|refusal| refusal.rule), expected, "{name} {url}");
    }
    let none = members.check_join("n9", "u9", roles(Role::Manager), false, &[]);
    assert_eq!(none.map_err(|refusal| refusal.rule), Err(Reason::BadPeerUrl));
}

#[test]
fn a_peer_url_that_the_other_members_cannot_use_is_refused() {
    let roles = Some(manager());
    let at = |members: &[&str]| {
        let voters = (1..).zip(members).map(|(id, url)| voter(id).at(url));
        surveyed(voters.collect())
    };
    let rule = |members: &[&str], node: &str, url: &str| {
        let uid = node.replace('n', "u");
        let checked = at(members).check_join(node, &uid, roles, false, &[url.to_owned()]);
        checked.err().map(|refusal| refusal.rule)
    };
    let bad = Some(Reason::BadPeerUrl);
    let (plain, local) = (["http://10.0.0.1:2380"], ["http://127.0.0.1:2380"]);
    for unspecified in ["http://0.0.0.0:2380", "http://[::]:2380"] {
        assert_eq!(rule(&plain, "n9", unspecified), bad, "{unspecified}");
    }
    for loopback in [
        "http://127.0.0.1:2390",
        "http://[::1]:2380",
        "http://localhost:2380",
    ] {
        assert_eq!(rule(&plain, "n9", loopback), bad, "{loopback}");
        assert_eq!(
            rule(&local, "n9", loopback),
            None,
            "{loopback}: all are on one machine"
        );
    }
    assert_eq!(rule(&plain, "n9", "https://10.0.0.9:2380"), bad);
    // A member that is alone may change its scheme, and so do several, one after the other.
    assert_eq!(rule(&plain, "n1", "https://10.0.0.1:2380"), None);
    let two = ["http://10.0.0.1:2380", "http://10.0.0.2:2380"];
    assert_eq!(rule(&two, "n1", "https://10.0.0.1:2380"), None);
}

#[test]
fn a_peer_url_is_a_scheme_a_host_and_a_port() {
    for good in [
        "http://10.0.0.1:2380",
        "https://etcd-0.etcd.svc:2380",
        "http://[::1]:2380",
    ] {
        assert_eq!(check_peer_url(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        "10.0.0.1:2380",
        "http://10.0.0.1",
        "http://:2380",
        "http://h:0",
        "http://h:2380/p",
        "ftp://h:1",
        "http://u@h:1",
    ] {
        assert!(check_peer_url(bad).is_err(), "{bad}");
    }
}
