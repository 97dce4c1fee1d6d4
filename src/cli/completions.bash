
# Completes names of objects as well. The program reads them from etcd, with the settings in the environment. There are none
# if etcd does not answer within a second, or if flags on the line lead to another etcd or prefix.
_quorate_named() {
    _quorate "$@"
    local cur="$2" prev="$3" kind="" form="" word line
    local names=()
    # Not the value of a flag, and nothing that cannot be a name.
    if [[ "${COMP_CWORD}" -lt 2 || "${prev}" == -* || "${prev}" == "=" || ! "${cur}" =~ ^[A-Za-z0-9]?[A-Za-z0-9./-]*$ || "${cur}" == -* ]]; then
        return 0
    fi
    case "${COMP_WORDS[1]}" in
        get | describe | edit | delete | wait) ;;
        promote | demote | join | replace | drain | accept) kind="nodes" ;;
        *) return 0 ;;
    esac
    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        case "${word}" in
            --etcd-* | --prefix*) return 0 ;;
            -*) ;;
            *) kind="${kind:-${word%%/*}}" ;;
        esac
    done
    if [[ -z "${kind}" && "${cur}" == */* ]]; then
        kind="${cur%%/*}"
        form="${kind}/"
    fi
    if [[ ! "${kind}" =~ ^[A-Za-z]+$ ]]; then
        return 0
    fi
    # A key in etcd may say anything. What is no name is left out, and nothing is expanded.
    while IFS= read -r line; do
        line="${form}${line#*/}"
        if [[ "${line}" == "${cur}"* && "${line}" =~ ^[A-Za-z0-9./-]+$ ]]; then
            names+=("${line}")
        fi
    done < <(timeout 1 "$1" get "${kind}" -o name 2>/dev/null </dev/null | grep "^[a-z]*/${cur#"${form}"}" | head -n 1000)
    if [[ "${#names[@]}" -gt 0 ]]; then
        COMPREPLY=("${names[@]}")
    fi
    return 0
}

complete -F _quorate_named -o nosort -o bashdefault -o default quorate 2>/dev/null ||
    complete -F _quorate_named -o bashdefault -o default quorate
