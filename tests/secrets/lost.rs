//! A key that is lost: what waits for it, and what does not.

use super::*;
use crate::support::wait::same;
use crate::volumes::world::{World, secret, volume};

#[tokio::test]
async fn a_lost_key_blocks_the_volumes_that_name_its_secret_and_no_other() {
    let (world, keys) = (World::start().await, KeyFiles::new());
    let (lost, kept) = (keys.file(&[1]), keys.file(&[2]));
    let mut replica = leading(&world, &lost, "r0").await;
    world.apply(&secret("first", "token", "x")).await;
    replica.stop().await.unwrap();

    let mut replica = leading(&world, &kept, "r1").await;
    let uses = |name: &str, of: &str| volume(name, &format!("secrets: [{{key: token, secret: {of}}}],"));
    let volumes = uses("data", "first") + &uses("logs", "second") + &volume("plain", "");
    world.apply(&(secret("second", "token", "y") + &volumes)).await;
    let blocked = world.expect_blocked("data", None, "SecretKeyLost").await;
    let id = id_of(&lost);
    assert!(
        blocked.message.starts_with("secret first: ") && blocked.message.contains(&id),
        "{blocked:?}"
    );
    world.expect_created("logs").await;
    world.expect_created("plain").await;
    let unreadable = "quorate_secrets{state=\"unreadable\"}";
    eventually(SOON, "it is counted", async || {
        same(replica.metric(unreadable).await, 1.0)
    })
    .await;
    replica
        .wait_for_log(&format!("secret first: its values are encrypted with key {id}"))
        .await;
    let doctor = world
        .run(&["doctor", "--no-kubernetes", "-o", "json", &flag(&kept)])
        .await;
    assert_eq!(doctor.code, 7, "{doctor:?}");
    let found: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let finding = findings.iter().find(|one| one["reason"] == "SecretUnreadable");
    let finding = finding.unwrap_or_else(|| panic!("{found}"));
    assert_eq!(finding["subjects"][0], "secret/first");

    // Its values come from elsewhere, and need no key to be written.
    world.apply(&secret("first", "token", "x")).await;
    world.expect_created("data").await;
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_replica_does_not_start_with_a_key_file_that_holds_no_key() {
    let (base, keys) = (Base::start().await, KeyFiles::new());
    let empty = keys.file(&[]);
    let refused = base
        .run(&["run", "--no-kubernetes", "--listen=127.0.0.1:0", &flag(&empty)])
        .await
        .expect_code(64);
    assert!(refused.contains("holds no key"), "{refused}");
}
