# What is claimed of the whole run: from the history of etcd, the audit log, and the kubelet's measurements.

# Follows the pods and the status in the etcd that holds both: every event with its revision.
watch_order() {
    start order-pods etcdctl_of_kubernetes watch --prefix /registry/pods/quorate-system/ --rev=1 -w json
    start order-status etcdctl_of_kubernetes watch /quorate/kubernetes/reconciler/status.json --rev=1 -w json
}

# Succeeds once a follower has got an event of this revision, or of a later one.
#   has_followed NAME REVISION
has_followed() { jq -se --argjson revision "$2" 'any(.[].Events // [] | .[]; .kv.mod_revision >= $revision)' "$logs/$1.log"; }

# Claims that at no revision a pod was ready that the status excludes. A pod that is being deleted is no longer counted, as
# in the endpoints of a Service.
check_order() {
    local events checked last
    # Until the followers have got what was last written: a change of each pod, which comes after all others, and the status.
    last=$(etcdctl_of_quorate put /e2e/end here -w json | jq .header.revision)
    kubectl -n quorate-system annotate pod --all --overwrite "e2e=$last" >/dev/null
    eventually 20 has_followed order-pods "$last"
    last=$(etcdctl_of_quorate get /quorate/kubernetes/reconciler/status.json -w json | jq '.kvs[0].mod_revision')
    eventually 20 has_followed order-status "$last"
    kubectl -n quorate-system get configmaps -o json | jq '[.items[] | select(.data["bundle.yaml"]) |
        {key: .metadata.name, value: (.data["bundle.yaml"] | [scan("(release|minReconcilerRelease): *([0-9.]+)")] |
         map({key: .[0], value: .[1]}) | from_entries)}] | from_entries' >"$work/releases.json"
    events=$(cat "$logs/order-pods.log" "$logs/order-status.log" | jq -sc --slurpfile releases "$work/releases.json" \
        -f "$here/order.jq") || fail "the history cannot be read"
    echo "$events" >"$logs/order.json"
    checked=$(jq .checked <<<"$events")
    is "$(jq -c .violations <<<"$events")" "[]" || fail "pods were ready that the status excluded: $(jq -c .violations <<<"$events" | head -c 2000)"
    # A history without a pod that is ready, or without an excluded one, would show nothing.
    [ "$(jq .ready <<<"$events")" -gt 50 ] && [ "$(jq .excluded <<<"$events")" -gt 0 ] || fail "the history is too short: $events"
    say "order of serving: $checked revisions with $(jq .ready <<<"$events") ready and $(jq .excluded <<<"$events") excluded pods, none of them both"
}

# Claims that the API server refused no request of the controllers.
check_audit() {
    local all refused
    all=$(jq -s length "$logs/audit.log")
    refused=$(jq -c 'select(.responseStatus.code == 403) | {verb, uri: .requestURI, message: .responseStatus.message}' "$logs/audit.log" | sort | uniq -c)
    [ "$all" -gt 50 ] || fail "the audit log holds $all requests of the controllers only"
    [ -z "$refused" ] || fail "refused with 403: $refused"
    say "audit: $all requests of the controllers, none refused with 403"
}

