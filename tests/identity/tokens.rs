//! `quorate token`: made once, shown once, kept as a hash.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::Stdio;

use futures::future::join_all;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use super::{authorities, ca, home};
use crate::support::base::{Base, document};
use crate::support::quorate::{Finished, program};
use crate::support::wait::SOON;

/// An etcd, and authorities.
struct Site {
    base: Base,
    ca: String,
    home: TempDir,
}

impl Deref for Site {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Site {
    async fn start() -> Self {
        let home = home();
        Self {
            base: Base::start().await,
            ca: authorities(&home).await,
            home,
        }
    }

    /// Runs `quorate token create …` or `quorate token rotate …`.
    async fn token(&self, args: &[&str]) -> Finished {
        let ca = ["--ca-dir", &self.ca];
        self.run(&[&["token"], args, &ca].concat()).await
    }

    /// The token that a command prints, and nothing beside it.
    async fn made(&self, args: &[&str]) -> String {
        let printed = self.token(args).await.expect_done();
        let token = printed.strip_suffix('\n').unwrap().to_owned();
        assert!(
            token.starts_with("QUO-1-") && !token.contains(char::is_whitespace),
            "{printed}"
        );
        token
    }

    /// Runs `quorate token check` with this on standard input.
    async fn check(&self, token: &str) -> Finished {
        self.run_with(&["token", "check", "-"], token).await
    }

    async fn shown(&self) -> Vec<Value> {
        let shown = self.run(&["token", "show", "-o", "json"]).await.expect_done();
        let list: Value = serde_json::from_str(&shown).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    async fn add_node(&self, name: &str) {
        let node = document("Node", name, "{desiredRole: worker}");
        self.apply(&node).await;
    }

    /// The stored value of a token.
    async fn stored(&self, joiner: &str) -> Option<Vec<u8>> {
        let key = format!("/quorate/identity/tokens/{joiner}");
        self.read(key.as_bytes()).await.map(|kv| kv.value)
    }
}

fn holds(content: &[u8], part: &[u8]) -> bool {
    content.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn a_token_is_shown_once_and_etcd_holds_a_hash_of_it() {
    let site = Site::start().await;
    let worker = site.made(&["create", "--role", "worker"]).await;
    let manager = site.made(&["create", "--role", "manager"]).await;
    assert_ne!(worker, manager);
    for (token, joiner) in [(&worker, "worker"), (&manager, "manager")] {
        assert_eq!(site.check(token).await.expect_done(), format!("{joiner}\n"));
    }
    let file = site.home.path().join("token");
    fs::write(&file, format!("{worker}\n")).unwrap();
    let checked = site.run(&["token", "check", file.to_str().unwrap()]).await;
    assert_eq!(checked.expect_done(), "worker\n");

    let digest = worker.split('-').nth(2).unwrap();
    let authority = ca(&["show", "--ca-dir", &site.ca]).await.expect_done();
    assert!(authority.contains(digest), "{authority}");
    let table = site.run(&["token", "show"]).await.expect_done();
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("JOINER"), "{table}");
    assert!(
        rows[1].starts_with("manager ") && rows[1].ends_with(digest),
        "{table}"
    );
    assert!(
        rows[2].starts_with("worker ") && rows[2].ends_with(digest),
        "{table}"
    );
    assert_eq!(rows.len(), 3, "{table}");
    let items = site.shown().await;
    assert_eq!(items[1]["kind"], "JoinToken");
    assert_eq!(items[1]["metadata"]["name"], "worker");
    assert_eq!(items[1]["status"]["authority"], digest);
    assert!(items[1]["status"]["since"].is_string(), "{items:?}");
    let yaml = site.run(&["token", "show", "-o", "yaml"]).await.expect_done();
    assert!(yaml.contains(&format!("authority: {digest}")), "{yaml}");

    let secret = worker.rsplit('-').next().unwrap();
    for shown in [table, yaml, format!("{items:?}")] {
        assert!(!shown.contains(secret), "{shown}");
    }
    let bits = bytes_of(secret);
    for kv in site.contents().await {
        for part in [secret.as_bytes(), &bits] {
            assert!(!holds(&kv.value, part) && !holds(&kv.key, part), "{kv:?}");
        }
    }
}

/// The bytes that this text of base32 stands for.
fn bytes_of(text: &str) -> Vec<u8> {
    let mut bits = 0_u64;
    let (mut count, mut bytes) = (0, Vec::new());
    for letter in text.bytes() {
        let value = match letter {
            b'a'..=b'z' => letter - b'a',
            b'2'..=b'7' => letter - b'2' + 26,
            _ => panic!("{text}"),
        };
        bits = bits << 5 | u64::from(value);
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff).try_into().unwrap());
        }
    }
    assert_eq!(bytes.len(), 20);
    bytes
}

