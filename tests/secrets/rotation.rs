//! `quorate secrets rotate`: from plain values to encrypted ones, from key to key, and after each interruption.

use quorate::proto::Secret;
use quorate::secrets::{Keyring, open};
use quorate::store::object::decode;

use super::*;
use crate::support::base::parsed;
use crate::support::hold::Hold;
use crate::support::quorate::program;
use crate::volumes::world::{World, secret, volume};

/// More than are written at a time.
const SECRETS: usize = 24;

/// Where a rotation is interrupted: before it writes, while it writes, and after that.
const POINTS: [&str; 4] = [
    "rotate.listed",
    "rotate.encrypted",
    "rotate.written",
    "rotate.ended",
];

fn name(at: usize) -> String {
    format!("s{at:02}")
}

fn value(at: usize) -> String {
    format!("value-of-{at:02}")
}

async fn apply_all(base: &Base) {
    let documents: String = (0..SECRETS)
        .map(|at| secret(&name(at), "token", &value(at)))
        .collect();
    base.apply(&documents).await;
}

/// Aborts a rotation at a point.
async fn interrupt(base: &Base, file: &std::path::Path, point: &str) {
    let output = program()
        .args(["secrets", "rotate"])
        .arg(flag(file))
        .arg(format!("--crash-at={point}"))
        .arg(format!("--etcd-endpoints={}", base.etcd.endpoints_flag()))
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), None, "{point}: it ends by a signal: {said}");
    assert!(said.contains(point), "{said}");
}

/// Every Secret opens with these keys, or is plain, and has its value.
async fn expect_whole(base: &Base, file: &std::path::Path) {
    let keyring = Keyring::read(&[file.to_owned()]).unwrap();
    for at in 0..SECRETS {
        let key = base.store.keys.secret(&parsed(&name(at)));
        let stored = base.read(&key).await.unwrap();
        let read: Secret = decode(&name(at), &stored.value).unwrap();
        let token = match &read.sealed {
            None => read.data["token"].clone(),
            Some(sealed) => {
                assert!(
                    read.data.is_empty(),
                    "{} has plain values beside the others",
                    name(at)
                );
                let opened = open(&keyring, &key, sealed);
                opened
                    .unwrap_or_else(|closed| panic!("{}: {closed}", name(at)))
                    .data["token"]
                    .clone()
            }
        };
        assert_eq!(token, value(at).as_bytes());
    }
}

