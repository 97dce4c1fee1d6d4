# The overlay with an etcd of its own.

bundled() {
    install_bundled
    lose_members
    etcd_away
    agents
    drain_a_member
    step "controllers, etcd and agents stay within their requests"
    check_resources
    step "no request was refused"
    check_audit
}

install_bundled() {
    step "the bundled overlay is installed as the manual says"
    overlay=overlays/bundled-etcd
    prepare_manifests
    make_volumes
    instructions "$overlay" "quorate ca"
    use_etcd_of bundled-etcd
    manual Deploy bundled-etcd
    rolled_out 120 statefulset/quorate-etcd
    rolled_out 120
    eventually 30 status_is "DONE by 0.1.0, least 0.1.0"
}

# What a provisioner of the cluster would make for the claims of the StatefulSet: two on node-0, one on node-1.
make_volumes() {
    local number
    for number in 0 1 2; do
        mkdir -p "$work/volumes/$number"
        jq -n --arg path "$work/volumes/$number" --arg node "node-$((number / 2))" --arg name "volume-$number" '{
            apiVersion: "v1", kind: "PersistentVolume", metadata: {name: $name}, spec: {capacity: {storage: "4Gi"},
            accessModes: ["ReadWriteOnce"], local: {path: $path}, nodeAffinity: {required: {nodeSelectorTerms: [
            {matchExpressions: [{key: "kubernetes.io/hostname", operator: "In", values: [$node]}]}]}}}}'
    done | kubectl apply -f - >/dev/null
}

members_ready() {
    is "$(kubectl -n quorate-system get statefulset quorate-etcd -o jsonpath='{.status.readyReplicas}')" "$1"
}

lose_members() {
    local before=$(restarts) member
    step "a member of etcd is killed, and the pod of the raft leader deleted"
    kill -KILL "$(process_of quorate-etcd-0 etcd)"
    stays 5 at_least_ready 2
    eventually 60 members_ready 3
    eventually 30 exactly_ready 3
    member=$(etcdctl_of_quorate endpoint status -w json | jq -r '.[] | select(.Status.header.member_id == .Status.leader) |
        .Endpoint | capture("//(?<pod>[^.]*)").pod')
    kubectl -n quorate-system delete pod "$member" >/dev/null
    eventually 90 members_ready 3
    eventually 30 exactly_ready 3
    status_is "DONE by 0.1.0, least 0.1.0" || fail "the status changed"
    is "$(restarts)" "$before" || fail "replicas were restarted"
}

etcd_away() {
    local time=${E2E_ETCD_AWAY:-60} before=$(restarts) begun
    step "etcd is away for $time s"
    kubectl -n quorate-system scale statefulset/quorate-etcd --replicas=0 >/dev/null
    eventually 60 exactly_ready 0
    stays "$time" exactly_ready 0
    is "$(restarts)" "$before" || fail "replicas were restarted while etcd was away"
    kubectl -n quorate-system scale statefulset/quorate-etcd --replicas=3 >/dev/null
    eventually 120 members_ready 3
    begun=$(milliseconds)
    eventually 60 exactly_ready 3
    say "all replicas were ready $(($(milliseconds) - begun)) ms after etcd was"
    is "$(restarts)" "$before" || fail "replicas were restarted"
    eventually 30 status_is "DONE by 0.1.0, least 0.1.0"
}

agents() {
    step "the controllers serve agents, which run as a DaemonSet"
    # As the comments of the two kustomizations say.
    sed -i 's|\.\./\.\./overlays/external-etcd|../../overlays/bundled-etcd|' "$work/deploy/deploy/agents/control/kustomization.yaml"
    cp -r "$work/deploy/deploy/$overlay/ca" "$work/deploy/deploy/agents/control/ca"
    apply agents/control
    rolled_out 90
    instructions agents/workers "quorate token create"
    echo 'images: [{name: quorate, newName: registry.example/quorate}]' >>"$work/deploy/deploy/agents/workers/kustomization.yaml"
    apply agents/workers
    eventually 60 node_is_ready node-0
    eventually 30 agents_ready 1
    is "$(quorate get nodes -o json | jq -r '[.items[].metadata.name] | join(" ")')" node-0 || fail "the wrong nodes joined: $(quorate get nodes)"
    # Those that have joined are left alone by a new token: the agent comes back as the same node with what is on the node.
    local before after
    before=$(uid_of_node node-0)
    quorate token rotate --role worker --ca-dir "$work/deploy/deploy/agents/control/ca" >"$work/rotated.token"
    after=$(kubectl -n quorate-agents get pods -o name)
    kubectl -n quorate-agents delete "$after" --timeout=90s >/dev/null
    eventually 60 agents_ready_besides "$after"
    eventually 60 node_is_ready node-0
    is "$(uid_of_node node-0)" "$before" || fail "the agent came back as another node"
}
uid_of_node() { quorate get nodes -o json | jq -er --arg name "$1" ".items[] | select(.metadata.name == \$name) | .metadata.uid"; }
agents_ready_besides() {
    local now
    now=$(kubectl -n quorate-agents get pods -o name)
    [ -n "$now" ] && [ "$now" != "$1" ] || { echo "$now"; return 1; }
    kubectl -n quorate-agents wait --for=condition=Ready "$now" --timeout=1s
}
node_is_ready() { quorate get nodes -o json | jq -e --arg name "$1" '.items[] | select(.metadata.name == $name) | .status.ready == true'; }
agents_ready() { is "$(kubectl -n quorate-agents get daemonset quorate-agent -o jsonpath='{.status.numberReady}')" "$1"; }

drain_a_member() {
    step "a node with a member of etcd is drained"
    kubectl drain node-1 --ignore-daemonsets --delete-emptydir-data --force --timeout=150s >>"$logs/manual.log" 2>&1 ||
        fail "the drain failed: $(tail -n 5 "$logs/manual.log")"
    # Its volume is on that node alone: it waits there, and two of three go on.
    members_ready 2 || fail "another member than the drained one is gone"
    eventually 60 exactly_ready 3
    stays 5 exactly_ready 3
    kubectl uncordon node-1 >/dev/null
    eventually 60 members_ready 3
}