#[tokio::test]
async fn of_several_creations_at_once_one_makes_the_token() {
    let site = Site::start().await;
    let all = join_all((0..4).map(|_| site.token(&["create", "--role", "worker"]))).await;
    let (made, failed): (Vec<_>, Vec<_>) = all.into_iter().partition(|finished| finished.code == 0);
    assert_eq!(made.len(), 1, "{made:?} {failed:?}");
    let checked = site.check(&made[0].stdout).await;
    assert_eq!(checked.expect_done(), "worker\n");
    for failed in failed {
        assert_eq!(failed.stdout, "", "no token is shown that lets in no node");
        let said = failed.expect_code(5);
        assert!(
            said.contains("there is a token of worker already, since "),
            "{said}"
        );
        assert!(said.contains("quorate token rotate"), "{said}");
    }
    assert_eq!(site.shown().await.len(), 1);
}

#[tokio::test]
async fn a_rotated_token_lets_in_no_more_and_nothing_of_it_is_kept() {
    let site = Site::start().await;
    let former = site.made(&["create", "--role", "manager"]).await;
    let hash = site.stored("manager").await.unwrap()[2..34].to_vec();
    let token = site.made(&["rotate", "--role", "manager"]).await;
    assert_eq!(site.check(&token).await.expect_done(), "manager\n");
    let said = site.check(&former).await.expect_code(4);
    assert!(said.contains("refused by rule WrongToken"), "{said}");
    for kv in site.contents().await {
        assert!(!holds(&kv.value, &hash), "{kv:?}");
    }
    assert_eq!(site.shown().await.len(), 1);
}

#[tokio::test]
async fn of_several_rotations_at_once_none_shows_a_token_that_lets_in_no_node() {
    let site = Site::start().await;
    site.made(&["create", "--role", "worker"]).await;
    let all = join_all((0..4).map(|_| site.token(&["rotate", "--role", "worker"]))).await;
    // Rotations that did not overlap succeed one after the other.
    let mut in_force = 0;
    for finished in &all {
        match finished.code {
            0 => in_force += usize::from(site.check(&finished.stdout).await.code == 0),
            _ => {
                assert_eq!(finished.code, 5, "{finished:?}");
                assert_eq!(finished.stdout, "");
                assert!(finished.stderr.contains("meanwhile"), "{finished:?}");
            }
        }
    }
    assert_eq!(in_force, 1, "{all:?}");
}

#[tokio::test]
async fn the_token_of_a_node_is_for_that_very_node_and_goes_with_it() {
    let site = Site::start().await;
    let create = ["create", "--node", "n1"];
    let said = site.token(&create).await.expect_code(3);
    assert!(said.contains("node/n1 not found"), "{said}");
    site.add_node("n1").await;
    let token = site.made(&create).await;
    assert_eq!(site.check(&token).await.expect_done(), "node/n1\n");
    let uid = site.node("n1").await.metadata.unwrap().uid;
    assert_eq!(site.shown().await[0]["status"]["nodeUID"], uid);
    site.token(&create).await.expect_code(5);
    let other = site.made(&["rotate", "--node", "n1"]).await;
    site.check(&token).await.expect_code(4);
    assert_eq!(site.check(&other).await.expect_done(), "node/n1\n");

    let stored = site.stored("node/n1").await.unwrap();
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    assert_eq!(site.stored("node/n1").await, None);
    // A later node of the name is another one, even where the token was written back.
    site.add_node("n1").await;
    site.put(b"/quorate/identity/tokens/node/n1", stored).await;
    let said = site.check(&other).await.expect_code(4);
    assert!(said.contains("refused by rule NodeGone"), "{said}");
    let own = site.made(&create).await;
    assert_eq!(site.check(&own).await.expect_done(), "node/n1\n");
    site.check(&other).await.expect_code(4);
}

#[tokio::test]
async fn what_is_no_token_or_not_of_this_cluster_is_refused_and_never_repeated() {
    let site = Site::start().await;
    let token = site.made(&["create", "--role", "worker"]).await;
    let (front, secret) = token.rsplit_once('-').unwrap();
    for bad in [
        "",
        "not a token",
        front,
        &token[..token.len() - 1],
        &token.to_uppercase(),
        &format!("{token} {token}"),
    ] {
        let said = site.check(bad).await.expect_code(64);
        assert!(said.contains("not a join token"), "{bad}: {said}");
        assert!(!said.contains(&secret[..8]), "{bad}: {said}");
    }
    let elsewhere = Site::start().await;
    let foreign = elsewhere.made(&["create", "--role", "worker"]).await;
    // The own secret under a foreign authority, and the other way round.
    let (foreign_front, foreign_secret) = foreign.rsplit_once('-').unwrap();
    for foreign in [
        &foreign,
        &format!("{foreign_front}-{secret}"),
        &format!("{front}-{foreign_secret}"),
    ] {
        site.check(foreign).await.expect_code(4);
    }
    let missing = site.home.path().join("missing").display().to_string();
    let said = site.run(&["token", "check", &missing]).await.expect_code(64);
    assert!(said.contains("cannot read") && said.contains("missing"), "{said}");
}

