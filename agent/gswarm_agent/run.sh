# Run the agent in this folder by the first Python that is new enough: sh run.sh PYTHONS ARGUMENT...
# PYTHONS are names or paths, separated by colons. A path after "?" is used only if nobody but this user and root
# can change the interpreter or a folder above it.
# Exit statuses that let the next one be tried: 64 (too old, see run.py), 126 (not executable), 127 (not found).
pythons=$1
shift
set -f

# Print the interpreter that a path leads to if it is safe. Else fail, and print what others can change. A sticky
# folder of root's lets nobody replace what belongs to this user, and a group with the user's name is the user's own.
safe() {
    unset IFS
    real=$(readlink -f "$1") && uid=$(id -u) || return 1
    case ${real##*/} in python3*) ;; *) return 1 ;; esac
    set -- "$real"
    while [ "${1%/*}" ]; do set -- "${1%/*}" "$@"; done
    group=
    [ "$(id -gn)" != "$(id -un)" ] || group="! -group $(id -g)"
    open=$(find / "$@" -prune ! \( -user 0 -type d -perm -1000 \) \
        \( ! -user 0 ! -user "$uid" -o -perm -002 -o -perm -020 $group \) -print -quit) || return 1
    printf %s "${open:-$real}"
    [ -z "$open" ]
}

IFS=:
open= broken=
for python in $pythons; do
    command -v "${python#\?}" >/dev/null 2>&1 || continue
    case $python in
        \?*) python=$(safe "${python#\?}" 2>/dev/null) || { open=$python; continue; } ;;
    esac
    status=0
    "$python" -IS "${0%/*}/run.py" "$@" || status=$?
    case $status in
        64 | 126 | 127) continue ;;
        0 | 129 | 1[3-9]?) exit $status ;; # it ended well, or a signal ended it
    esac
    # A Python below 3.4, or another program, refuses -IS or this file.
    version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' </dev/null 2>/dev/null | head -c 20)
    case $version in
        3.9.* | 3.[1-9][0-9].* | [4-9].*) exit $status ;;
        [23].*) printf 'GSWARM-OLD %s\n' "$version" ;;
        *) broken=$python ;;
    esac
done
[ ! "$broken" ] || printf 'GSWARM-FAIL broken %s\n' "$broken"
printf 'GSWARM-FAIL python %s\n' "$open"
exit 3
