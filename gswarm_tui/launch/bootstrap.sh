# Arguments: the bundle's name and the hash of its manifest, then those of its run.sh. The bundle is looked for
# in the user's cache, then below /tmp, and requested if no complete copy is there. A new copy is unpacked
# beside it and renamed, because nodes may share the folder.
# GSWARM"-NEED" keeps a shell that prints this text, instead of running it, from sending a message.
name=$1 hash=$2
shift 2
umask 077
for tool in sha256sum tar gzip head stat mktemp readlink; do
    command -v $tool >/dev/null || { echo GSWARM"-FAIL" tool $tool; exit 3; }
done

# Succeed for a folder of this user that is closed to all others.
private() {
    set -- $(stat -c %u:%A /proc/self/ "$1")
    uid=${1%%:*}
    case $2 in $uid:d????-??-?) ;; *) return 1 ;; esac
}

# Succeed if only this user and root can rename a path and the folders above it. Root's sticky folders prevent
# it, too, and a group with the user's name is the user's own.
closed() {
    while [ "${1%/*}" ]; do set -- "${1%/*}" "$@"; done
    group=
    [ "$(id -gn)" != "$(id -un)" ] || group="! -group $(id -g)"
    open=$(find / "$@" -prune ! \( -user 0 -type d -perm -1000 \) \
        \( ! -user 0 ! -user "$uid" -o -perm -002 -o -perm -020 $group \) -print -quit) && [ -z "$open" ]
}

complete() ( cd "$1" && echo "$hash  MANIFEST" | sha256sum -c - MANIFEST ) >&2

find_bundle() {
    bundle=$1/$name
    [ -d "$1" ] || mkdir -p "$1"
    private "$1" && ${2:-true} "$1" || return 1
    complete "$bundle" && return
    new=$(mktemp -d "$1/new.XXXXXX") || return 1
    echo GSWARM"-NEED" $name
    IFS= read -r size
    head -c "$size" | tar -xzmof - -C "$new" || { rm -rf "$new"; return 1; }
    complete "$new" || { rm -rf "$new"; echo GSWARM"-FAIL" payload; exit 3; }
    mv -T "$new" "$bundle" || complete "$bundle" || { mv -T "$bundle" "$new.old"; mv -T "$new" "$bundle"; }
    rm -rf "$new" "$new.old"
    complete "$bundle"
} 2>/dev/null

case $XDG_CACHE_HOME in /*) cache=$XDG_CACHE_HOME ;; *) cache=$HOME/.cache ;; esac
cache=$(readlink -m "$cache")/gswarm-tui
find_bundle "$cache" closed || { tmp=/tmp/gswarm-tui-$uid; find_bundle "$tmp"; } || {
    echo GSWARM"-FAIL" cache "$cache or $tmp"
    exit 3
}
echo GSWARM"-FOUND"
exec sh "$bundle/gswarm_agent/run.sh" "$@"
