//! What a part of the program says of itself to probes.

/// One line of a probe's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked, in one word: `etcd`, `gate`.
    pub name: &'static str,
    /// Whether the check passed.
    pub ok: bool,
    /// Why it failed, or what was found; may be empty when `ok`.
    pub detail: String,
}

impl Check {
    /// A check that passed, without detail.
    pub fn passed(name: &'static str) -> Self {
        Self {
            name,
            ok: true,
            detail: String::new(),
        }
    }

    /// A check that failed for this reason.
    pub fn failed(name: &'static str, reason: impl Into<String>) -> Self {
        Self {
            name,
            ok: false,
            detail: reason.into(),
        }
    }
}
