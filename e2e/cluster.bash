# A control plane and two nodes, all in this network namespace: each node has an address, a containerd and a kubelet.
#
# node-0 is the worker. node-1 is labelled as a control plane, so that the agents' DaemonSet leaves it out: agents use the
# ports of their node, and both nodes have the same ones here.

kubernetes_etcd=(10.77.0.11 10.77.0.12 10.77.0.13)
nodes=(10.77.0.1 10.77.0.2)
services=10.96.0.0/16
pods=10.88.0.0/16
pause_image=registry.example/pause:1
export KUBECONFIG=$work/kubernetes/admin.kubeconfig

start_cluster() {
    step "the nodes start"
    make_mounts
    make_network
    make_kubernetes_files
    local node
    for node in 0 1; do start_containerd "$node"; done
    start_dns
    start_etcd
    start_apiserver
    start names follow_endpoints "$dns"
    start kube-controller-manager "$E2E_KUBERNETES/kube-controller-manager" --kubeconfig="$(kubeconfig kube-controller-manager)" \
        --leader-elect=false --use-service-account-credentials --root-ca-file="$work/kubernetes/ca.crt" \
        --service-account-private-key-file="$work/kubernetes/service-account.key" --bind-address=127.0.0.1 --port=0
    start kube-scheduler "$E2E_KUBERNETES/kube-scheduler" --kubeconfig="$(kubeconfig kube-scheduler)" --leader-elect=false \
        --bind-address=127.0.0.1 --port=0
    start kube-proxy "$E2E_KUBERNETES/kube-proxy" --kubeconfig="$(kubeconfig kube-proxy)" --proxy-mode=iptables \
        --cluster-cidr="$pods" --hostname-override=node-0 --conntrack-max-per-core=0 \
        --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s
    for node in 0 1; do start_kubelet "$node"; done
    for node in 0 1; do
        eventually 60 kubectl wait --for=condition=Ready "node/node-$node" --timeout=1s
    done
    kubectl label node node-1 node-role.kubernetes.io/control-plane= >/dev/null
}

# Everything that the programs write lies in the folder of this run, or in memory.
make_mounts() {
    mount --make-rprivate /
    # Shared among the mount namespaces below this one: volumes that are mounted in a pod reach the node.
    mount --make-rshared /
    local folder
    for folder in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$folder"; done
    mkdir -p /run/lock "$work/containerd-0" "$work/containerd-1" "$work/kubelet-0" "$work/kubelet-1" "$work/kubernetes"
    # The kubelet sets some values of the kernel that have no namespace. It gets files in their place.
    local value
    mkdir "$work/sysctl"
    for value in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        echo "${value#*=}" >"$work/sysctl/$(basename "${value%=*}")"
        mount --bind "$work/sysctl/$(basename "${value%=*}")" "/proc/sys/${value%=*}"
    done
    echo "nameserver ${nodes[0]}" >"$work/resolv.conf"
    mount --bind "$work/resolv.conf" /etc/resolv.conf
    hostname e2e
}

make_network() {
    local address
    ip link set lo up
    ip link add node0 type veth peer name node1
    for address in "${nodes[@]}" "${kubernetes_etcd[@]}"; do ip address add "$address/24" dev node0; done
    ip link set node0 up
    ip link set node1 up
    # Leads nowhere. Some programs choose their address by it.
    ip route add default via 10.77.0.254 dev node0
    echo 1 >/proc/sys/net/ipv4/ip_forward
    # So that a pod reaches another one by the address of a Service.
    if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]; then echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; fi
    mkdir -p "$work/cni"
    jq -n --arg pods "$pods" '{cniVersion: "0.4.0", name: "pods", plugins: [
        {type: "bridge", bridge: "pods0", isGateway: true, ipMasq: true, hairpinMode: true,
         ipam: {type: "host-local", ranges: [[{subnet: $pods}]], routes: [{dst: "0.0.0.0/0"}]}},
        {type: "portmap", capabilities: {portMappings: true}}]}' >"$work/cni/10-pods.conflist"
}

