//! A published key that is none of the replica's: another client wrote it, or the replica lacks a key file.

use prost::Message as _;

use super::*;
use crate::volumes::world::secret;

/// What a client writes that publishes this key.
fn record_of(file: &Path) -> Vec<u8> {
    let keyring = Keyring::read(&[file.to_owned()]).unwrap();
    let recipient = keyring.first().unwrap().recipient();
    recipient.to_record(Default::default()).encode_to_vec()
}

#[tokio::test]
async fn a_foreign_or_malformed_or_missing_key_gives_way_to_that_of_the_leader_which_says_so() {
    let (base, keys) = (Base::start().await, KeyFiles::new());
    let (own, foreign) = (keys.file(&[1]), keys.file(&[9]));
    let mut replica = leading(&base, &own, "r0").await;
    let key = base.store.keys.encryption_key();
    base.put(&key, record_of(&foreign)).await;
    replica
        .wait_for_log(&format!("the published encryption key is {}", id_of(&foreign)))
        .await;
    expect_published(&base, &own).await;
    base.put(&key, b"\xff".to_vec()).await;
    replica
        .wait_for_log("the record of the published encryption key holds no key")
        .await;
    expect_published(&base, &own).await;
    base.etcd.etcdctl(&["del", &String::from_utf8(key).unwrap()]);
    expect_published(&base, &own).await;
    // What is applied afterwards opens with the leader's key.
    base.apply(&secret("backend", "token", "x")).await;
    let shown = status(&base, &[&flag(&own)]).await;
    assert_eq!(of_secret(&shown, "backend")["opens"], true, "{shown}");
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_leader_without_the_published_key_says_so_leaves_it_and_doctor_finds_it() {
    let (base, keys) = (Base::start().await, KeyFiles::new());
    let (published, other) = (keys.file(&[1]), keys.file(&[2]));
    let key = base.store.keys.encryption_key();
    let revision = base.put(&key, record_of(&published)).await;
    base.apply(&secret("backend", "token", "x")).await;
    let mut replica = Launch::on(&base.etcd).start("r0");
    replica.wait_leading().await;
    replica
        .wait_for_log("Secrets that are applied now cannot be read")
        .await;
    let standing = base.read(&key).await.unwrap();
    assert_eq!(
        standing.mod_revision, revision,
        "it has nothing to write in its place"
    );
    let shown = base.run(&["secrets", "status", &flag(&other)]).await;
    assert!(
        shown.stderr.contains("do not hold the encryption key in use"),
        "{shown:?}"
    );
    let doctor = base
        .run(&["doctor", "--no-kubernetes", "-o", "json", &flag(&other)])
        .await;
    assert_eq!(doctor.code, 7, "{doctor:?}");
    let found: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let is_found = |reason: &str| findings.iter().any(|one| one["reason"] == reason);
    assert!(
        is_found("EncryptionKeyForeign") && is_found("SecretUnreadable"),
        "{found}"
    );
    replica.stop().await.unwrap();
}
