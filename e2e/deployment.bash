# The Deployment of Quorate: its manifests, as docs/ say, and how it is.

# A copy of deploy/ and docs/, where the commands of the manual run.
prepare_manifests() {
    rm -rf "$work/deploy"
    mkdir -p "$work/deploy"
    cp -r "$repository/deploy" "$repository/docs" "$work/deploy"
    find "$work/deploy" \( -name tls -o -name ca \) -type d -exec rm -rf {} +
    # This Kubernetes has PodDisruptionBudgets as v1beta1 only, and without the policy for unhealthy pods. The manifests need
    # 1.27, as docs/operate.md says; nothing else in them is newer.
    if ! kubectl get --raw /apis/policy/v1 >/dev/null 2>&1; then
        find "$work/deploy" -name '*poddisruptionbudget.yaml' -exec sed -i \
            -e 's|^apiVersion: policy/v1$|apiVersion: policy/v1beta1|' -e '/unhealthyPodEvictionPolicy/d' {} +
    fi
    rewrite_for_old_kubectl
}

# For kubectl before 1.21, whose kustomize takes folders only as `bases` and patches only as `patchesStrategicMerge`. Newer ones
# warn of these fields.
rewrite_for_old_kubectl() {
    local file
    if [ "$(kubectl version --client -o json | jq -r ".clientVersion.minor | sub(\"[+]\"; \"\") | tonumber")" -ge 21 ]; then return; fi
    for file in "$work/deploy/deploy"/{overlays,agents}/*/kustomization.yaml; do
        sed -e "s/^patches:$/patchesStrategicMerge:/" -e "s/^  - path: /  - /" -e "/^  - \.\.\/\.\.\//d" "$file" >"$file.new"
        { echo bases: ; grep "^  - \.\./\.\./" "$file"; } >>"$file.new" || { cp "$file" "$file.new"; }
        mv "$file.new" "$file"
    done
}

# Runs the commands of a section of docs/operate.md that contain a word, but for those of a builder of images, which
# make_images stands in for.
#   manual SECTION WORD
manual() {
    local commands
    commands=$(awk -v section="## $1" '
        /^##+ / { inside = ($0 == section) }
        /^```sh$/ { code = inside; next }
        /^```$/ { code = 0 }
        code' "$work/deploy/docs/operate.md" | grep -v '^docker build' | grep -F "$2")
    [ -n "$commands" ] || fail "docs/operate.md has no commands with $2 under $1"
    (cd "$work/deploy" && bash -euxc "$commands") >>"$logs/manual.log" 2>&1 ||
        fail "a command of docs/operate.md failed: $(tail -n 5 "$logs/manual.log")"
}

# Runs the commands in the comment of a kustomization that begin with some words, in its folder.
#   instructions FOLDER WORDS
instructions() {
    local commands
    commands=$(sed -n 's/^#   //p' "$work/deploy/deploy/$1/kustomization.yaml" | grep -F "$2")
    [ -n "$commands" ] || fail "the kustomization of $1 has no instructions with $2"
    (cd "$work/deploy/deploy/$1" && bash -euxc "$commands") >>"$logs/manual.log" 2>&1 ||
        fail "an instruction of $1 failed: $(tail -n 5 "$logs/manual.log")"
}

apply() {
    kubectl apply -k "$work/deploy/deploy/$1" >>"$logs/manual.log" 2>&1 || fail "$1 was not applied: $(tail -n 5 "$logs/manual.log")"
}

# Commands on this machine reach the etcd of an overlay with its own settings and certificates.
use_etcd_of() {
    local overlay=$work/deploy/deploy/overlays/$1
    QUORATE_ETCD_ENDPOINTS=$(sed -n 's/.*- QUORATE_ETCD_ENDPOINTS=//p' "$overlay/kustomization.yaml")
    QUORATE_ETCD_CACERT=$overlay/tls/ca.crt
    QUORATE_ETCD_CERT=$overlay/tls/tls.crt
    # By the name that `quorate ca issue` gives it.
    if [ ! -e "$QUORATE_ETCD_CERT" ]; then QUORATE_ETCD_CERT=$overlay/tls/client.crt; fi
    QUORATE_ETCD_KEY=${QUORATE_ETCD_CERT%.crt}.key
    export QUORATE_ETCD_ENDPOINTS QUORATE_ETCD_CACERT QUORATE_ETCD_CERT QUORATE_ETCD_KEY
}
etcdctl_of_quorate() {
    env ETCDCTL_API=3 etcdctl --endpoints="$QUORATE_ETCD_ENDPOINTS" --cacert="$QUORATE_ETCD_CACERT" \
        --cert="$QUORATE_ETCD_CERT" --key="$QUORATE_ETCD_KEY" "$@"
}

status() { quorate status -o json; }
# The status in one line: DONE by 1.0.0, least 1.0.0
status_line() {
    status | jq -er '.status | "\(.state) by \(.version | sub("[-+].*"; "")), least \(.minimumCompatibleRelease)"'
}
status_is() { is "$(status_line)" "$1"; }
leader() { status | jq -er '.leader.name'; }
leads_another_than() {
    local now
    now=$(leader) && [ "$now" != "$1" ] || { echo "$now leads"; return 1; }
}
# The pods of the controllers, that run and are not on their way out: name, release's ConfigMap, node, ready, restarts.
controllers() {
    kubectl -n quorate-system get pods -l app.kubernetes.io/component=controller -o json | jq -r '.items[] |
        select(.metadata.deletionTimestamp == null) |
        [.metadata.name, (.spec.volumes[] | select(.name == "bundle").configMap.name), .spec.nodeName,
         (any(.status.conditions[]?; .type == "Ready" and .status == "True")),
         (.status.containerStatuses[0].restartCount // 0)] | @tsv'
}
ready_controllers() { controllers | awk '$4 == "true"' | wc -l; }
# Succeeds if at least this many are ready.
at_least_ready() { local now; now=$(ready_controllers); [ "$now" -ge "$1" ] || { echo "$now ready"; return 1; }; }
exactly_ready() { is "$(ready_controllers)" "$1"; }
rolled_out() {
    kubectl -n quorate-system rollout status "${2:-deployment/quorate}" --timeout="${1}s" >>"$logs/manual.log" 2>&1 ||
        fail "${2:-deployment/quorate} has not rolled out within $1 s: $(controllers; quorate status 2>&1)"
}
restarts() { controllers | awk '{ sum += $5 } END { print sum + 0 }'; }

# Writes a bundle of a release: one object that all releases have, one that this one alone has.
#   platform RELEASE MIN_RECONCILER MIN_APISERVER
platform() {
    local folder=$work/bundles/$1
    mkdir -p "$folder"
    cat >"$folder/bundle.yaml" <<YAML
name: platform
release: $1
minReconcilerRelease: $2
minApiserverRelease: $3
YAML
    cat >"$folder/objects.yaml" <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: platform, namespace: default}
data: {release: "$1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: platform-${1//./-}, namespace: default}
data: {release: "$1"}
YAML
}
# Puts the bundle of a release into the overlay with the permissions that the change from another one needs, and applies it.
#   deploy_release OVERLAY NEW OLD
deploy_release() {
    local target=$work/deploy/deploy/bundles/platform from=$3
    mkdir -p "$target/bundle"
    if [ "$from" != builtin ]; then from=$work/bundles/$from; fi
    cp "$work/bundles/$2"/* "$target/bundle/"
    quorate bundle rbac "$target/bundle" --from "$from" >"$target/rbac.yaml"
    apply "overlays/$1"
}
# The release that the objects in place are of.
in_place() { kubectl -n default get configmap platform -o jsonpath='{.data.release}'; }
in_place_is() { is "$(in_place)" "$1"; }