# The kubeconfig of a user of tokens.csv.
kubeconfig() { echo "$work/kubernetes/$1.kubeconfig"; }

make_kubernetes_files() {
    local folder=$work/kubernetes user name groups token
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=kubernetes \
        -keyout "$folder/ca.key" -out "$folder/ca.crt" 2>/dev/null
    issue() { # NAME SUBJECT EXTENSIONS
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "$folder/$1.key" \
            -out "$folder/$1.csr" 2>/dev/null
        openssl x509 -req -in "$folder/$1.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial -days 2 \
            -extfile <(printf '%s\n' "$3") -out "$folder/$1.crt" 2>/dev/null
    }
    issue apiserver /CN=kube-apiserver "subjectAltName=DNS:kubernetes.default.svc,IP:127.0.0.1,IP:${nodes[0]},IP:10.96.0.1"
    issue apiserver-kubelet "/O=system:masters/CN=apiserver-kubelet" extendedKeyUsage=clientAuth
    openssl ecparam -name prime256v1 -genkey -noout -out "$folder/service-account.key"
    openssl ec -in "$folder/service-account.key" -pubout -out "$folder/service-account.pub" 2>/dev/null
    for user in admin:system:masters kube-controller-manager: kube-scheduler: kube-proxy: \
        node-0:system:nodes node-1:system:nodes; do
        name=${user%%:*}
        groups=${user#*:}
        token=$(openssl rand -hex 16)
        case $name in
            admin) printf '%s,admin,admin,"%s"\n' "$token" "$groups" ;;
            node-*) printf '%s,system:node:%s,%s,"%s"\n' "$token" "$name" "$name" "$groups" ;;
            *) printf '%s,system:%s,%s\n' "$token" "$name" "$name" ;;
        esac >>"$folder/tokens.csv"
        jq -n --arg server "https://${nodes[0]}:6443" --arg ca "$folder/ca.crt" --arg token "$token" '{apiVersion: "v1",
            kind: "Config", clusters: [{name: "e2e", cluster: {server: $server, "certificate-authority": $ca}}],
            users: [{name: "e2e", user: {token: $token}}],
            contexts: [{name: "e2e", context: {cluster: "e2e", user: "e2e"}}], "current-context": "e2e"}' \
            >"$(kubeconfig "$name")"
        if [ "$name" = admin ]; then admin_token=$token; fi
    done
    jq -n '{apiVersion: "audit.k8s.io/v1", kind: "Policy", omitStages: ["RequestReceived"], rules: [
        {level: "Metadata", users: ["system:serviceaccount:quorate-system:quorate"]}, {level: "None"}]}' >"$folder/audit.json"
}

# Three members, with certificates of `quorate ca` as docs/operate.md says. The external overlay uses them too, so that one
# history holds the pods and the status of Quorate.
start_etcd() {
    local folder=$work/etcd member urls="" hosts=localhost,${nodes[0]}
    for member in 0 1 2; do
        urls="$urls,etcd-$member=https://${kubernetes_etcd[$member]}:2380"
        hosts="$hosts,${kubernetes_etcd[$member]},etcd-$member.example.com"
    done
    mkdir -p "$folder" /run/etcd
    (
        cd "$folder"
        quorate ca init -o ca
        quorate ca issue etcd-member --ca-dir ca --host "$hosts" -o member
        quorate ca issue etcd-client --ca-dir ca -o client
    ) >"$logs/ca.log" 2>&1 || fail "$(cat "$logs/ca.log")"
    for member in 0 1 2; do
        start "etcd-$member" etcd --name="etcd-$member" --data-dir="/run/etcd/$member" \
            --listen-client-urls="https://${kubernetes_etcd[$member]}:2379" \
            --advertise-client-urls="https://etcd-$member.example.com:2379" \
            --listen-peer-urls="https://${kubernetes_etcd[$member]}:2380" \
            --initial-advertise-peer-urls="https://${kubernetes_etcd[$member]}:2380" --initial-cluster="${urls#,}" \
            --cert-file="$folder/member/member.crt" --key-file="$folder/member/member.key" \
            --trusted-ca-file="$folder/member/ca.crt" --client-cert-auth \
            --peer-cert-file="$folder/member/member.crt" --peer-key-file="$folder/member/member.key" \
            --peer-trusted-ca-file="$folder/member/ca.crt" --peer-client-cert-auth \
            --peer-cert-allowed-cn=quorate-etcd --pre-vote
    done
    eventually 30 etcdctl_of_kubernetes endpoint health --cluster=false
}
etcdctl_of_kubernetes() {
    local urls
    printf -v urls ',https://%s:2379' "${kubernetes_etcd[@]}"
    env ETCDCTL_API=3 etcdctl --endpoints="${urls#,}" --cacert="$work/etcd/client/ca.crt" \
        --cert="$work/etcd/client/client.crt" --key="$work/etcd/client/client.key" "$@"
}

