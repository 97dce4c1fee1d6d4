# The overlay on an etcd that exists, which is also that of Kubernetes: one history orders pods and status.

external() {
    install_external
    lose_the_leader
    wait_as_an_init_container
    another_bundle
    upgrade_each_minimum_by_itself
    raise_both_minimums_at_once
    roll_back
    drain_a_node
    freeze_the_apiserver
    step "the controllers stay within their requests"
    check_resources
    step "nothing was out of order"
    check_order
    check_audit
    remove_external
}

install_external() {
    step "the external overlay is installed as the manual says"
    overlay=overlays/external-etcd
    prepare_manifests
    local tls=$work/deploy/deploy/$overlay/tls
    mkdir "$tls"
    cp "$work/etcd/client/ca.crt" "$tls/ca.crt"
    cp "$work/etcd/client/client.crt" "$tls/tls.crt"
    cp "$work/etcd/client/client.key" "$tls/tls.key"
    use_etcd_of external-etcd
    watch_order
    manual Deploy external-etcd
    rolled_out 90
    eventually 20 status_is "DONE by 0.1.0, least 0.1.0"
    kubectl get runtimeclass gvisor runc >/dev/null || fail "the built-in bundle is not in place"
    exactly_ready 3 || fail "not all are ready"
    spread || fail "all replicas are on one node: $(controllers)"
}

lose_the_leader() {
    local old begun took
    step "the leader's pod is deleted"
    old=$(leader)
    begun=$(milliseconds)
    kubectl -n quorate-system delete pod "$old" --wait=false >/dev/null
    eventually 6 leads_another_than "$old"
    took=$(($(milliseconds) - begun))
    say "another replica led after $took ms"
    at_least_ready 2 || fail "standbys became unready"
    rolled_out 60

    step "the leader is killed in its container"
    old=$(leader)
    begun=$(milliseconds)
    kill -KILL "$(process_of "$old" quorate)"
    eventually 16 leads_another_than "$old"
    took=$(($(milliseconds) - begun))
    say "another replica led after $took ms"
    [ "$took" -gt 2000 ] || fail "it led before the lease of the killed one can have ended"
    eventually 30 exactly_ready 3
    is "$(restarts)" 1 || fail "the killed container was not restarted once"
}

# A workload with the init container of docs/operate.md, for a release that is not reconciled yet.
wait_as_an_init_container() {
    step "a workload waits with wait-ready as its init container"
    kubectl create namespace workload >/dev/null
    kubectl label namespace workload quorate.dev/wait-ready=allowed >/dev/null
    (cd "$work/etcd" && quorate ca issue etcd-client --ca-dir ca -o reader) >>"$logs/ca.log" 2>&1
    kubectl -n workload create secret generic quorate-reader --from-file=ca.crt="$work/etcd/reader/ca.crt" \
        --from-file=tls.crt="$work/etcd/reader/client.crt" --from-file=tls.key="$work/etcd/reader/client.key" >/dev/null
    {
        printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: waits, namespace: workload}\nspec:\n'
        # Without users of etcd, which this one has none of.
        awk '/^initContainers:$/ { inside = 1 } /^```$/ { inside = 0 } inside' "$repository/docs/operate.md" |
            grep -v 'QUORATE_ETCD_USER\|QUORATE_ETCD_PASSWORD' |
            sed -e 's/^/  /' -e 's|image: quorate:|image: registry.example/quorate:|' -e 's/--release=[0-9.]*/--release=1.2.0/' \
                -e 's/--min-reconciler-release=[0-9.]*/--min-reconciler-release=1.2.0/' \
                -e "s|value: \"https://[^\"]*\"|value: \"$QUORATE_ETCD_ENDPOINTS\"|"
        cat <<YAML
  terminationGracePeriodSeconds: 1
  containers:
    - {name: main, image: "registry.example/busybox:1", args: [sleep, "3600"]}
  volumes:
    - {name: quorate-reader, secret: {secretName: quorate-reader}}
YAML
    } >"$work/waits.yaml"
    kubectl apply -f "$work/waits.yaml" >/dev/null
    eventually 30 kubectl -n workload logs waits -c wait-ready
    eventually 10 workload_says "needs at least 1.2.0"
    workload_is Pending || fail "the workload did not wait"
}
workload_says() {
    local log
    log=$(kubectl -n workload logs waits -c wait-ready)
    case $log in *"$1"*) ;; *) echo "$log"; return 1 ;; esac
}
workload_is() { is "$(kubectl -n workload get pod waits -o jsonpath='{.status.phase}')" "$1"; }

