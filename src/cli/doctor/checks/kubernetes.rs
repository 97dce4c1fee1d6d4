//! The API server: whether it answers, its release, and what it lets this client do. Pure.

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{KubernetesSeen, Seen};
use crate::kube::Permission;

/// The oldest release that the controller works with (docs/operate.md): server-side apply as it is used here, and every API of the
/// built-in bundle.
const LEAST: (u32, u32) = (1, 20);

/// The oldest release that the manifests of `deploy` are for (docs/operate.md): the budget of their pods lets a node be drained
/// although a replica on it is not ready.
const OF_THE_MANIFESTS: (u32, u32) = (1, 27);

/// How many permissions a finding names.
const NAMED: usize = 8;

/// Checks the API server.
pub fn check(seen: &Seen, list: &mut Checklist) {
    match &seen.kubernetes {
        KubernetesSeen::Skipped(_) => {}
        KubernetesSeen::Unusable(why) => list.check(Some(unreachable("API server", why))),
        KubernetesSeen::Asked {
            server,
            version,
            reviews,
        } => {
            let subject = format!("API server {server}");
            list.check(match version {
                Err(why) => Some(unreachable(&subject, why)),
                Ok(version) => too_old(&subject, version),
            });
            if version.is_ok() {
                list.made += reviews.len();
                list.findings.extend(missing(&subject, reviews));
                list.findings.extend(unknown(&subject, reviews));
            }
        }
    }
}

fn unreachable(subject: &str, why: &str) -> Finding {
    Finding::fault(
        Reason::KubernetesUnreachable,
        subject,
        format!("it cannot be asked: {why}"),
    )
    .matters("no resource is kept in place, and after a restart no release is admitted")
    .remedy("give --kubeconfig FILE, or --no-kubernetes where Quorate runs without; from a pod, the NetworkPolicy must allow ports 443 and 6443")
}

/// The first two numbers of a version such as `v1.31.4-eks-1`.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn too_old(subject: &str, version: &str) -> Option<Finding> {
    let release = minor(version)?;
    let least = [LEAST, OF_THE_MANIFESTS]
        .into_iter()
        .find(|least| release < *least)?;
    let (major, minor) = least;
    let older = format!("Kubernetes {version} is older than {major}.{minor}");
    let found = match least == LEAST {
        true => Finding::fault(Reason::KubernetesRelease, subject, older)
            .matters("it does not serve what the controller needs"),
        false => Finding::note(
            Reason::KubernetesRelease,
            subject,
            format!("{older}, for which the manifests of deploy/ are"),
        )
        .matters("the controller works with it; where it runs by these manifests, a node with a replica that is not ready may not be drained"),
    };
    Some(found.remedy(format!("upgrade Kubernetes to {major}.{minor} or newer")))
}

fn missing(subject: &str, reviews: &[(Permission, Result<bool, String>)]) -> Option<Finding> {
    let denied = reviews.iter().filter(|(_, allowed)| *allowed == Ok(false));
    let denied: Vec<String> = denied.map(|(permission, _)| permission.to_string()).collect();
    if denied.is_empty() {
        return None;
    }
    let some = denied.iter().take(NAMED).map(String::as_str);
    let some = some.collect::<Vec<_>>().join(", ");
    let more = match denied.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(
        Finding::fault(
            Reason::KubernetesRights,
            subject,
            format!(
                "{} of the {} permissions that the bundle needs are missing: {some}{more}",
                denied.len(),
                reviews.len()
            ),
        )
        .matters("the objects that they are for are not kept in place, so the state does not become DONE")
        .remedy(
            "apply what quorate bundle rbac DIR prints (with --from OLD before an upgrade). Is this the client of the replicas? Run doctor \
             in a pod of theirs (kubectl exec), or with their kubeconfig",
        ),
    )
}

fn unknown(subject: &str, reviews: &[(Permission, Result<bool, String>)]) -> Option<Finding> {
    let failed: Vec<&String> = reviews
        .iter()
        .filter_map(|(_, allowed)| allowed.as_ref().err())
        .collect();
    let first = failed.first()?;
    Some(
        Finding::warning(
            Reason::NotAnswered,
            subject,
            format!(
                "{} of {} permissions could not be reviewed: {first}",
                failed.len(),
                reviews.len()
            ),
        )
        .matters("whether the bundle can be kept in place is not known")
        .remedy("run doctor again; every authenticated user may ask (system:basic-user)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::Severity;

    fn review(name: &str, allowed: Result<bool, String>) -> (Permission, Result<bool, String>) {
        let permission = Permission {
            verb: "patch".to_owned(),
            resource: "configmaps".to_owned(),
            name: name.to_owned(),
            namespace: None,
        };
        (permission, allowed)
    }

    #[test]
    fn missing_permissions_are_counted_and_the_first_are_named() {
        assert!(missing("s", &[review("a", Ok(true))]).is_none());
        let many: Vec<_> = (0..10).map(|n| review(&n.to_string(), Ok(false))).collect();
        let found = missing("s", &many).unwrap();
        assert!(found.what.starts_with("10 of the 10 permissions"), "{found:?}");
        assert!(found.what.contains("patch configmaps \"0\", "), "{found:?}");
        assert!(found.what.ends_with("and 2 more"), "{found:?}");
        assert!(unknown("s", &many).is_none());
        let failed = unknown("s", &[review("a", Err("timed out".to_owned()))]).unwrap();
        assert!(failed.what.contains("1 of 1"), "{failed:?}");
    }

    #[test]
    fn a_release_is_compared_by_its_first_two_numbers() {
        for (version, severity) in [
            ("v1.19.16", Some(Severity::Fault)),
            ("v1.20.2", Some(Severity::Note)),
            ("v1.26.15", Some(Severity::Note)),
            ("v1.27.0", None),
            ("v1.31.4-eks-1", None),
            ("odd", None),
        ] {
            let found = too_old("s", version).map(|found| found.severity);
            assert_eq!(found, severity, "{version}");
        }
    }
}
