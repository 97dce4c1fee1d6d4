//! Certificates that look like those of a node: signed elsewhere, for another time, or written otherwise.

use quorate::proto::certificate_refused::Reason;
use quorate::proto::control_client::ControlClient;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use tonic::Code;
use tonic::transport::Identity;

use super::site::{Client, Member, Site, not_proven, removed_uid, report};
use crate::support::quorate::{TestReplica, quorate};

/// What a certificate says, before it is signed.
struct Forged {
    subject: Vec<(DnType, String)>,
    names: Vec<String>,
    usages: Vec<ExtendedKeyUsagePurpose>,
    /// The years in which it begins and ends.
    years: (i32, i32),
}

impl Forged {
    /// As the authority would write it for this node.
    fn like(site: &Site, node: &Member) -> Self {
        let cluster = site.store.etcd.cluster_id().unwrap();
        Self {
            subject: vec![
                (DnType::CommonName, node.uid.clone()),
                (DnType::OrganizationName, cluster.to_string()),
                (DnType::OrganizationalUnitName, "quorate-worker".to_owned()),
            ],
            names: vec![format!("spiffe://{cluster}/node/{}", node.name)],
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
            years: (2020, 2090),
        }
    }

    fn with(mut self, part: &DnType, value: impl Into<String>) -> Self {
        self.subject.retain(|(other, _)| other != part);
        self.subject.push((part.clone(), value.into()));
        self
    }

    /// Signed by this authority (PEM).
    fn signed_by(&self, certificate: &str, key: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (part, value) in &self.subject {
            params.distinguished_name.push(part.clone(), value.clone());
        }
        let uri = |name: &String| SanType::URI(name.clone().try_into().unwrap());
        params.subject_alt_names = self.names.iter().map(uri).collect();
        params.is_ca = IsCa::NoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = self.usages.clone();
        params.not_before = date_time_ymd(self.years.0, 1, 1);
        params.not_after = date_time_ymd(self.years.1, 1, 1);
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key).unwrap()).unwrap();
        let own = KeyPair::generate().unwrap();
        let signed = params.signed_by(&own, &issuer).unwrap();
        Identity::from_pem(signed.pem(), own.serialize_pem())
    }

    fn genuine(&self, site: &Site) -> Identity {
        self.signed_by(&site.authority("node-ca.crt"), &site.authority("node-ca.key"))
    }
}

async fn client(site: &Site, replica: &mut TestReplica, identity: Identity) -> Client {
    ControlClient::new(site.channel(replica, Some(identity)).await)
}

/// Connects with this certificate and reports; the code and the message of the answer, and why the certificate proves no node.
async fn said(site: &Site, replica: &mut TestReplica, identity: Identity) -> (Code, String, Option<Reason>) {
    let mut client = client(site, replica, identity).await;
    match report(&mut client, 1, &[]).await {
        Ok(()) => (Code::Ok, String::new(), None),
        Err(refused) => {
            assert_eq!(
                removed_uid(&refused),
                None,
                "no agent may take this for its removal"
            );
            let reason = not_proven(&refused);
            (refused.code(), refused.message().to_owned(), reason)
        }
    }
}

/// INV-13.
#[tokio::test]
async fn a_certificate_that_the_authority_would_not_have_written_opens_nothing() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut joining = site.client(&mut replica).await;
    let node = site.member(&mut joining, "n1", &token).await;
    let like = || Forged::like(&site, &node);
    let (genuine, ..) = said(&site, &mut replica, like().genuine(&site)).await;
    assert_eq!(
        genuine,
        Code::Ok,
        "what follows differs in one part from a genuine one"
    );
    let (upper, bare) = (node.uid.to_uppercase(), node.uid.replace('-', ""));
    let mut two_names = like();
    two_names.names.push(two_names.names[0].clone());
    let mut server = like();
    server.usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let mut nameless = like();
    nameless.names.clear();
    let (mut expired, mut early) = (like(), like());
    (expired.years, early.years) = ((2019, 2020), (2080, 2090));
    for (forged, code, expected) in [
        (
            like().with(&DnType::CommonName, upper),
            Code::PermissionDenied,
            "not one of a node",
        ),
        (
            like().with(&DnType::CommonName, bare),
            Code::PermissionDenied,
            "not one of a node",
        ),
        (
            like().with(&DnType::CommonName, "n1"),
            Code::PermissionDenied,
            "not one of a node",
        ),
        (
            like().with(&DnType::CommonName, "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11"),
            Code::NotFound,
            "there is no node",
        ),
        (
            like().with(&DnType::OrganizationName, "1"),
            Code::PermissionDenied,
            "not one of a node",
        ),
        (
            like().with(&DnType::OrganizationalUnitName, "quorate-etcd"),
            Code::PermissionDenied,
            "not one of a node",
        ),
        (two_names, Code::PermissionDenied, "not one of a node"),
        (nameless, Code::PermissionDenied, "not one of a node"),
        (server, Code::PermissionDenied, "not one of the node authority"),
        (expired, Code::PermissionDenied, "has expired"),
        (early, Code::PermissionDenied, "not valid yet"),
    ] {
        let answer = said(&site, &mut replica, forged.genuine(&site)).await;
        assert_eq!(answer.0, code, "{expected}: {answer:?}");
        assert!(answer.1.contains(expected), "{expected}: {answer:?}");
        let reason = match expected {
            "not one of a node" => Some(Reason::NotOfNode),
            "not one of the node authority" => Some(Reason::Foreign),
            "has expired" => Some(Reason::Expired),
            "not valid yet" => Some(Reason::NotYetValid),
            _ => None,
        };
        assert_eq!(answer.2, reason, "{answer:?}");
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_opens_nothing() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut joining = site.client(&mut replica).await;
    let node = site.member(&mut joining, "n1", &token).await;
    let forged = Forged::like(&site, &node);
    let other = site.path("other");
    quorate(["ca", "init", "-o", &other]).await.expect_done();
    let file =
        |directory: &str, name: &str| std::fs::read_to_string(format!("{directory}/current/{name}")).unwrap();
    for (directory, authority) in [(&other, "node-ca"), (&site.ca, "etcd-ca")] {
        let certificate = file(directory, &format!("{authority}.crt"));
        let key = file(directory, &format!("{authority}.key"));
        let answer = said(&site, &mut replica, forged.signed_by(&certificate, &key)).await;
        assert_eq!(
            answer.0,
            Code::PermissionDenied,
            "{directory} {authority}: {answer:?}"
        );
        assert!(answer.1.contains("not one of the node authority"), "{answer:?}");
        assert_eq!(answer.2, Some(Reason::Foreign));
    }
}

/// The certificate that a replica shows, and those of etcd's clients, are of no node.
#[tokio::test]
async fn the_certificates_of_servers_and_of_clients_of_etcd_open_nothing() {
    let site = Site::start().await;
    let mut replica = site.replica().await;
    let directory = site.path("client");
    let issue = [
        "ca",
        "issue",
        "etcd-client",
        "--ca-dir",
        &site.ca,
        "-o",
        &directory,
    ];
    quorate(issue).await.expect_done();
    let file = |ending: &str| {
        let files = std::fs::read_dir(&directory).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        let is_it = |file: &std::path::PathBuf| {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            name.ends_with(ending) && !name.contains("ca")
        };
        std::fs::read_to_string(files.find(is_it).unwrap()).unwrap()
    };
    let identity = Identity::from_pem(file(".crt"), file(".key"));
    let answer = said(&site, &mut replica, identity).await;
    assert_eq!(answer.0, Code::PermissionDenied, "{answer:?}");
}