another_bundle() {
    step "another bundle takes the place of the built-in one"
    local file=$work/deploy/deploy/$overlay/kustomization.yaml held
    platform 1.0.0 0.1.0 0.1.0
    # As the comments of the overlay and of bundles/example say.
    cp -r "$work/deploy/deploy/bundles/example" "$work/deploy/deploy/bundles/platform"
    rm "$work/deploy/deploy/bundles/platform/bundle"/*
    sed -i -e '/bundle\/[a-z]*\.yaml/d' -e 's|^    files:$|&\n      - bundle/bundle.yaml\n      - bundle/objects.yaml|' \
        "$work/deploy/deploy/bundles/platform/kustomization.yaml"
    sed -i -e 's|bundles/builtin$|bundles/platform|' -e 's|^    literals:$|&\n      - QUORATE_BUNDLE=/etc/quorate/bundle|' "$file"
    deploy_release external-etcd 1.0.0 builtin
    # The objects of the built-in bundle are held until that is allowed.
    eventually 60 held_for_pruning
    held=$(status | jq -r '.degraded.message' | grep -o "allow-prune=[0-9]*" | head -n 1 | cut -d = -f 2)
    sed -i "s|^    literals:\$|&\n      - QUORATE_ALLOW_PRUNE=$held|" "$file"
    apply "$overlay"
    rolled_out 90
    eventually 60 status_is "DONE by 1.0.0, least 0.1.0"
    if kubectl get runtimeclass gvisor >/dev/null 2>&1; then fail "the objects of the built-in bundle are still there"; fi
    # "take it out after use", and what `kubectl apply -k` leaves.
    sed -i '/QUORATE_ALLOW_PRUNE/d' "$file"
    kubectl delete clusterrole,clusterrolebinding quorate-bundle-builtin >/dev/null
    deploy_release external-etcd 1.0.0 builtin
    rolled_out 90
    eventually 30 status_is "DONE by 1.0.0, least 0.1.0"
}
held_for_pruning() { is "$(status | jq -r '.degraded.reason')" PruneHeld; }

upgrade_each_minimum_by_itself() {
    step "an upgrade that raises no minimum, and back"
    platform 1.1.0 0.1.0 0.1.0
    deploy_release external-etcd 1.1.0 1.0.0
    rolled_out 90
    eventually 30 status_is "DONE by 1.1.0, least 0.1.0"
    in_place_is 1.1.0 || fail "the objects are of another release"
    quorate bundle rbac "$work/bundles/1.0.0" --from "$work/bundles/1.1.0" | kubectl apply -f - >/dev/null
    kubectl -n quorate-system rollout undo deployment/quorate >/dev/null
    rolled_out 90
    eventually 30 status_is "DONE by 1.0.0, least 0.1.0"
    eventually 10 in_place_is 1.0.0
    deploy_release external-etcd 1.1.0 1.0.0
    rolled_out 90
    eventually 30 status_is "DONE by 1.1.0, least 0.1.0"
    workload_is Pending || fail "the workload did not wait for 1.2.0"

    step "an upgrade that raises the release that must have reconciled"
    platform 1.2.0 1.2.0 0.1.0
    deploy_release external-etcd 1.2.0 1.1.0
    rolled_out 90
    eventually 30 status_is "DONE by 1.2.0, least 0.1.0"
    eventually 30 workload_is Running
    kubectl -n workload delete pod waits --wait=false >/dev/null

    step "an upgrade that raises the least compatible release"
    platform 1.3.0 1.2.0 1.3.0
    deploy_release external-etcd 1.3.0 1.2.0
    rolled_out 90
    eventually 30 status_is "DONE by 1.3.0, least 1.3.0"
    in_place_is 1.3.0 || fail "the objects are of another release"
}

raise_both_minimums_at_once() {
    step "an upgrade that raises both minimums is held, explained and undone"
    local explained
    platform 2.0.0 2.0.0 2.0.0
    if explained=$(quorate bundle check "$work/bundles/2.0.0" --from "$work/bundles/1.3.0" 2>&1); then
        fail "bundle check did not find the deadlock: $explained"
    fi
    contains "$explained" deadlock
    deploy_release external-etcd 2.0.0 1.3.0
    eventually 40 blocked
    stays "${E2E_HELD:-15}" at_least_ready 2
    is "$(status | jq -r .status.minimumCompatibleRelease)" 1.3.0 || fail "the status was restricted while old pods served"
    in_place_is 1.3.0 || fail "the objects were changed"
    say "quorate status: $(quorate status | grep Degraded)"
    quorate bundle rbac "$work/bundles/1.3.0" --from "$work/bundles/2.0.0" | kubectl apply -f - >/dev/null
    kubectl -n quorate-system rollout undo deployment/quorate >/dev/null
    rolled_out 90
    eventually 30 status_is "DONE by 1.3.0, least 1.3.0"
    eventually 30 exactly_ready 3
}
blocked() {
    local shown
    shown=$(quorate status)
    case $shown in *"waiting for node "*"needs 2.0.0"*) ;; *) echo "$shown"; return 1 ;; esac
}

roll_back() {
    step "a rollback below the minimum, by way of no replicas"
    quorate bundle rbac "$work/bundles/1.2.0" --from "$work/bundles/1.3.0" | kubectl apply -f - >/dev/null
    kubectl -n quorate-system scale deployment/quorate --replicas=0 >/dev/null
    eventually 60 exactly_ready 0
    eventually 30 no_replica_registered
    deploy_release external-etcd 1.2.0 1.3.0
    rolled_out 90
    spread || fail "all replicas are on one node: $(controllers)"
    eventually 30 status_is "DONE by 1.2.0, least 0.1.0"
    eventually 10 in_place_is 1.2.0
}
# Also where nodes have no zone.
spread() { is "$(controllers | cut -f 3 | sort -u | wc -l)" 2; }
no_replica_registered() { is "$(status | jq '.replicas | length')" 0; }

drain_a_node() {
    step "a node is drained"
    local before
    before=$(controllers | awk '$3 == "node-1"' | wc -l)
    [ "$before" -gt 0 ] || fail "no replica is on node-1: $(controllers)"
    kubectl drain node-1 --ignore-daemonsets --delete-emptydir-data --force --timeout=150s >>"$logs/manual.log" 2>&1 &
    local drain=$!
    while kill -0 "$drain" 2>/dev/null; do
        at_least_ready 2 >/dev/null || fail "fewer than two replicas were ready: $(controllers)"
        sleep 0.3
    done
    wait "$drain" || fail "the drain failed: $(tail -n 5 "$logs/manual.log")"
    eventually 60 exactly_ready 3
    is "$(controllers | awk '$3 == "node-1"' | wc -l)" 0 || fail "replicas are still there"
    kubectl uncordon node-1 >/dev/null
    say "$before of three replicas moved, two were ready at every moment"
}

# Nothing that serves depends on the API server: not the election, the status, or the replicas' readiness. The next leader
# says what it waits for.
freeze_the_apiserver() {
    step "the API server is frozen, and the leader killed meanwhile"
    local old process line release
    old=$(leader)
    process=$(process_of "$old" quorate)
    line=$(status_line)
    release=$(in_place)
    kill -STOP "$apiserver"
    stays 10 unchanged "$old" "$line" "$release"
    kill -KILL "$process"
    eventually 20 leads_another_than "$old"
    eventually 60 unavailable
    is "$(status_line)" "$line" || fail "the status changed with the API server"
    say "quorate status: $(quorate status | grep Degraded)"
    kill -CONT "$apiserver"
    eventually 60 exactly_ready 3
    eventually 30 is_undegraded
    kubectl -n default delete configmap platform >/dev/null
    eventually 20 in_place_is "$release"
}
unchanged() {
    is "$(leader)" "$1" && is "$(status_line)" "$2" &&
        quorate wait-ready --release="$3" --min-reconciler-release="$3" --timeout=5s
}
unavailable() { is "$(status | jq -r '.degraded.reason')" ApiServerUnavailable; }
is_undegraded() { is "$(status | jq -r '.degraded')" null; }

remove_external() {
    step "the external overlay is removed"
    kubectl delete namespace quorate-system workload --ignore-not-found --timeout=90s >/dev/null
    kubectl delete clusterrole,clusterrolebinding -l app.kubernetes.io/name=quorate >/dev/null 2>&1 || true
    etcdctl_of_quorate del --prefix /quorate/ >/dev/null
}