# The measurements of the kubelets: pod, container, CPU seconds, bytes in use.
measured() {
    local node
    for node in 0 1; do
        kubectl get --raw "/api/v1/nodes/node-$node/proxy/metrics/resource"
    done | awk '
        match($0, /^container_(cpu_usage_seconds_total|memory_working_set_bytes)\{container="[^"]*",namespace="quorate-[a-z]*",pod="[^"]*"\}/) {
            split($0, part, "\""); value[part[6] " " part[2], /^container_cpu/] = $2; seen[part[6] " " part[2]]
        }
        END { for (name in seen) print name, value[name, 1], value[name, 0] }' | sort
}
# Claims that every container of Quorate and its etcd stays within what it requests, over this many seconds.
check_resources() {
    local time=${1:-${E2E_MEASURE:-30}}
    kubectl get pods -A -o json | jq -r '
        def milli: if . == null then 0 elif endswith("m") then .[:-1] | tonumber else tonumber * 1000 end;
        .items[] | select(.metadata.namespace | startswith("quorate-")) | . as $pod | .spec.containers[] |
        [$pod.metadata.name, .name, (.resources.requests.cpu | milli), (.resources.requests.memory | rtrimstr("Mi"))] | @tsv' |
        tr '\t' ' ' | sort >"$work/requests"
    measured >"$work/measured-before"
    sleep "$time"
    measured >"$work/measured-after"
    awk -v time="$time" '
        FILENAME ~ /requests$/ { cpu[$1 " " $2] = $3; memory[$1 " " $2] = $4; wanted++; next }
        FILENAME ~ /before$/ { before[$1 " " $2] = $3; next }
        { name = $1 " " $2
          if (!(name in before) || !(name in cpu)) next
          used = ($3 - before[name]) / time * 1000
          printf "%-32s %-8s CPU %6.1f of %dm   memory %6.1f of %d MiB\n", $1, $2, used, cpu[name], $4 / 1048576, memory[name]
          count++
          if (used > cpu[name] || $4 / 1048576 > memory[name]) over++ }
        END { if (over || count != wanted || !count) exit 1 }' "$work/requests" "$work/measured-before" "$work/measured-after" >"$work/resources" ||
        fail "over the requests, or not measured: $(cat "$work/resources")"
    while read -r line; do say "$line"; done <"$work/resources"
}

# The claim about the order, on histories that are made up: a sound one, and one for each way to be wrong.
# In a shell of its own: its functions have names that others have too.
try_order() (
    local pod status sound wrong
    event() { # REVISION KEY VALUE
        jq -nc --argjson revision "$1" --arg key "$2" --argjson value "$3" \
            '{Events: [{kv: {mod_revision: $revision, key: ($key | @base64), value: ($value | tojson | @base64)}}]}'
    }
    pod() { # REVISION RELEASE READY [DELETED]
        event "$1" "/registry/pods/quorate-system/$2" "$(jq -nc --arg release "$2" --arg ready "$3" --arg deleted "${4:-}" '{
            metadata: ({name: $release, labels: {"app.kubernetes.io/component": "controller"}} +
                if $deleted == "" then {} else {deletionTimestamp: $deleted} end),
            spec: {volumes: [{name: "bundle", configMap: {name: $release}}]},
            status: {conditions: [{type: "Ready", status: $ready}]}}')"
    }
    status() { # REVISION VERSION LEAST
        event "$1" /status.json "{\"state\": \"DONE\", \"version\": \"$2\", \"minimumCompatibleRelease\": \"$3\"}"
    }
    violations() {
        jq -sc --slurpfile releases <(echo '{"1.0.0": {"release": "1.0.0", "minReconcilerRelease": "1.0.0"},
            "1.1.0": {"release": "1.1.0", "minReconcilerRelease": "1.1.0"}}') -f "$here/order.jq" | jq -c '[.violations[].revision]'
    }
    # An old replica that is on its way out, or no longer ready, harms nothing; nor does a new one that waits.
    is "$({ status 1 1.0.0 1.0.0; pod 2 1.0.0 True; pod 3 1.1.0 False; pod 4 1.0.0 True now; status 5 1.1.0 1.1.0; pod 6 1.1.0 True; } |
        violations)" "[]" || fail "a sound history is taken for a wrong one"
    # Before there is a status; before the state was reconciled; and an old one that is still ready once it is excluded.
    is "$({ pod 1 1.0.0 True; status 2 1.0.0 1.0.0; } | violations)" "[1]" || fail "a pod before the status is not found"
    is "$({ status 1 1.0.0 1.0.0; pod 2 1.1.0 True; } | violations)" "[2]" || fail "a pod that is too new is not found"
    is "$({ pod 2 1.0.0 True; status 1 1.0.0 1.0.0; status 3 1.0.0 1.1.0; } | violations)" "[3]" || fail "a pod that is too old is not found"
)
