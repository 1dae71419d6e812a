# Run the agent in this folder by the first Python that is new enough: sh run.sh PYTHONS ARGUMENT...
# PYTHONS are names or paths, separated by colons; after "=" in base64 if they hold unusual characters.
# Exit statuses that let the next one be tried: 64 (too old, see run.py), 126 (not executable), 127 (not found).
pythons=$1
shift
case $pythons in
    =*) pythons=$(printf %s "${pythons#=}" | base64 -d) ;;
esac
set -f
IFS=:
for python in $pythons; do
    command -v "$python" >/dev/null 2>&1 || continue
    status=0
    "$python" -IS "${0%/*}/run.py" "$@" || status=$?
    case $status in
        64 | 126 | 127) ;;
        *) exit $status ;;
    esac
done
echo GSWARM-FAIL python
exit 3
