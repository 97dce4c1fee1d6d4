//! `explain`: what a kind and its fields are, without an etcd, and as `apply` checks them.

use super::node;
use crate::support::base::Base;
use crate::support::quorate::quorate;

async fn explained(subject: &str) -> String {
    quorate(["explain", subject]).await.expect_done()
}

#[tokio::test]
async fn a_kind_and_its_fields_are_explained_without_an_etcd() {
    let volume = explained("volume").await;
    assert!(volume.starts_with("Kind:   Volume\n"), "{volume}");
    assert!(
        volume.contains("\n  spec ") && !volume.contains("accessMode.scope"),
        "{volume}"
    );
    let all = quorate(["explain", "volumes", "--recursive"]).await.expect_done();
    assert!(all.contains("\n  spec.accessMode.scope  (one of "), "{all}");
    let member = explained("member").await;
    assert!(member.contains("quorate get members -o yaml"), "{member}");
    for (subject, why) in [
        ("node.spec.desiredRol", "did you mean desiredRole?"),
        ("member.spec", "written by Quorate alone"),
    ] {
        let said = quorate(["explain", subject]).await.expect_code(64);
        assert!(said.contains(why), "{subject}: {said}");
    }
    quorate(["explain", "teapot"]).await.expect_code(64);
}

#[tokio::test]
async fn the_words_that_explain_names_are_those_that_apply_takes() {
    let field = explained("node.spec.availability").await;
    let (_, words) = field.split_once("(one of ").unwrap();
    let (words, _) = words.split_once(')').unwrap();
    let words: Vec<&str> = words.split("; ").next().unwrap().split(", ").collect();
    assert!(words.contains(&"drain") && words.len() > 1, "{field}");
    let cluster = Base::start().await;
    for word in &words {
        let spec = format!("{{desiredRole: worker, availability: {word}}}");
        cluster.apply(&node("n1", &spec)).await;
    }
    let another = node("n1", "{desiredRole: worker, availability: asleep}");
    let refused = cluster.run_with(&["apply", "-f", "-"], &another).await;
    let said = refused.expect_code(64);
    for word in words {
        assert!(said.contains(word), "{said}");
    }
}
