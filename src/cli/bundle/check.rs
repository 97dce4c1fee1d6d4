//! `quorate bundle check`: reports all faults of a bundle, and what an upgrade to it does. Needs no server.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;

use super::load;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{print, warn};
use crate::resources::Bundle;
use crate::resources::bundle::{BUILTIN, PRUNE, RECREATE};
use crate::resources::deletion::Deletions;
use crate::resources::kinds;
use crate::resources::upgrade::{Change, Upgrade};

/// Arguments of `quorate bundle check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 valid, 4 a rolling update from the bundle of --from is not possible (the message names the rule), \
64 the bundle has faults.")]
pub struct CheckArgs {
    /// Directory of the bundle; "builtin" is the built-in one
    #[arg(value_name = "DIR", default_value = BUILTIN)]
    bundle: String,

    /// Directory of the bundle that is in place now, or "builtin"; shows what the upgrade does, and whether a rolling update can make it
    #[arg(long, value_name = "OLD")]
    from: Option<String>,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let bundle = load(&args.bundle)?;
    print(&describe(&bundle))?;
    for file in &bundle.ignored {
        warn(&format!("ignoring {file}: not a manifest (.yaml, .yml, .json)"));
    }
    for manifest in &bundle.manifests {
        let object = &manifest.object;
        if kinds::is_newer(&object.group, &object.kind) {
            warn(&format!(
                "{object}: this release does not know the kind, so only the API server can say whether it is namespaced"
            ));
        }
    }
    let Some(from) = &args.from else { return Ok(()) };
    let old = load(from)?;
    let upgrade = Upgrade::between(&old, &bundle);
    print(&describe_upgrade(&old, &upgrade))?;
    if let Some(held) = held(&old, &bundle, &upgrade) {
        warn(&held);
    }
    if let Some(violation) = &upgrade.rollback_violation {
        warn(&format!("a rolling update back is not possible: {violation}"));
    }
    if upgrade.violations.is_empty() {
        return Ok(());
    }
    let reasons: Vec<String> = upgrade.violations.iter().map(ToString::to_string).collect();
    Err(Failure::new(
        Exit::Refused,
        format!(
            "a rolling update from release {} to {} is not possible:\n  {}",
            old.release(),
            bundle.release(),
            reasons.join("\n  ")
        ),
    ))
}

/// Why the deletions of the upgrade wait for an operator, where none has allowed any.
fn held(old: &Bundle, new: &Bundle, upgrade: &Upgrade) -> Option<String> {
    let pruned = upgrade
        .changes
        .values()
        .filter(|change| **change == Change::Pruned);
    let deletions = Deletions {
        count: pruned.count(),
        renamed: old.name != new.name,
        retired: new.manifests.is_empty(),
        of: old.manifests.len(),
        allowed: 0,
    };
    deletions.held()
}

fn describe(bundle: &Bundle) -> String {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for manifest in &bundle.manifests {
        *kinds.entry(manifest.object.kind.as_str()).or_default() += 1;
    }
    let mut text = format!(
        "bundle {} at release {}\n  minReconcilerRelease {}, minApiserverRelease {}\n  {} objects\n",
        bundle.name,
        bundle.version,
        bundle.min_reconciler_release,
        bundle.min_apiserver_release,
        bundle.manifests.len()
    );
    for (kind, count) in kinds {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    {count:>4} {kind}");
    }
    text
}

fn describe_upgrade(old: &Bundle, upgrade: &Upgrade) -> String {
    let mut text = format!("from bundle {} at release {}\n", old.name, old.version);
    if upgrade.changes.is_empty() {
        text.push_str("  no changes\n");
    }
    for (object, change) in &upgrade.changes {
        let line = match change {
            Change::Added => format!("added      {object}"),
            Change::Changed => format!("changed    {object}"),
            Change::Recreated(fields) => format!("recreated  {object} ({})", immutable(fields)),
            Change::Refused(fields) => format!(
                "fails      {object} ({}; annotate it with {RECREATE}: \"true\" to recreate it)",
                immutable(fields)
            ),
            Change::Pruned => format!("pruned     {object}"),
            Change::Kept => format!("kept       {object} (annotate it with {PRUNE}: \"true\" to delete it)"),
        };
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn immutable(fields: &[&str]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|field| field.trim_start_matches('/').replace('/', "."))
        .collect();
    format!("immutable: {}", fields.join(", "))
}
