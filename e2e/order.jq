# From the watches of etcd to what was wrong with the order of serving. $releases[0] says of each ConfigMap of a bundle which
# release it is and which one must have reconciled before it serves; a pod without one runs the built-in bundle, and the
# status says which release that is.
def release: split("[-+]"; "")[0] | split(".") | map(tonumber);
def events: .[] | .Events // [] | .[] | {
    revision: .kv.mod_revision, key: (.kv.key | @base64d),
    value: (if .type == 1 or .type == "DELETE" then null else (.kv.value | @base64d | fromjson) end)
};
def is_ready: .metadata.deletionTimestamp == null and any(.status.conditions[]?; .type == "Ready" and .status == "True");
def bundle: $releases[0][(.spec.volumes[]? | select(.name == "bundle").configMap.name)] // {release: "0.1.0", minReconcilerRelease: "0.1.0"};
def excluded_by($status): bundle as $bundle | $status.version == null or
    ($bundle.release | release) < ($status.minimumCompatibleRelease | release) or
    ($status.version | release) < ($bundle.minReconcilerRelease | release);

reduce ([events] | sort_by(.revision))[] as $event (
    {pods: {}, status: null, checked: 0, ready: 0, excluded: 0, violations: []};
    (if $event.key | startswith("/registry/pods/") then
        if $event.value == null then del(.pods[$event.key])
        elif $event.value.metadata.labels["app.kubernetes.io/component"] == "controller" then .pods[$event.key] = $event.value
        else . end
     else .status = $event.value end) |
    .checked += 1 |
    .status as $status |
    [.pods[] | {name: .metadata.name, ready: is_ready, excluded: excluded_by($status), release: bundle.release}] as $pods |
    .ready += ([$pods[] | select(.ready)] | length) |
    .excluded += ([$pods[] | select(.excluded)] | length) |
    .violations += [$pods[] | select(.ready and .excluded) | . + {revision: $event.revision,
        status: ($status | "\(.state) by \(.version), least \(.minimumCompatibleRelease)")}]) |
del(.pods, .status)
