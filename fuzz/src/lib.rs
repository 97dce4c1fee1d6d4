//! The fuzz targets: what the decoders of bytes from outside promise, whatever the bytes are.
//!
//! A target is a function of bytes that panics where a promise is broken. `make fuzz` feeds it with an engine that looks for
//! bytes which reach other code than those before, and the tests feed it with the corpus that such runs have left.

mod answers;
mod bundles;
mod credentials;
mod documents;
mod flags;
mod given;
mod indexed;
mod keys;
mod shown;
mod stored;
mod words;

/// A function of bytes that panics where a promise is broken.
pub struct Target {
    /// Its name on the command line, and that of the folder of its corpus.
    pub name: &'static str,
    /// Whether it decodes what etcd holds, which any client of etcd may have written.
    pub is_of_etcd: bool,
    /// The longest input that the engine makes, in bytes.
    pub longest: usize,
    /// The function.
    pub run: fn(&[u8]),
}

impl Target {
    const fn of_etcd(name: &'static str, run: fn(&[u8])) -> Self {
        Self {
            name,
            is_of_etcd: true,
            longest: 512,
            run,
        }
    }

    const fn of_others(name: &'static str, longest: usize, run: fn(&[u8])) -> Self {
        Self {
            name,
            is_of_etcd: false,
            longest,
            run,
        }
    }

    /// The target of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// Every target.
pub static TARGETS: &[Target] = &[
    Target::of_etcd("keys", keys::keys),
    Target::of_etcd("nodes", stored::nodes),
    Target::of_etcd("members", stored::members),
    Target::of_etcd("services", stored::services),
    Target::of_etcd("volumes", stored::volumes),
    Target::of_etcd("plugins", stored::plugins),
    Target::of_etcd("secrets", stored::secrets),
    Target::of_etcd("identity", stored::identity),
    Target::of_etcd("reconciler", stored::reconciler),
    Target::of_etcd("status", stored::status),
    Target::of_others("documents", 2048, documents::documents),
    Target::of_others("printed", 1024, documents::printed),
    Target::of_others("bundle", 2048, bundles::bundle),
    Target::of_others("flags", 256, flags::flags),
    Target::of_others("kubeconfig", 2048, credentials::kubeconfig),
    Target::of_others("requests", 1024, credentials::requests),
    Target::of_others("certificates", 2048, credentials::certificates),
    Target::of_others("tokens", 128, credentials::tokens),
    Target::of_others("encryption-keys", 256, credentials::encryption_keys),
    Target::of_others("words", 256, words::words),
    Target::of_others("csi", 512, answers::csi),
    Target::of_others("member-pages", 512, answers::member_pages),
    Target::of_others("logs", 512, answers::logs),
    Target::of_others("mounts", 512, answers::mounts),
    Target::of_others("errors", 512, answers::errors),
];

/// The bytes as a text: what no text file could hold is no input.
fn text(data: &[u8]) -> &str {
    str::from_utf8(data).unwrap_or_default()
}