start_apiserver() {
    local folder=$work/kubernetes urls
    printf -v urls ',https://%s:2379' "${kubernetes_etcd[@]}"
    # As JSON and without compaction: the history of etcd is read at the end.
    start kube-apiserver "$E2E_APISERVER" --etcd-servers="${urls#,}" --etcd-cafile="$work/etcd/client/ca.crt" \
        --etcd-certfile="$work/etcd/client/client.crt" --etcd-keyfile="$work/etcd/client/client.key" \
        --storage-media-type=application/json --etcd-compaction-interval=0 --advertise-address="${nodes[0]}" \
        --secure-port=6443 --tls-cert-file="$folder/apiserver.crt" --tls-private-key-file="$folder/apiserver.key" \
        --client-ca-file="$folder/ca.crt" --token-auth-file="$folder/tokens.csv" --authorization-mode=Node,RBAC \
        --kubelet-client-certificate="$folder/apiserver-kubelet.crt" --kubelet-client-key="$folder/apiserver-kubelet.key" \
        --kubelet-preferred-address-types=InternalIP --service-cluster-ip-range="$services" --allow-privileged=true \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$folder/service-account.pub" \
        --service-account-signing-key-file="$folder/service-account.key" \
        --audit-policy-file="$folder/audit.json" --audit-log-path="$logs/audit.log" --cert-dir="$folder/certificates"
    apiserver=$started
    eventually 60 kubectl get --raw /readyz
}

