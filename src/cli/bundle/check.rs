//! `quorate bundle check`: offline, with all faults at once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;

use super::load;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{print, warn};
use crate::resources::Bundle;
use crate::resources::bundle::{BUILTIN, PRUNE, RECREATE};
use crate::resources::upgrade::{Change, Upgrade};

/// Arguments of `quorate bundle check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 the bundle is good, 4 a rolling update cannot go from the other bundle to this one (the message names the rule), \
64 the bundle has faults.")]
pub struct CheckArgs {
    /// Directory of the bundle; "builtin" is the built-in one
    #[arg(value_name = "DIR", default_value = BUILTIN)]
    bundle: String,

    /// Directory of the bundle that is in place now (or "builtin"): what does the upgrade do, and can a rolling update reach it?
    #[arg(long, value_name = "OLD")]
    from: Option<String>,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let bundle = load(&args.bundle)?;
    print(&describe(&bundle))?;
    for file in &bundle.ignored {
        warn(&format!(
            "{file} is no manifest by its name (.yaml, .yml, .json): it is ignored"
        ));
    }
    let Some(from) = &args.from else { return Ok(()) };
    let old = load(from)?;
    let upgrade = Upgrade::between(&old, &bundle);
    print(&describe_upgrade(&old, &upgrade))?;
    if let Some(rollback_violation) = &upgrade.rollback_violation {
        warn(&format!("there is no rolling way back: {rollback_violation}"));
    }
    if upgrade.violations.is_empty() {
        return Ok(());
    }
    let reasons: Vec<String> = upgrade.violations.iter().map(ToString::to_string).collect();
    Err(Failure::new(
        Exit::Refused,
        format!(
            "release {} cannot be reached from {}:\n  {}",
            bundle.release(),
            old.release(),
            reasons.join("\n  ")
        ),
    ))
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
    let mut text = format!("from {} at release {}\n", old.name, old.version);
    if upgrade.changes.is_empty() {
        text.push_str("  no object changes\n");
    }
    for (object, change) in &upgrade.changes {
        let line = match change {
            Change::Added => format!("added      {object}"),
            Change::Changed => format!("changed    {object}"),
            Change::Recreated(fields) => format!("recreated  {object} ({})", cannot_change(fields)),
            Change::Refused(fields) => format!(
                "fails      {object} ({}; to delete it and create it anew, annotate it with {RECREATE}: \"true\")",
                cannot_change(fields)
            ),
            Change::Pruned => format!("pruned     {object}"),
            Change::Kept => format!("kept       {object} (deleted only if annotated with {PRUNE}: \"true\")"),
        };
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn cannot_change(fields: &[&str]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|field| field.trim_start_matches('/').replace('/', "."))
        .collect();
    format!("{} cannot change", fields.join(", "))
}
