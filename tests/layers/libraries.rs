//! Outside libraries, each named in one place, so that replacing one is a change of one folder.

use super::source::{Files, Token, lies_in};

/// Where the product names its dependencies. Those without a place are like Rust's own words, and named anywhere.
const PLACES: [(&str, &[&str]); 43] = [
    ("axum", &["src/serve"]),
    ("backoff", &["src/retry"]),
    ("clap", &["src/cli"]),
    ("clap_complete", &["src/cli"]),
    ("data_encoding", &["src/identity", "src/secrets"]),
    ("etcd_client", &["src/etcd"]),
    ("futures", &[]),
    ("http", &[]),
    ("hyper_timeout", &["src/kube/transport.rs"]),
    // The error of its client tells a connection that was refused from one that broke.
    (
        "hyper_util",
        &["src/one_stream.rs", "src/kube/client.rs", "src/kube/transport.rs"],
    ),
    ("jiff", &[]),
    // Its type for bytes as a document of Kubernetes holds them.
    (
        "k8s_openapi",
        &[
            "src/csi/secret.rs",
            "src/kube/secret.rs",
            "src/resources/bundle/manifest.rs",
            "src/store/object/secret.rs",
        ],
    ),
    ("kube", &["src/kube"]),
    ("pem", &["src/identity"]),
    ("prometheus_client", &["src/metrics", "src/term/gauges.rs"]),
    ("prost", &[]),
    ("prost_types", &[]),
    ("rcgen", &["src/identity"]),
    // Outside identity: the cryptography that rustls is given.
    (
        "ring",
        &[
            "src/agent/trust.rs",
            "src/control/tls.rs",
            "src/etcd/alert.rs",
            "src/identity",
            "src/secrets",
        ],
    ),
    (
        "rustix",
        &["src/agent", "src/cli/run.rs", "src/clock.rs", "src/one_stream.rs"],
    ),
    ("rustls_native_certs", &["src/etcd"]),
    ("semver", &["src/release.rs"]),
    ("serde", &[]),
    ("serde_json", &[]),
    ("serde_saphyr", &["src/resources", "src/store/object"]),
    ("strsim", &["src/store/object"]),
    ("subtle", &["src/identity"]),
    ("thiserror", &[]),
    ("time", &["src/identity"]),
    ("tokio", &[]),
    ("tokio_rustls", &["src/agent", "src/control", "src/etcd"]),
    ("tokio_util", &[]),
    // Clients in `csi`, `agent` and `traces` alone, and the server in `control`; elsewhere its codes.
    (
        "tonic",
        &[
            "src/agent",
            "src/control",
            "src/csi",
            "src/etcd",
            "src/grpc_code.rs",
            "src/one_stream.rs",
            "src/traces",
        ],
    ),
    ("tonic_health", &["src/control"]),
    ("tonic_prost", &[]),
    ("tonic_reflection", &["src/control"]),
    ("tower", &["src/kube/transport.rs"]),
    ("tracing", &[]),
    ("tracing_subscriber", &["src/cli", "src/traces"]),
    ("uuid", &[]),
    ("x25519_dalek", &["src/secrets"]),
    ("x509_parser", &["src/identity"]),
    ("zeroize", &["src/wipe.rs"]),
];

/// Libraries named outside their places, places that name theirs no more, and dependencies without a row in [`PLACES`].
pub fn misplaced(manifest: &str, files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for dependency in dependencies(manifest) {
        let Some((_, places)) = PLACES.iter().find(|(library, _)| *library == dependency) else {
            faults.push(format!("{dependency} has no place: add it to PLACES"));
            continue;
        };
        let found = files.product().filter(|(_, file)| names(&file.code, &dependency));
        let found: Vec<&str> = found.map(|(path, _)| path).collect();
        for place in *places {
            if !found.iter().any(|path| lies_in(path, place)) {
                faults.push(format!(
                    "{place} does not name {dependency}: remove it from PLACES"
                ));
            }
        }
        let astray = found
            .iter()
            .filter(|path| !places.iter().any(|place| lies_in(path, place)));
        let astray = astray.filter(|_| !places.is_empty());
        faults.extend(astray.map(|path| {
            format!(
                "{path} names {dependency}, which belongs to {}",
                places.join(", ")
            )
        }));
    }
    faults
}

