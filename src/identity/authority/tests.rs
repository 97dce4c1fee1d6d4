use super::*;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

#[test]
fn a_new_authority_can_sign_and_is_read_again_as_the_same_one() {
    let (made, key) = Authority::create(AuthorityKind::Node, now()).unwrap();
    let read = Authority::read(made.certificates_pem().as_bytes(), key.as_bytes(), now()).unwrap();
    assert_eq!(read.digest(), made.digest());
    assert_eq!(read.digest().to_string().len(), 52, "{}", read.digest());
    assert_eq!(read.subject(), "CN=quorate node authority");
    assert_eq!(read.not_before(), now() - BACKDATED);
    assert_eq!(read.not_after(), now() + AUTHORITY_LIFE);
    assert_eq!(read.intermediates_pem(), "");
}

#[test]
fn a_new_authority_is_signed_by_the_former_one_and_has_a_name_and_a_key_of_its_own() {
    let (former, _) = Authority::create(AuthorityKind::Node, now()).unwrap();
    let (made, key, cross) = Authority::create_after(AuthorityKind::Node, &former, now()).unwrap();
    assert_ne!(made.digest(), former.digest());
    assert_ne!(made.subject(), former.subject());
    assert!(
        made.subject().starts_with("CN=quorate node authority "),
        "{}",
        made.subject()
    );
    // The certificate that the former one has signed is one of the same key, and is above nothing but what the new one signs.
    let chain = format!("{cross}{}", former.certificates_pem());
    let crossed = Authority::read(chain.as_bytes(), key.as_bytes(), now()).unwrap();
    assert_eq!(crossed.subject(), made.subject());
    let cross_der = pem::parse(&cross).unwrap();
    assert!(former.certificate().has_signed(cross_der.contents()));
    assert!(!made.certificate().has_signed(cross_der.contents()));
    assert!(made.certificate().has_signed(made.certificate_der()));
    assert!(!made.leads_to(former.certificate()), "without that certificate");
    let (_, _, of_another) = Authority::create_after(AuthorityKind::Node, &former, now()).unwrap();
    let (foreign, _) = Authority::create(AuthorityKind::Node, now()).unwrap();
    let made = made.crossed(&cross);
    assert_eq!(made.intermediates_pem(), cross);
    assert!(made.leads_to(former.certificate()) && !made.leads_to(foreign.certificate()));
    let (other, _, _) = Authority::create_after(AuthorityKind::Node, &former, now()).unwrap();
    assert!(
        !other.crossed(&of_another).leads_to(former.certificate()),
        "it is that of another key"
    );
}

#[test]
fn every_reason_why_an_authority_cannot_sign_has_its_name() {
    let (made, key) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
    let (_, other_key) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
    let certificate = made.certificates_pem();
    let unusable = |certificate: &str, key: &str, now| {
        Authority::read(certificate.as_bytes(), key.as_bytes(), now).unwrap_err()
    };
    assert_eq!(unusable("", &key, now()), Unusable::NoCertificate);
    assert_eq!(unusable(&key, &key, now()), Unusable::KeyInside);
    assert_eq!(unusable(certificate, "", now()), Unusable::Key);
    assert_eq!(unusable(certificate, certificate, now()), Unusable::Key);
    assert_eq!(unusable(certificate, &other_key, now()), Unusable::OtherKey);
    let early = now() - BACKDATED - SignedDuration::from_secs(1);
    assert_eq!(
        unusable(certificate, &key, early),
        Unusable::NotYetValid(now() - BACKDATED)
    );
    let late = made.not_after() - LEAST_LEFT + SignedDuration::from_secs(1);
    assert_eq!(
        unusable(certificate, &key, late),
        Unusable::EndsSoon(made.not_after())
    );
    let ending = |at| Authority::read_ending(certificate.as_bytes(), key.as_bytes(), at).map(drop);
    assert_eq!(ending(late), Ok(()), "what it has signed counts still");
    let over = made.not_after() + SignedDuration::from_secs(1);
    assert_eq!(ending(over), Err(Unusable::EndsSoon(made.not_after())));
    let torn = certificate.replacen("MII", "AII", 1);
    assert!(
        matches!(unusable(&torn, &key, now()), Unusable::Certificate(_)),
        "{torn}"
    );
}

#[test]
fn a_file_with_a_key_in_it_is_never_handed_out_and_no_line_of_it_shows() {
    let (made, key) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
    let certificate = made.certificates_pem();
    let sealed = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
    for both in [
        format!("{certificate}{key}"),
        format!("{key}{certificate}"),
        format!("{certificate}{sealed}"),
    ] {
        let refused = Authority::read(both.as_bytes(), key.as_bytes(), now()).unwrap_err();
        assert_eq!(refused, Unusable::KeyInside);
    }
    let other = format!("{parameters}{certificate}");
    let read = Authority::read(other.as_bytes(), key.as_bytes(), now()).unwrap();
    assert_eq!(read.certificates_pem(), certificate);
    // A blank line ends the headers of a block, and an error about those quotes them.
    let secret = key.lines().nth(1).unwrap();
    let torn = format!("{certificate}{}", key.replace(secret, &format!("{secret}\n")));
    let refused = Authority::read(torn.as_bytes(), key.as_bytes(), now()).unwrap_err();
    assert!(!refused.to_string().contains(secret), "{refused:?}");
}

#[test]
fn an_authority_without_an_end_can_sign() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let key = key.serialize_pem();
    let read = Authority::read(certificate.as_bytes(), key.as_bytes(), now()).unwrap();
    assert_eq!(read.not_after(), Timestamp::MAX);
    let life = super::super::etcd::LIFE;
    let leaf = super::super::etcd::client(&read, "quorate", life, now()).unwrap();
    assert_eq!(leaf.not_after, now() + life);
}

#[test]
fn a_leaf_is_no_authority() {
    let (made, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
    let leaf = super::super::etcd::client(&made, "quorate", super::super::etcd::LIFE, now()).unwrap();
    assert_eq!(
        Authority::read(leaf.chain_pem.as_bytes(), leaf.key_pem.as_bytes(), now()).unwrap_err(),
        Unusable::NotAnAuthority
    );
}
