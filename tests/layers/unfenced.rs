//! Writes without a fence: commands of operators, calls of agents, and the owners of leases. The leader's go through its `Fence`.

use super::source::{Files, Token, lies_in};

const ALLOWED: [&str; 4] = [
    "src/etcd",
    "src/gate/registration.rs",
    "src/control/write.rs",
    "src/cli",
];

/// Calls and other uses of `Etcd::unfenced` elsewhere.
pub fn writes(files: &Files) -> Vec<String> {
    let named = files.product().filter(|(_, file)| {
        let mut code = file.code.windows(2);
        code.any(|code| matches!(&code[0], Token::Mark('.') | Token::Path) && code[1].is("unfenced"))
    });
    let astray = named.filter(|(path, _)| !ALLOWED.iter().any(|place| lies_in(path, place)));
    astray
        .map(|(path, _)| format!("{path} writes without a fence"))
        .collect()
}

#[test]
fn a_write_without_a_fence_is_found_where_a_leader_works() {
    let call = "async fn f() { etcd.unfenced(txn).await }";
    for text in [call, "let write = Etcd::unfenced;", "etcd\n    .unfenced (txn)"] {
        let files = Files::of(&[("src/roles/act.rs", text), ("src/cli/apply.rs", text)]);
        assert_eq!(
            writes(&files),
            ["src/roles/act.rs writes without a fence"],
            "{text}"
        );
    }
    let files = Files::of(&[(
        "src/roles/act.rs",
        "// etcd.unfenced(txn)\n#[cfg(test)]\nmod tests { fn f() { etcd.unfenced(txn) } }",
    )]);
    assert_eq!(writes(&files), [""; 0]);
}
