# Images without a registry: a root file system of what the machine has, as an archive that containerd imports.

# Copies programs with the shared libraries that they load.
#   with_libraries ROOT FILE…
with_libraries() {
    local root=$1 file library
    shift
    for file in "$@"; do
        install -D -m 0755 "$file" "$root/usr/bin/$(basename "$file")"
        { ldd "$file" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
            if [ ! -e "$root$library" ]; then install -D -m 0755 "$library" "$root$library"; fi
        done
    done
}

# Imports a root file system as an image of both nodes.
#   import NAME ROOT CONFIG
import() {
    local name=$1 root=$2 config=$3 image layer node
    image=$(mktemp -d "$work/image.XXXXXX")
    mkdir -p -m 1777 "$root/tmp"
    tar --owner=0 --group=0 --numeric-owner -C "$root" -cf "$image/layer.tar" .
    layer=$(sha256sum "$image/layer.tar" | cut -d ' ' -f 1)
    jq -n --arg layer "sha256:$layer" --argjson config "$config" '{architecture: "amd64", os: "linux", config: $config,
        rootfs: {type: "layers", diff_ids: [$layer]}, history: []}' >"$image/config.json"
    jq -n --arg name "$name" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$image/manifest.json"
    tar -C "$image" -cf "$image.tar" manifest.json config.json layer.tar
    for node in 0 1; do
        ctr --address "/run/containerd-$node/containerd.sock" --namespace k8s.io images import "$image.tar" >>"$logs/images.log" 2>&1 ||
            fail "the image $name was not imported: $(tail -n 3 "$logs/images.log")"
    done
    rm -rf "$image" "$image.tar" "$root"
}

# The images that the manifests name, by the names of docs/operate.md, and two for the tests.
make_images() {
    local root=$work/root
    # What holds the namespaces of a pod: it waits for its end.
    cat >"$work/pause.c" <<'C'
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
C
    mkdir -p "$root"
    cc -static -Os -o "$root/pause" "$work/pause.c"
    import "$pause_image" "$root" '{"Entrypoint": ["/pause"]}'

    # As deploy/Dockerfile makes them.
    install -D -m 0755 "$work/bin/quorate" "$root/usr/local/bin/quorate"
    with_libraries "$root" "$work/bin/quorate"
    rm "$root/usr/bin/quorate"
    install -D -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    import registry.example/quorate:0.1.0 "$root" \
        '{"User": "65532:65532", "Entrypoint": ["/usr/local/bin/quorate"], "Cmd": ["run"]}'
    with_libraries "$root" "$(command -v etcd)" "$(command -v etcdctl)"
    import registry.example/quorate-etcd:0.1.0 "$root" '{"User": "65532:65532", "Entrypoint": ["/usr/bin/etcd"]}'

    install -D -m 0755 "$(command -v busybox)" "$root/bin/busybox"
    import registry.example/busybox:1 "$root" '{"Entrypoint": ["/bin/busybox"]}'
}