start_containerd() {
    local node=$1 state=/run/containerd-$1
    cat >"$work/containerd-$node.toml" <<TOML
version = 2
root = "$work/containerd-$node"
state = "$state"
[grpc]
  address = "$state/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$work/containerd-$node/opt"
[plugins."io.containerd.grpc.v1.cri"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  sandbox_image = "$pause_image"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$work/cni"
TOML
    start "containerd-$node" containerd --config "$work/containerd-$node.toml"
    eventually 20 ctr --address "$state/containerd.sock" version
}

# Without device plugins, whose socket has the same path for every kubelet.
start_kubelet() {
    local node=$1 address=${nodes[$1]} root
    for root in /sys/fs/cgroup/*/"$E2E_GROUP" /sys/fs/cgroup/"$E2E_GROUP"; do
        if [ -d "$root" ]; then
            mkdir -p "$root/node-$node"
            if [ -e "$root/cgroup.subtree_control" ] && [ -e "$root/cpuset.cpus" ]; then
                sed 's/ / +/g; s/^/+/' "$root/node-$node/cgroup.controllers" >"$root/node-$node/cgroup.subtree_control"
            fi
        fi
    done
    : >"$work/no-resolv.conf"
    jq -n --arg address "$address" --arg group "/$E2E_GROUP/node-$node" --arg work "$work" --arg dns "${nodes[0]}" \
        --argjson node "$node" '{
        apiVersion: "kubelet.config.k8s.io/v1beta1", kind: "KubeletConfiguration", address: $address, port: 10250,
        readOnlyPort: 0, healthzBindAddress: "127.0.0.1", healthzPort: (10248 + 10 * $node),
        authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: ($work + "/kubernetes/ca.crt")}},
        authorization: {mode: "AlwaysAllow"}, cgroupDriver: "cgroupfs", cgroupRoot: $group, enforceNodeAllocatable: [],
        clusterDNS: [$dns], clusterDomain: "cluster.local", resolvConf: ($work + "/no-resolv.conf"), failSwapOn: false,
        imageGCHighThresholdPercent: 100, evictionHard: {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%",
        "nodefs.inodesFree": "0%"}, featureGates: {DevicePlugins: false}, nodeStatusUpdateFrequency: "5s", volumePluginDir: ($work + "/volume-plugins"),
        containerLogMaxSize: "50Mi"}' >"$work/kubelet-$node.json"
    start "kubelet-$node" "$E2E_KUBERNETES/kubelet" --kubeconfig="$(kubeconfig "node-$node")" --config="$work/kubelet-$node.json" \
        --root-dir="$work/kubelet-$node" --hostname-override="node-$node" --node-ip="$address" \
        --container-runtime=remote --container-runtime-endpoint="unix:///run/containerd-$node/containerd.sock"
}

# The names of Services and of the pods of StatefulSets, and those of etcd that the external overlay has. Kubernetes' own
# DNS is not among Debian's packages.
start_dns() {
    local member
    for member in 0 1 2; do echo "${kubernetes_etcd[$member]} etcd-$member.example.com"; done >"$work/fixed-hosts"
    cp "$work/fixed-hosts" "$work/hosts"
    start dns dnsmasq --no-daemon --no-resolv --no-hosts --no-poll --addn-hosts="$work/hosts" --listen-address="${nodes[0]}" \
        --bind-interfaces --local=/cluster.local/ --local=/svc/ --conf-file=/dev/null --user=root --pid-file=
    dns=$started
}
follow_endpoints() {
    local dns=$1
    while sleep 0.3; do
        {
            cat "$work/fixed-hosts"
            for kind in endpoints services; do
                curl --silent --max-time 5 --cacert "$work/kubernetes/ca.crt" -H "Authorization: Bearer $admin_token" \
                    "https://${nodes[0]}:6443/api/v1/$kind"
            done | jq -rs '
                (.[1].items // [] | map(select(.spec.clusterIP == "None") | .metadata.namespace + "/" + .metadata.name)) as $headless |
                (.[0].items // [] | .[] | "\(.metadata.name).\(.metadata.namespace).svc" as $service |
                 select(.metadata | .namespace + "/" + .name | IN($headless[])) | .subsets // [] | .[] | .addresses // [] | .[] |
                 "\(.ip) \($service) \($service).cluster.local",
                 (select(.hostname) | "\(.ip) \(.hostname).\($service) \(.hostname).\($service).cluster.local")),
                (.[1].items // [] | .[] | select(.spec.clusterIP != "None") |
                 "\(.metadata.name).\(.metadata.namespace).svc" as $service |
                 "\(.spec.clusterIP) \($service) \($service).cluster.local")' | sort
        } >"$work/hosts.new" || continue
        # An API server that does not answer takes no names away.
        grep -q '\.svc ' "$work/hosts.new" || grep -qv '\.svc ' "$work/hosts" || [ ! -s "$work/hosts" ] || continue
        if ! cmp -s "$work/hosts.new" "$work/hosts"; then
            cp "$work/hosts.new" "$work/hosts"
            kill -HUP "$dns"
        fi
    done
}

# The process of a container of a pod, in this pid namespace.
#   process_of POD [CONTAINER]
process_of() {
    local pod=$1 node id
    read -r node id < <(kubectl -n quorate-system get pod "$pod" -o json |
        jq -r --arg name "${2:-}" '.spec.nodeName + " " + (.status.containerStatuses[] | select($name == "" or .name == $name) | .containerID)')
    ctr --address "/run/containerd-${node#node-}/containerd.sock" --namespace k8s.io task ls |
        awk -v id="${id#containerd://}" '$1 == id { print $2 }'
}
