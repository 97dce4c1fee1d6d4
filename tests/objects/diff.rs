//! `diff`: what `apply` would change.

use super::node;
use crate::support::base::{Base, document};

const SECRET: &str = "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {name: token}\nstringData: {a: ";

#[tokio::test]
async fn each_object_that_apply_would_change_is_shown_and_nothing_is_written() {
    let cluster = Base::start().await;
    let before = [
        node("n1", "{desiredRole: worker}"),
        node("n2", "{desiredRole: worker}"),
        format!("{SECRET}before}}\n"),
    ];
    cluster.apply(&before.concat()).await;
    let contents = cluster.contents().await;
    let after = [
        node("n1", "{desiredRole: worker, availability: drain}"),
        node("n2", "{desiredRole: worker}"),
        document("Network", "front", "{}"),
        format!("{SECRET}after}}\n"),
    ]
    .concat();
    let shown = cluster.run_with(&["diff", "-f", "-"], &after).await.expect_done();
    let mut lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.pop(), Some("3 of 4 objects would change"));
    let text = lines.join("\n");
    for part in [
        "~ node/n1\n    - spec.availability: \"active\"\n    + spec.availability: \"drain\"",
        "+ network/front",
        "~ secret/token\n    values differ (not shown)",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!shown.contains("before") && !shown.contains("after"), "{shown}");
    let differs = cluster
        .run_with(&["diff", "--exit-code", "-f", "-"], &after)
        .await;
    assert!(
        differs
            .expect_code(5)
            .contains("the objects differ from the documents")
    );
    let labelled = format!("{SECRET}after}}\n").replace("{name: token}", "{name: token, labels: {zone: a}}");
    let shown = cluster
        .run_with(&["diff", "-f", "-"], &labelled)
        .await
        .expect_done();
    for part in ["+ metadata.labels", "    values differ (not shown)\n"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(cluster.contents().await, contents);

    cluster.apply(&after).await;
    let same = cluster
        .run_with(&["diff", "--exit-code", "-f", "-"], &after)
        .await;
    assert_eq!(same.expect_done(), "0 of 4 objects would change\n");
}

#[tokio::test]
async fn what_apply_would_refuse_diff_refuses() {
    let cluster = Base::start().await;
    let task = document("Task", "web", "{service: web, node: n1}");
    let refused = cluster.run_with(&["apply", "-f", "-"], &task).await;
    let code = refused.code;
    assert_ne!(code, 0);
    let said = cluster
        .run_with(&["diff", "-f", "-"], &task)
        .await
        .expect_code(code);
    assert_eq!(said, refused.expect_code(code));
}