/// The names of a manifest's dependencies, as code writes them.
fn dependencies(manifest: &str) -> Vec<String> {
    let lines = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// Whether the code names this library: at the head of a path, and not as a module of the crate's own.
fn names(code: &[Token], library: &str) -> bool {
    let own = imports_own(code, library);
    (0..code.len()).any(|at| {
        let before = at.checked_sub(1).map(|before| &code[before]);
        let after_path = before.is_some_and(|before| before.is("::"));
        let rooted = after_path
            && !at
                .checked_sub(2)
                .is_some_and(|at| matches!(code[at], Token::Word(_)) && !code[at].is("use"));
        let leads = code.get(at + 1).is_some_and(|after| after.is("::"));
        code[at].is(library) && leads && if after_path { rooted } else { !own }
    })
}

/// Whether a `use` brings in a module of the crate with this name: `crate::kube`, or `kube` within braces after `crate::`.
fn imports_own(code: &[Token], module: &str) -> bool {
    let declared = code
        .windows(3)
        .any(|code| code[0].is("mod") && code[1].is(module) && code[2].is(";"));
    declared
        || code.split(|token| token.is(";")).any(|statement| {
            let begin = statement.iter().position(|token| token.is("use"));
            let Some([first, _, rest @ ..]) = begin.map(|begin| &statement[begin + 1..]) else {
                return false;
            };
            let own = ["crate", "super", "self"].iter().any(|root| first.is(root));
            // The last of a path, or a head of braces: `kube`, `kube::{self`, `{etcd, kube}`.
            own && rest.iter().any(|token| token.is(module))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"q\"\n[dependencies]\n# Words.\nbackoff = \"0.4\"\nkube.workspace = true\n\n[lib]\nx = 1\n";

    const AT_HOME: [(&str, &str); 2] = [
        ("src/kube/mod.rs", "use kube::Client;"),
        ("src/retry/mod.rs", "fn f() { backoff::new() }"),
    ];

    fn faults(path: &str, text: &str) -> Vec<String> {
        misplaced(MANIFEST, &Files::of(&[AT_HOME[0], AT_HOME[1], (path, text)]))
    }

    #[test]
    fn a_library_outside_its_place_is_found() {
        for text in [
            "use kube::Client;",
            "use ::kube::Client;",
            "fn f() { kube::x() }",
            "use {std::io, kube::Api};",
        ] {
            assert_eq!(
                faults("src/gate.rs", text),
                ["src/gate.rs names kube, which belongs to src/kube"],
                "{text}"
            );
        }
    }

    #[test]
    fn a_module_of_the_crate_with_its_name_is_none() {
        for text in [
            "use crate::kube; fn f() { kube::x() }",
            "use crate::kube::{self, Y}; fn f() { kube::x() }",
            "mod kube; fn f() { kube::x(); crate::kube::y() }",
            "// kube::x\nconst TEXT: &str = \"kube::x\";",
        ] {
            assert_eq!(faults("src/gate.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_place_without_its_library_and_a_library_without_a_place_are_found() {
        assert_eq!(
            misplaced(MANIFEST, &Files::of(&AT_HOME[..1])),
            ["src/retry does not name backoff: remove it from PLACES"]
        );
        let manifest = MANIFEST.replace("[lib]", "left-pad = \"1\"\n[lib]");
        assert_eq!(
            misplaced(&manifest, &Files::of(&AT_HOME)),
            ["left_pad has no place: add it to PLACES"]
        );
    }
}