#[tokio::test]
async fn a_rotation_that_is_interrupted_at_any_step_goes_on_where_it_ended() {
    let (base, files) = (Base::start().await, KeyFiles::new());
    apply_all(&base).await;
    let mut keys = Vec::new();
    for (at, point) in POINTS.iter().enumerate() {
        // The new key first, and those before it. The first rotation begins with plain values.
        keys.insert(0, u8::try_from(at + 1).unwrap());
        let file = files.file(&keys);
        let mut replica = leading(&base, &file, &format!("r{at}")).await;
        interrupt(&base, &file, point).await;
        expect_whole(&base, &file).await;
        let id = id_of(&file);
        let count = |status: &Value| {
            let secrets = status["secrets"].as_array().unwrap();
            secrets
                .iter()
                .filter(|secret| secret["key"] == id.as_str())
                .count()
        };
        let halfway = count(&status(&base, &[]).await);
        match *point {
            "rotate.listed" | "rotate.encrypted" => assert_eq!(halfway, 0, "{point}"),
            "rotate.written" => assert!(halfway > 0, "{point}"),
            _ => assert_eq!(halfway, SECRETS, "{point}"),
        }
        let rotated = base
            .done(&["secrets", "rotate", "-o", "json", &flag(&file)])
            .await;
        let rotated: Value = serde_json::from_str(&rotated).unwrap();
        let of = |word: &str| rotated[word].as_array().unwrap().len();
        assert_eq!(
            of("unchanged"),
            halfway,
            "{point}: what was done is not done again"
        );
        assert_eq!(of("encrypted") + of("rotated"), SECRETS - halfway, "{point}");
        let ended = status(&base, &[&flag(&file)]).await;
        assert_eq!(count(&ended), SECRETS, "{point}");
        expect_whole(&base, &file).await;
        // The key of before is needed no more.
        expect_whole(&base, &files.file(&keys[..1])).await;
        replica.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_secret_that_is_written_during_a_rotation_keeps_what_was_written() {
    let (base, files) = (Base::start().await, KeyFiles::new());
    base.apply(&secret("s", "token", "before")).await;
    let file = files.file(&[1]);
    let mut replica = leading(&base, &file, "r0").await;
    let hold = Hold::at("rotate.encrypted");
    let (keys, held) = (flag(&file), hold.flag());
    let args = ["secrets", "rotate", keys.as_str(), held.as_str()];
    let writing = async {
        hold.reached().await;
        base.apply(&secret("s", "token", "meanwhile")).await;
        hold.release();
    };
    let (rotated, ()) = tokio::join!(base.run(&args), writing);
    rotated.expect_done();
    let key = base.store.keys.secret(&parsed("s"));
    let stored = base.read(&key).await.unwrap();
    let read: Secret = decode("s", &stored.value).unwrap();
    let keyring = Keyring::read(&[file]).unwrap();
    let opened = open(&keyring, &key, read.sealed.as_ref().unwrap());
    let opened = opened.unwrap_or_else(|closed| panic!("{closed}"));
    assert_eq!(opened.data["token"], b"meanwhile");
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn plain_secrets_of_before_still_work_are_shown_as_unencrypted_and_become_encrypted() {
    let (world, files) = (World::start().await, KeyFiles::new());
    world.plugin.order(expects("x")).await;
    let uses = |name: &str| volume(name, "secrets: [{key: token, secret: backend}],");
    world
        .apply(&(secret("backend", "token", "x") + &uses("before")))
        .await;
    let file = files.file(&[1]);
    let mut replica = leading(&world, &file, "r0").await;
    world.expect_created("before").await;
    let shown = world.run(&["secrets", "status"]).await;
    assert!(shown.stdout.contains("unencrypted"), "{shown:?}");
    assert!(shown.stderr.contains("quorate secrets rotate"), "{shown:?}");
    let finished = world.run(&["secrets", "rotate", &flag(&file)]).await;
    assert!(
        finished.stdout.contains("secret/backend encrypted"),
        "{finished:?}"
    );
    assert!(finished.stderr.contains("until it is compacted"), "{finished:?}");
    let shown = status(&world, &[]).await;
    assert_eq!(of_secret(&shown, "backend")["state"], "encrypted", "{shown}");
    world.apply(&uses("after")).await;
    world.expect_created("after").await;
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_rotation_is_refused_with_another_key_than_the_published_one_and_without_any() {
    let (base, files) = (Base::start().await, KeyFiles::new());
    let file = files.file(&[1]);
    base.apply(&secret("s", "token", "x")).await;
    let refused = base
        .run(&["secrets", "rotate", &flag(&file)])
        .await
        .expect_code(4);
    assert!(refused.contains("NoPublishedKey"), "{refused}");
    let mut replica = leading(&base, &file, "r0").await;
    let other = files.file(&[2, 1]);
    let refused = base
        .run(&["secrets", "rotate", &flag(&other)])
        .await
        .expect_code(4);
    assert!(
        refused.contains("OtherKey") && refused.contains(&id_of(&other)),
        "{refused}"
    );
    let unusable = base.run(&["secrets", "rotate"]).await.expect_code(64);
    assert!(unusable.contains("--encryption-key-file"), "{unusable}");
    let shown = status(&base, &[]).await;
    assert_eq!(of_secret(&shown, "s")["state"], "unencrypted", "{shown}");
    replica.stop().await.unwrap();
}