#[tokio::test]
async fn wrong_arguments_write_nothing_and_the_key_of_the_authority_is_not_needed() {
    let site = Site::start().await;
    site.add_node("n1").await;
    let before = site.contents().await;
    for (args, code, expected) in [
        (&["create"][..], 64, "--role <ROLE>|--node <NAME>"),
        (&["create", "--role", "leader"], 64, "worker, manager"),
        (
            &["create", "--role", "worker", "--node", "n1"],
            64,
            "cannot be used with",
        ),
        (&["create", "--node", "N1"], 64, "is not a name"),
        (
            &["rotate", "--role", "worker"],
            3,
            "quorate token create makes one",
        ),
        (&["rotate", "--node", "n1"], 3, "quorate token create makes one"),
    ] {
        let said = site.token(args).await.expect_code(code);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    let create = ["token", "create", "--role", "worker"];
    let said = site.run(&create).await.expect_code(64);
    assert!(said.contains("--ca-dir"), "{said}");
    let nowhere = [&create[..], &["--ca-dir", "/nonexistent"]].concat();
    let said = site.run(&nowhere).await.expect_code(1);
    assert!(said.contains("current/node-ca.crt"), "{said}");
    assert_eq!(site.contents().await, before);
    let none = site.run(&["token", "show"]).await;
    assert!(none.stderr.contains("no join tokens found"), "{none:?}");
    assert_eq!(none.expect_done(), "");

    let current = Path::new(&site.ca).join("current");
    for file in ["node-ca.key", "etcd-ca.key", "etcd-ca.crt"] {
        fs::remove_file(current.join(file)).unwrap();
    }
    let token = site.made(&create[1..]).await;
    assert_eq!(site.check(&token).await.expect_done(), "worker\n");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_shown_as_such_and_rotated() {
    let site = Site::start().await;
    let manager = site.made(&["create", "--role", "manager"]).await;
    site.put(b"/quorate/identity/tokens/worker", [0xff]).await;
    site.put(b"/quorate/identity/tokens/later", [0xff]).await;
    let shown = site.run(&["token", "show"]).await;
    assert!(
        shown.stderr.contains("warning: the token of worker is malformed"),
        "{shown:?}"
    );
    assert!(!shown.stderr.contains("later"), "{shown:?}");
    let table = shown.expect_done();
    assert!(table.lines().any(|row| row.starts_with("worker ")), "{table}");
    assert_eq!(site.check(&manager).await.expect_done(), "manager\n");
    let create = ["create", "--role", "worker"];
    let said = site.token(&create).await.expect_code(5);
    assert!(said.contains("there is a token of worker already"), "{said}");
    let token = site.made(&["rotate", "--role", "worker"]).await;
    assert_eq!(site.check(&token).await.expect_done(), "worker\n");
}

/// Nothing of it is kept, as what makes a record unreadable may be what a later release would have written.
#[tokio::test]
async fn a_rotation_of_a_record_that_cannot_be_read_makes_one_that_can() {
    let site = Site::start().await;
    // A varint with the number 2^29, which is one more than a field may have.
    let too_large = [0x80, 0x80, 0x80, 0x80, 0x10, 7];
    let key = b"/quorate/identity/tokens/worker";
    site.put(key, too_large).await;
    let token = site.made(&["rotate", "--role", "worker"]).await;
    assert_eq!(site.check(&token).await.expect_done(), "worker\n");
}

#[tokio::test]
async fn a_token_that_cannot_be_printed_is_no_success() {
    let site = Site::start().await;
    let endpoints = format!("--etcd-endpoints={}", site.etcd.endpoints_flag());
    let create = ["token", "create", "--role", "worker", "--ca-dir"];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = program()
        .args(create)
        .args([&site.ca, &endpoints])
        .args(site.etcd.credentials().flags())
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ended = timeout(SOON, child.wait_with_output()).await;
    let ended = ended.expect("the command ends").unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("quorate token rotate"), "{said}");
    site.made(&["rotate", "--role", "worker"]).await;
}

#[tokio::test]
async fn a_rotation_keeps_what_a_later_release_has_written() {
    // Field 15, a varint.
    let newer = [0x78, 9];
    let site = Site::start().await;
    site.made(&["create", "--role", "worker"]).await;
    let mut stored = site.stored("worker").await.unwrap();
    stored.extend(newer);
    site.put(b"/quorate/identity/tokens/worker", stored).await;
    let token = site.made(&["rotate", "--role", "worker"]).await;
    assert!(site.stored("worker").await.unwrap().ends_with(&newer));
    assert_eq!(site.check(&token).await.expect_done(), "worker\n");
}

#[tokio::test]
async fn a_node_without_a_uid_gets_no_token() {
    let site = Site::start().await;
    site.add_node("n1").await;
    site.change("n1", |node| node.metadata.get_or_insert_default().uid.clear())
        .await;
    let said = site.token(&["create", "--node", "n1"]).await.expect_code(4);
    assert!(said.contains("NoUid"), "{said}");
    assert_eq!(site.stored("node/n1").await, None);
}
