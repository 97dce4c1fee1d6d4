//! What etcd holds of a Secret, and what commands need for it.

use prost::Message as _;
use quorate::proto::Secret;
use regex::bytes::Regex;

use super::*;
use crate::support::base::parsed;
use crate::support::hold::Hold;
use crate::volumes::world::{World, secret, volume};

const VALUE: &str = "xyzzy-s3cr3t-value-of-a-backend";

/// The spellings of a value that a search finds: plain, and in base64 wherever it begins in a text.
fn spellings(value: &str) -> Vec<String> {
    let in_base64 = (0..3).map(|before| {
        let text = [&vec![b'-'; before][..], value.as_bytes()].concat();
        let encoded = base64(&text);
        // The first and the last group hold bits of what is around the value.
        encoded[4..encoded.len() - 4].to_owned()
    });
    std::iter::once(value.to_owned()).chain(in_base64).collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    Regex::new(&regex::escape(text)).unwrap().is_match(bytes)
}

/// Every file below a directory.
fn files(directory: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file() {
            match std::fs::read(&path) {
                Ok(bytes) => found.push((path.display().to_string(), bytes)),
                // etcd runs, and gives files their names once they are whole.
                Err(gone) => assert_eq!(gone.kind(), std::io::ErrorKind::NotFound, "{gone}"),
            }
        }
    }
}

#[test]
fn a_value_is_found_plain_and_in_base64_wherever_it_begins() {
    for text in [
        VALUE.to_owned(),
        base64(VALUE.as_bytes()),
        base64(format!("a{VALUE}b").as_bytes()),
        base64(format!("aa{VALUE}bb").as_bytes()),
    ] {
        let is_found = spellings(VALUE).iter().any(|form| holds(text.as_bytes(), form));
        assert!(is_found, "{text}");
    }
    assert!(!spellings(VALUE).iter().any(|form| holds(b"another value", form)));
}

#[tokio::test]
async fn neither_a_snapshot_of_etcd_nor_its_files_hold_a_value_of_a_secret() {
    let (world, keys) = (World::start().await, KeyFiles::new());
    let mut replica = leading(&world, &keys.file(&[1]), "r0").await;
    world.plugin.order(expects(VALUE)).await;
    // The command has no key.
    let uses = volume("data", "secrets: [{key: token, secret: backend}],");
    world.apply(&(secret("backend", "token", VALUE) + &uses)).await;
    world.expect_created("data").await;
    world.publish("data", "n1").await;
    world.apply(&secret("backend", "token", VALUE)).await;
    world.unpublish("data", "n1").await;

    let mut found = Vec::new();
    files(world.etcd.directory(), &mut found);
    let snapshot = world.etcd.snapshot();
    let dump = std::fs::read(&snapshot).unwrap();
    assert!(
        holds(&dump, "/quorate/secrets/backend"),
        "the Secret itself is there"
    );
    assert!(
        found
            .iter()
            .any(|(_, bytes)| holds(bytes, "/quorate/secrets/backend")),
        "the files of etcd are read"
    );
    found.push(("the snapshot".to_owned(), dump));
    for (file, bytes) in found {
        for form in spellings(VALUE) {
            assert!(!holds(&bytes, &form), "{file} holds {form}");
        }
    }
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn commands_need_no_key_and_show_no_value() {
    let (base, keys) = (Base::start().await, KeyFiles::new());
    let file = keys.file(&[1]);
    let mut replica = leading(&base, &file, "r0").await;
    base.apply(&secret("backend", "token", VALUE)).await;
    let again = base.apply(&secret("backend", "token", VALUE)).await;
    assert_eq!(
        again, "secret/backend configured\n",
        "what is encrypted is not compared"
    );
    let mut shown = Vec::new();
    for args in [
        &["get", "secrets"][..],
        &["get", "secrets", "-o", "yaml"],
        &["describe", "secret", "backend"],
        &["secrets", "status"],
    ] {
        shown.push(base.done(args).await);
    }
    let document = secret("backend", "token", VALUE);
    shown.push(base.run_with(&["diff", "-f", "-"], &document).await.expect_done());
    let id = id_of(&file);
    assert!(shown[0].contains("token"), "{}", shown[0]);
    assert!(
        shown[1].contains("encryptionKey: ") && shown[1].contains(&id),
        "{}",
        shown[1]
    );
    assert!(shown[2].contains(&format!("with key {id}")), "{}", shown[2]);
    assert!(
        shown[3].contains("encrypted") && shown[3].contains(&id),
        "{}",
        shown[3]
    );
    assert!(shown[4].contains("written again"), "{}", shown[4]);
    for text in &shown {
        assert!(
            !spellings(VALUE).iter().any(|form| text.contains(form.as_str())),
            "{text}"
        );
    }
    // With the key, the status says that it opens.
    let with_key = status(&base, &[&flag(&file)]).await;
    assert_eq!(of_secret(&with_key, "backend")["opens"], true, "{with_key}");
    base.done(&["delete", "secret", "backend", "--yes"]).await;
    replica.stop().await.unwrap();
}

/// The command has decided to write a plain value when the key is published.
#[tokio::test]
async fn no_value_is_written_plain_once_a_key_is_published() {
    let (base, keys) = (Base::start().await, KeyFiles::new());
    let hold = Hold::at("apply.decided");
    let held = hold.flag();
    let document = secret("backend", "token", VALUE);
    let args = ["apply", "-f", "-", held.as_str()];
    let publishing = async {
        hold.reached().await;
        let replica = leading(&base, &keys.file(&[1]), "r0").await;
        hold.release();
        replica
    };
    let (applied, mut replica) = tokio::join!(base.run_with(&args, &document), publishing);
    assert_eq!(applied.expect_done(), "secret/backend created\n");
    let shown = status(&base, &[]).await;
    assert_eq!(of_secret(&shown, "backend")["state"], "encrypted", "{shown}");
    let dump = std::fs::read(base.etcd.snapshot()).unwrap();
    for form in spellings(VALUE) {
        assert!(!holds(&dump, &form), "{form}");
    }
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_value_that_was_moved_to_another_key_is_refused_by_name() {
    let (world, keys) = (World::start().await, KeyFiles::new());
    let file = keys.file(&[1]);
    let mut replica = leading(&world, &file, "r0").await;
    world
        .apply(&(secret("mine", "token", "other") + &secret("backend", "token", VALUE)))
        .await;
    let key = |name: &str| world.store.keys.secret(&parsed(name));
    let stolen = world.read(&key("backend")).await.unwrap();
    let mut moved = Secret::decode(&*stolen.value).unwrap();
    moved.metadata.as_mut().unwrap().name = "mine".to_owned();
    world.put(&key("mine"), moved.encode_to_vec()).await;

    let uses = |name: &str, of: &str| volume(name, &format!("secrets: [{{key: token, secret: {of}}}],"));
    world
        .apply(&(uses("data", "mine") + &uses("other", "backend")))
        .await;
    let blocked = world.expect_blocked("data", None, "SecretNotAuthentic").await;
    assert!(blocked.message.starts_with("secret mine: "), "{blocked:?}");
    world.expect_created("other").await;
    let with_key = status(&world, &[&flag(&file)]).await;
    assert_eq!(of_secret(&with_key, "mine")["opens"], false, "{with_key}");
    assert_eq!(of_secret(&with_key, "backend")["opens"], true, "{with_key}");
    replica.stop().await.unwrap();
}
