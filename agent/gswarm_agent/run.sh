# Run the agent in this folder by the first Python that is new enough: sh run.sh PYTHONS ARGUMENT...
# PYTHONS are names or paths, separated by colons; after "=" in base64 if they hold unusual characters.
# A path after "?" is used only if nobody but this user and root can change what it runs.
# Exit statuses that let the next one be tried: 64 (too old, see run.py), 126 (not executable), 127 (not found).
pythons=$1
shift
case $pythons in
    =*) pythons=$(printf %s "${pythons#=}" | base64 -d) ;;
esac
set -f

# Print the interpreter that a path leads to if it is safe. Else fail, and print what others can change.
# With -S it imports its own standard library and nothing from site-packages. Python finds that library by the
# folders around it, or by a pyvenv.cfg, which could lead anywhere.
safe() {
    unset IFS
    real=$(readlink -f "$1") && uid=$(id -u) || return 1
    name=${real##*/} bin=${real%/*}
    prefix=${bin%/*}
    case $name in
        python3.*[!0-9t]* | python3.) return 1 ;;
        python3.*) ;;
        *) return 1 ;;
    esac
    for folder in "$bin/" "$prefix/"; do
        [ ! -k "$folder" ] && [ ! -e "${folder}pyvenv.cfg" ] || return 1
    done
    cd "$prefix/" || return 1
    libs=
    for lib in lib lib64; do
        [ -h $lib ] || [ -h "$lib/$name" ] || [ ! -f "$lib/$name/os.py" ] || [ ! -d "$lib/$name/lib-dynload" ] ||
            libs="$libs $lib"
    done
    [ "$libs" ] || return 1
    set -- "$real"
    while [ "${1%/*}" ]; do set -- "${1%/*}" "$@"; done
    group=
    find_open "$@" || return 1
    if [ "$open" ] && own_group "$@"; then
        group="! -group $group"
        find_open "$@" || return 1
    fi
    printf %s "${open:-$real}"
    [ -z "$open" ]
}

# Set $open to one of these files, the root folder or a file of $libs that others can change. A sticky folder of
# root's lets nobody replace what belongs to this user or root.
find_open() {
    open=$(find / "$@" -prune ! \( -user 0 -type d -perm -1000 \) \
        \( ! -user 0 ! -user "$uid" -o -perm -002 -o -perm -020 $group \) -print -quit) || return 1
    [ -z "$open" ] || return 0
    open=$(find $libs \( -name site-packages -o -name dist-packages -o -name test -o -name tests \
        -o -name idlelib -o -name lib2to3 -o -name distutils \
        -o -type d -path "lib*/*" ! -path "lib*/$name" ! -path "lib*/$name/*" \) -prune \
        -o -type l -path "*/$name/*" ! -user 0 -print -quit \
        -o ! -type l \( ! -user 0 ! -user "$uid" -o -perm -002 -o -perm -020 $group \) -print -quit) || return 1
    open=${open:+$prefix/$open}
}

# Set $group to this user's group if it has the user's name and no other member, and none of these files has an
# access control list: the group's rights would be those of other users in it.
own_group() {
    user=$(id -un) && group=$(id -g) && entry=$(getent group "$group") && modes=$(ls -ld "$@" $libs) || return 1
    case $entry in
        "$user":*:"$group": | "$user":*:"$group":"$user") ;;
        *) return 1 ;;
    esac
    ! printf '%s\n' "$modes" | grep -q '^.\{10\}+'
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
