//! `quorate bundle diff`: shows what a pass would do now.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::load;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::kubernetes;
use crate::cli::output::{print, warn};
use crate::kube::{Limits, ObjectRef};
use crate::resources::Inventory;
use crate::resources::bundle::BUILTIN;
use crate::resources::preview::{Preview, preview};

/// Arguments of `quorate bundle diff`.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes nothing, in Kubernetes or in etcd. The inventory in etcd says which objects a pass would prune.

Exit codes: 0 done, with or without differences; 5 with --exit-code, if objects would change; 4 an object cannot be \
applied (the output shows the reason); 1 failed.")]
pub struct DiffArgs {
    /// Directory of the bundle, in place of --bundle
    #[arg(value_name = "DIR")]
    directory: Option<String>,

    /// Directory of the bundle; "builtin" is the built-in one
    #[arg(long, env = "QUORATE_BUNDLE", value_name = "DIR", default_value = BUILTIN)]
    bundle: String,

    /// Kubeconfig file [default: in-cluster, then $KUBECONFIG, then ~/.kube/config]
    #[arg(long, env = "QUORATE_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Exit with code 5 if objects would change
    #[arg(long)]
    exit_code: bool,
}

/// Runs the command.
pub async fn run(args: &DiffArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let bundle = load(args.directory.as_ref().unwrap_or(&args.bundle))?;
    let kube = kubernetes::connect(args.kubeconfig.clone(), Limits::default())
        .await
        .map_err(|unconnected| Failure::from(unconnected).hint("give --kubeconfig FILE"))?;
    let mut inventory = Inventory::new(connect(etcd).await?);
    inventory
        .load()
        .await
        .map_err(|error| Failure::failed(format!("cannot read the inventory: {error}")))?;
    let previews = preview(&kube, &bundle, &inventory)
        .await
        .map_err(Failure::failed)?;

    for (object, warning) in &previews.warnings {
        warn(&format!("{object}: {warning}"));
    }
    let previews = previews.objects;
    let mut text = String::new();
    for (object, preview) in &previews {
        show(&mut text, object, preview);
    }
    let count = |wanted: fn(&Preview) -> bool| previews.values().filter(|preview| wanted(preview)).count();
    let refused = count(|preview| matches!(preview, Preview::Refused(_)));
    let settled = count(|preview| matches!(preview, Preview::Unchanged | Preview::Keep(_)));
    let changes = previews.len() - settled - refused;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{changes} of {} objects would change, {refused} cannot be applied",
        previews.len()
    );
    print(&text)?;
    if refused > 0 {
        let failure = Failure::new(Exit::Refused, format!("{refused} objects cannot be applied"));
        return Err(failure.hint("the lines with ! say why; missing permissions: quorate bundle rbac"));
    }
    if args.exit_code && changes > 0 {
        return Err(Failure::conflict("the cluster differs from the bundle"));
    }
    Ok(())
}

fn show(text: &mut String, object: &ObjectRef, preview: &Preview) {
    let line = match preview {
        Preview::Unchanged => return,
        Preview::Create => format!("+ {object}"),
        Preview::Change(_) => format!("~ {object}"),
        Preview::Recreate(why) => format!("-+ {object}: deleted and recreated, immutable fields: {why}"),
        Preview::Prune => format!("- {object}: no longer in the bundle"),
        Preview::Keep(why) => format!("  {object}: no longer in the bundle, kept: {why}"),
        Preview::Refused(why) => format!("! {object}: {why}"),
    };
    let _ = writeln!(text, "{line}");
    if let Preview::Change(differences) = preview {
        for difference in differences {
            for line in difference.to_string().lines() {
                let _ = writeln!(text, "    {line}");
            }
        }
    }
}
