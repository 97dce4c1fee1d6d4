//! `quorate bundle rbac`: prints the permissions that the controller needs for a bundle.

use clap::Args;

use super::load;
use crate::cli::exit::Failure;
use crate::cli::output::{print, warn};
use crate::resources::bundle::BUILTIN;
use crate::resources::permissions::Permissions;
use crate::store::object::text::to_yaml;

/// Arguments of `quorate bundle rbac`.
#[derive(Args, Debug)]
pub struct RbacArgs {
    /// Directory of the bundle; "builtin" is the built-in one
    #[arg(value_name = "DIR", default_value = BUILTIN)]
    bundle: String,

    /// Directory of the bundle that is in place now, or "builtin"; adds the permissions to prune its objects
    #[arg(long, value_name = "OLD")]
    from: Option<String>,

    /// Service account of the controller
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "quorate-system/quorate", value_parser = service_account)]
    service_account: (String, String),
}

fn service_account(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("expected NAMESPACE/NAME".to_owned()),
    }
}

/// The comment at the top of the output, for a reader who reviews the permissions.
const PREAMBLE: &str = "\
# The permissions of the controller for its bundle, printed by `quorate bundle rbac`.
#
# Every permission to write names its object, creations included: the controller creates by server-side apply at the
# object's own URL. Kubernetes can restrict that to names, unlike a create by POST. Lists and watches cover a whole kind.
# escalate and bind, on named roles only, allow the controller to write roles that grant more than it holds.
# Pruning the objects of an earlier bundle needs permissions on their names: `quorate bundle rbac DIR --from OLD`.
";

/// Runs the command.
pub fn run(args: &RbacArgs) -> Result<(), Failure> {
    let bundle = load(&args.bundle)?;
    let before = args.from.as_deref().map(load).transpose()?;
    let permissions = Permissions::of(&bundle, before.as_ref());
    for guessed in permissions.guessed() {
        warn(&format!(
            "{guessed} is a guess, only the API server knows the plural; check it with `kubectl api-resources`"
        ));
    }
    let (namespace, name) = &args.service_account;
    let documents: Vec<String> = permissions.objects(namespace, name).iter().map(to_yaml).collect();
    print(&format!("{PREAMBLE}{}", documents.join("---\n")))?;
    Ok(())
}
