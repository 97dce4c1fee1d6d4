//! Immutable fields: the forecast of `bundle check` against a real server.

use quorate::resources::Bundle;
use quorate::resources::upgrade::{Change, Upgrade};

use super::faults::{Fault, FaultProxy};
use super::site::{Site, bundle, config_map, ended, expect_success};

/// Objects with `OLD` in one immutable field each: every field of `kinds::immutable_fields` once. `ALLOWED` stands where an
/// object has state or dependants, so that its manifest has to allow that it is recreated.
const FROZEN: &str = "
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: role-ref},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: OLD}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: role-ref, namespace: default},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: OLD}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: provisioner}, provisioner: OLD.example.com}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: parameters}, provisioner: a.example.com,
  parameters: {tier: OLD}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: reclaim-policy}, provisioner: a.example.com,
  reclaimPolicy: OLD-reclaim}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: binding-mode}, provisioner: a.example.com,
  volumeBindingMode: OLD-binding}
---
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: attach-required}, spec: {attachRequired: OLD-bool}}
---
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: lifecycle-modes},
  spec: {volumeLifecycleModes: [OLD-lifecycle]}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: handler}, handler: OLD}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: value}, value: OLD-number}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: preemption}, value: 1,
  preemptionPolicy: OLD-preemption}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: selector, namespace: default, ALLOWED}, spec: WORKLOAD}
---
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: selector, namespace: default, ALLOWED}, spec: WORKLOAD}
---
{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: selector, namespace: default, ALLOWED}, spec: WORKLOAD}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: service-name, namespace: default, ALLOWED},
  spec: {serviceName: OLD, selector: {matchLabels: {app: a}},
    template: {metadata: {labels: {app: a}}, spec: {containers: [{name: main, image: a}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: template, namespace: default},
  spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: OLD}]}}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: type, namespace: default, ALLOWED}, type: example.com/OLD}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: data, namespace: default}, immutable: true, data: {key: OLD}}
";

const WORKLOAD: &str = "{selector: {matchLabels: {app: OLD}},
    template: {metadata: {labels: {app: OLD}}, spec: {containers: [{name: main, image: a}]}}}";

/// Values of fields that accept only certain ones, before and after.
const CHOICES: [(&str, &str, &str); 6] = [
    ("OLD-reclaim", "Delete", "Retain"),
    ("OLD-binding", "Immediate", "WaitForFirstConsumer"),
    ("OLD-bool", "true", "false"),
    ("OLD-lifecycle", "Persistent", "Ephemeral"),
    ("OLD-number", "1", "2"),
    ("OLD-preemption", "Never", "PreemptLowerPriority"),
];

fn frozen(changed: bool) -> Bundle {
    let mut manifests = FROZEN
        .replace("WORKLOAD", WORKLOAD)
        .replace("ALLOWED", "annotations: {quorate.dev/recreate: 'true'}");
    for (placeholder, before, after) in CHOICES {
        manifests = manifests.replace(placeholder, if changed { after } else { before });
    }
    bundle(&manifests.replace("OLD", if changed { "new" } else { "old" }))
}

#[tokio::test]
async fn every_object_that_check_says_would_be_recreated_is_recreated() {
    let (before, after) = (frozen(false), frozen(true));
    let forecast = Upgrade::between(&before, &after).changes;
    assert_eq!(forecast.len(), after.manifests.len());
    for (object, change) in &forecast {
        assert!(matches!(change, Change::Recreated(_)), "{object}: {change:?}");
    }
    let site = Site::start().await;
    expect_success(&site.pass(before).await);
    let report = site.pass(after).await;
    expect_success(&report);
    let forecast: Vec<String> = forecast.keys().map(ToString::to_string).collect();
    assert_eq!(ended(&report, "recreated"), forecast, "{:#?}", report.objects());
}

#[tokio::test]
async fn an_object_that_was_recreated_without_a_reply_is_pruned_with_its_bundle() {
    let binding = |role: &str| {
        format!(
            "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: bound}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}\n"
        )
    };
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bound";
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&binding("view"))).await);
    let before = site.uid(path).await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    // The update that is refused; then the creation, and what is tried because of its lost reply.
    proxy.fail("PATCH", "clusterrolebindings/bound", 1, Fault::Nothing);
    proxy.fail(
        "PATCH",
        "clusterrolebindings/bound",
        usize::MAX,
        Fault::LoseReply(400),
    );
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&binding("edit")))
        .await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.count("failed"), 1, "{}", report.summary());
    assert_ne!(site.uid(path).await, before);

    // The next leader has a bundle that does not hold it any more.
    let report = site.pass(bundle(&config_map("a", "v"))).await;
    expect_success(&report);
    assert_eq!(site.get(path).await, None, "{:#?}", report.objects());
}
