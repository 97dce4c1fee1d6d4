use super::*;

fn manager(id: u64, healthy: bool) -> Managed {
    Managed {
        standing: Standing {
            id: MemberId(id),
            learner: false,
            healthy,
        },
        peer_urls: vec![format!("http://10.0.0.{id}:2380")],
        record: Revision(10),
        removal: false,
        node: format!("n{id}"),
        known: Some(Known {
            desired: Role::Manager,
            observed: Role::Manager,
            node: Revision(20),
        }),
    }
}

fn managers(healthy: &[bool]) -> Managers {
    let managed = (1..).zip(healthy).map(|(id, healthy)| manager(id, *healthy));
    Managers {
        managed: managed.collect(),
        unmanaged: Vec::new(),
    }
}

fn demotion(managers: &Managers, node: &str) -> Option<Reason> {
    let refusal = managers.check_demotion(node, Role::Manager).err();
    refusal.map(|refusal| refusal.rule)
}

#[test]
fn a_manager_may_go_while_the_rest_has_a_healthy_quorum() {
    let three = managers(&[true, true, true]);
    assert_eq!(demotion(&three, "n2"), None);
    let one_down = managers(&[true, true, false]);
    assert_eq!(demotion(&one_down, "n3"), None, "the one that is down may go");
    assert_eq!(demotion(&one_down, "n2"), Some(Reason::QuorumRisk));
    assert_eq!(demotion(&managers(&[true, true]), "n1"), None);
    assert_eq!(
        demotion(&managers(&[true, false]), "n1"),
        Some(Reason::QuorumRisk)
    );
}

#[test]
fn the_last_manager_stays_also_where_quorum_would_hold_without_it() {
    assert_eq!(demotion(&managers(&[true]), "n1"), Some(Reason::LastManager));
    let mut foreign = managers(&[true, true, true]);
    for member in foreign.managed.drain(1..) {
        foreign.unmanaged.push((member.standing, member.peer_urls));
    }
    assert_eq!(demotion(&foreign, "n1"), Some(Reason::LastManager));
    let mut leaving = managers(&[true, true, true]);
    leaving.managed[1].removal = true;
    leaving.managed[2].known = None;
    assert_eq!(demotion(&leaving, "n1"), Some(Reason::LastManager));
    let mut learner = managers(&[true, true]);
    learner.managed[1].standing.learner = true;
    assert_eq!(demotion(&learner, "n1"), Some(Reason::LastManager));
    assert_eq!(demotion(&learner, "n2"), None, "a learner may always go");
}

#[test]
fn a_learner_may_go_also_beside_no_other_manager_and_whoever_is_not_a_desired_manager_is_none() {
    let mut members = managers(&[true, true]);
    members.managed[1].standing.learner = true;
    let foreign = members.managed.remove(0);
    members.unmanaged.push((foreign.standing, foreign.peer_urls));
    assert_eq!(demotion(&members, "n2"), None);
    let mut members = managers(&[true, true]);
    let known = members.managed[1].known.as_mut().unwrap();
    known.desired = Role::Unspecified;
    assert_eq!(demotion(&members, "n1"), Some(Reason::LastManager));
}

#[test]
fn what_is_leaving_already_counts_as_gone() {
    let mut members = managers(&[true, true, true, false]);
    members.managed[1].removal = true;
    // Left would be n1 and n4, which is down.
    assert_eq!(demotion(&members, "n3"), Some(Reason::QuorumRisk));
    members.managed[3].removal = true;
    assert_eq!(demotion(&members, "n3"), None);
}

#[test]
fn a_manager_outside_the_list_is_refused_and_a_promotion_not_begun_is_taken_back() {
    let members = managers(&[true]);
    assert_eq!(demotion(&members, "n9"), Some(Reason::NotAMember));
    assert_eq!(members.check_demotion("n9", Role::Worker), Ok(()));
}

#[test]
fn a_node_is_not_removed_under_its_member() {
    let members = managers(&[true, true]);
    let rule = |node, desired| {
        members
            .check_removal(node, desired)
            .err()
            .map(|refusal| refusal.rule)
    };
    assert_eq!(rule("n1", Some(Role::Manager)), Some(Reason::MemberOfEtcd));
    assert_eq!(rule("n1", None), Some(Reason::MemberOfEtcd));
    assert_eq!(rule("n1", Some(Role::Worker)), None, "it will be evicted");
    assert_eq!(rule("n9", Some(Role::Manager)), None);
    let last = managers(&[true]).check_removal("n1", Some(Role::Worker));
    assert_eq!(last.map_err(|refusal| refusal.rule), Err(Reason::LastVoter));
    let mut beside_a_learner = managers(&[true, true]);
    beside_a_learner.managed[1].standing.learner = true;
    let last = beside_a_learner.check_removal("n1", Some(Role::Worker));
    assert_eq!(last.map_err(|refusal| refusal.rule), Err(Reason::LastVoter));
    assert_eq!(beside_a_learner.check_removal("n2", Some(Role::Worker)), Ok(()));
}

#[test]
fn each_join_that_cannot_be_is_refused_by_its_rule() {
    let mut members = managers(&[true, true]);
    let foreign = members.managed.pop().unwrap();
    members.unmanaged.push((foreign.standing, foreign.peer_urls));
    let known = |observed| {
        Some(Known {
            desired: Role::Manager,
            observed,
            node: Revision(1),
        })
    };
    let free = "http://10.0.0.9:2380";
    for (name, node, removed, url, expected) in [
        ("n9", known(Role::Manager), false, free, None),
        ("n9", known(Role::Manager), true, free, Some(Reason::NodeRemoved)),
        ("n9", None, false, free, Some(Reason::NodeNotFound)),
        ("n9", known(Role::Worker), false, free, Some(Reason::NotAManager)),
        (
            "n9",
            known(Role::Manager),
            false,
            "10.0.0.9",
            Some(Reason::BadPeerUrl),
        ),
        (
            "n9",
            known(Role::Manager),
            false,
            "http://10.0.0.1:2380",
            Some(Reason::PeerUrlTaken),
        ),
        (
            "n9",
            known(Role::Manager),
            false,
            "http://10.0.0.2:2380",
            Some(Reason::PeerUrlTaken),
        ),
        ("n1", known(Role::Manager), false, "http://10.0.0.1:2380", None),
        ("n1", known(Role::Manager), false, free, None),
    ] {
        let refusal = members.check_join(name, node, removed, &[url.to_owned()]).err();
        assert_eq!(refusal.map(|refusal| refusal.rule), expected, "{name} {url}");
    }
    let none = members.check_join("n9", known(Role::Manager), false, &[]);
    assert_eq!(none.map_err(|refusal| refusal.rule), Err(Reason::BadPeerUrl));
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
