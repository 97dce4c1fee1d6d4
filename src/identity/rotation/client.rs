//! Whether the files by which a replica reaches etcd are ready for the end of a rotation. Pure.

use crate::identity::authority::{Authority, AuthorityDigest};

/// What hinders a client of etcd, whose certificates these are (PEM), from losing the former authority; `None` if nothing does. One that
/// neither authority has certified, or that trusts neither, is of another authority and none of this one's business.
pub fn hindrance(
    chain: Option<&[u8]>,
    trusted: Option<&[u8]>,
    former: &Authority,
    new: &Authority,
) -> Option<String> {
    let chain = chain.map(certificates).unwrap_or_default();
    // A signature that cannot be verified here may be one of the former authority: not knowing holds the rotation up.
    let is_old =
        |leaf: &Vec<u8>| former.certificate().may_have_signed(leaf) && !new.certificate().has_signed(leaf);
    if chain.first().is_some_and(is_old) {
        return Some(
            "its client certificate of etcd is one of the former authority: quorate ca issue etcd-client makes another one"
                .to_owned(),
        );
    }
    let trusted = trusted.map(certificates).unwrap_or_default();
    let trusts = |authority: &Authority| {
        let digest = authority.digest();
        trusted.iter().any(|of| AuthorityDigest::of(of) == digest)
    };
    (trusts(former) && !trusts(new)).then(|| {
        "the file by which it knows etcd's servers lacks the new authority: quorate ca issue etcd-client writes both".to_owned()
    })
}

/// The certificates of a text in PEM (DER); none where it cannot be read.
fn certificates(text: &[u8]) -> Vec<Vec<u8>> {
    let blocks = pem::parse_many(text).unwrap_or_default();
    let certificates = blocks.into_iter().filter(|block| block.tag() == "CERTIFICATE");
    certificates.map(pem::Pem::into_contents).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::identity::authority::AuthorityKind;
    use crate::identity::etcd;

    #[test]
    fn a_client_needs_a_certificate_of_the_new_authority_and_trust_in_it_before_the_former_one_goes() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let kind = AuthorityKind::Etcd;
        let (former, _) = Authority::create(kind, now).unwrap();
        let (new, _, cross) = Authority::create_after(kind, &former, now).unwrap();
        let new = new.crossed(&cross);
        let (foreign, _) = Authority::create(kind, now).unwrap();
        let client = |of: &Authority| etcd::client(of, "quorate", etcd::LIFE, now).unwrap().chain_pem;
        let both = format!("{}{}", new.certificates_pem(), former.certificates_pem());
        let says = |chain: &str, trusted: &str| {
            hindrance(Some(chain.as_bytes()), Some(trusted.as_bytes()), &former, &new)
        };
        let old = says(&client(&former), &both).unwrap();
        assert!(old.contains("client certificate"), "{old}");
        let narrow = says(&client(&new), former.certificates_pem()).unwrap();
        assert!(narrow.contains("lacks the new authority"), "{narrow}");
        assert_eq!(says(&client(&new), &both), None);
        assert_eq!(says(&client(&new), new.certificates_pem()), None);
        assert_eq!(says(&client(&foreign), foreign.certificates_pem()), None);
        assert_eq!(hindrance(None, None, &former, &new), None, "in clear text");
    }
}
