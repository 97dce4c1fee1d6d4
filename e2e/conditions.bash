# What the scenarios say, wait for and claim.

step=start
has_failed=
# Begins a step: every failure names it.
step() {
    step=$*
    printf '==> e2e: %3d s  %s\n' "$SECONDS" "$*" >&2
}
say() { printf '==> e2e: %3d s  %s\n' "$SECONDS" "$*" >&2; }
fail() {
    has_failed=yes
    say "FAILED in \"$step\": $*"
    exit 1
}

# Repeats a command until it succeeds; fails with its last output after the limit in seconds.
#   eventually LIMIT COMMAND…
eventually() {
    local limit=$1 begun=$SECONDS seen
    shift
    until seen=$("$@" 2>&1); do
        if [ $((SECONDS - begun)) -ge "$limit" ]; then fail "not within $limit s: $* (last: ${seen:-nothing})"; fi
        sleep 0.2
    done
}
# Fails as soon as a command fails within this many seconds.
#   stays SECONDS COMMAND…
stays() {
    local time=$1 begun=$SECONDS seen
    shift
    while [ $((SECONDS - begun)) -lt "$time" ]; do
        seen=$("$@" 2>&1) || fail "not after $((SECONDS - begun)) s: $* (${seen:-nothing})"
        sleep 0.5
    done
}
# Succeeds if the text contains the part; shows the text otherwise.
contains() { case $1 in *"$2"*) ;; *) fail "$2 is not in: $1" ;; esac; }
is() { [ "$1" = "$2" ] || { echo "$1 instead of $2"; return 1; }; }

milliseconds() { echo $((${EPOCHREALTIME/./} / 1000)); }

# Runs a program in the background, its output in a file of the logs. Its process id is in the variable `started`.
#   start NAME COMMAND…
start() {
    local name=$1
    shift
    "$@" >>"$logs/$name.log" 2>&1 </dev/null &
    started=$!
}

on_exit() {
    local code=$? command=$BASH_COMMAND
    if [ "$code" -ne 0 ]; then
        if [ -z "$has_failed" ]; then say "FAILED in \"$step\" with code $code: $command"; fi
        # It may be frozen.
        if [ -n "${apiserver:-}" ]; then kill -CONT "$apiserver" 2>/dev/null || true; fi
        {
            kubectl get nodes,pods,deployments,statefulsets,pvc -A -o wide
            kubectl get events -A --sort-by=.lastTimestamp | tail -n 60
            kubectl -n quorate-system describe pods
            quorate status
        } >"$logs/at-the-end.txt" 2>&1 || true
        mkdir -p "$logs/pods"
        cp -rL /var/log/pods/. "$logs/pods/" 2>/dev/null || true
    fi
    exit "$code"
}
