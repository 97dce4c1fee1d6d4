# Builds programs of Kubernetes from Debian's source package. Sourced by .ci/kube-apiserver and .ci/kubernetes, which
# define `say` and `fail` and have a folder for the build in $work.

# Sets $go_root to a Go that compiles this Kubernetes.
find_go() {
    local candidate
    for candidate in /usr/lib/go-1.19 "$(go env GOROOT 2>/dev/null || true)"; do
        if [ -n "$candidate" ] && [ -x "$candidate/bin/go" ]; then go_root=$candidate; return; fi
    done
    fail "no Go compiler (Debian package golang-1.19-go)"
}

# Unpacks the source into $source_dir and sets $version.
unpack_kubernetes() {
    # A private apt state with the source packages of the machine's own Debian repositories. The system's
    # configuration need not name them, and does not change.
    say "looking for the kubernetes source package"
    mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial"
    # Newer releases demand a named key; older ones trust every installed key and may lack the file.
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed_by=
    if [ -e "$keyring" ]; then signed_by="[signed-by=$keyring] "; fi
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        sort -u | sed "s|^|deb-src $signed_by|" >"$work/apt/sources.list"
    [ -s "$work/apt/sources.list" ] || fail "apt knows no Debian repository (run: apt-get update)"
    local apt_private=(-o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache::Archives=$work/apt/archives"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    apt-get "${apt_private[@]}" -qq update >&2 || fail "apt-get update of the source lists failed"
    (cd "$work" && apt-get "${apt_private[@]}" -qq --download-only source kubernetes >&2) ||
        fail "Debian's kubernetes source package cannot be downloaded"

    say "unpacking"
    source_dir="$work/gopath/src/k8s.io/kubernetes"
    mkdir -p "$source_dir"
    local tarball= candidate
    for candidate in "$work"/kubernetes_*.orig.tar.*; do
        case $candidate in *.asc) ;; *) if [ -e "$candidate" ]; then tarball=$candidate; fi ;; esac
    done
    [ -n "$tarball" ] || fail "the source package holds no upstream tarball"
    tar -xf "$tarball" -C "$source_dir" --strip-components=1
    [ -d "$source_dir/vendor" ] || fail "this Debian's kubernetes source ($(basename "$tarball")) no longer holds its dependencies;" \
        "put the programs on \$PATH or set KUBEBUILDER_ASSETS"
    version=$(basename "$tarball" | sed -E 's/^kubernetes_(.*\+really)?([0-9.]+)(\+.*)?\.orig\.tar\..*/v\2/')

    # The vendored reflect2 calls the runtime's map iterator with the signature that it had before Go 1.18. Compiled
    # with a newer Go, it corrupts memory and the server dies at the first server-side apply. Since then the caller
    # owns the iterator, whose private fields are these many pointers and words.
    local reflect2="$source_dir/vendor/github.com/modern-go/reflect2"
    if grep -q 'm unsafe.Pointer) \*hiter' "$reflect2/unsafe_link.go"; then
        sed -i \
            -e 's|^func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer) \*hiter|func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer, it *hiter)|' \
            -e 's|// rest fields are ignored|_ [6]unsafe.Pointer; _ [4]uintptr|' "$reflect2/unsafe_link.go"
        sed -i \
            -e 's|^\treturn &UnsafeMapIterator{|\tit := new(hiter)\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), it)\n&|' \
            -e 's|hiter: .*mapiterinit(.*|hiter: it,|' "$reflect2/unsafe_map.go"
    fi
}

# Compiles the programs that the arguments after the log and the build tags name, into $source_dir/_output.
compile_kubernetes() {
    local log=$1 tags=$2 programs what= failed=
    shift 2
    programs="$*"
    local program
    for program in "$@"; do what="$what cmd/$program"; done
    (
        # Its sleep must end with it: a leftover would hold the caller's pipes open.
        trap 'kill "$!"; exit' TERM
        while sleep 30 & wait "$!"; do say "still compiling ($((SECONDS / 60)) min $((SECONDS % 60)) s)"; done
    ) >/dev/null 9>&- &
    ticker=$!
    cat >"$work/version" <<VERSION
KUBE_GIT_COMMIT=0000000000000000000000000000000000000000
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=$version
KUBE_GIT_MAJOR=$(echo "$version" | sed -E 's/^v([0-9]+).*/\1/')
KUBE_GIT_MINOR=$(echo "$version" | sed -E 's/^v[0-9]+\.([0-9]+).*/\1/')
VERSION
    (
        cd "$source_dir"
        env PATH="$go_root/bin:$PATH" GOROOT="$go_root" GOPATH="$work/gopath" GOCACHE="$work/gocache" \
            GOFLAGS="${tags:+-tags=$tags}" GO111MODULE=off KUBE_GIT_VERSION_FILE="$work/version" make WHAT="$what" 9>&-
    ) >"$log" 2>&1 || failed=1
    kill "$ticker" 2>/dev/null || true
    if [ -n "$failed" ]; then
        tail -n 20 "$log" >&2
        fail "the build of $programs failed; the whole log is $log"
    fi
}

# Prints the path of a program that compile_kubernetes left.
compiled() {
    local binary
    binary=$(find "$source_dir/_output" -type f -name "$1" -perm -u+x | head -n 1)
    [ -n "$binary" ] || fail "the build left no $1"
    echo "$binary"
}
