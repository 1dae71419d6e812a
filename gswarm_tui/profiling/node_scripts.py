"""Shell scripts that run on the nodes of a job: nothing is installed there, and only bash is needed.

The setup comes as a line of base64 on standard input, because every user of a node sees all arguments.
"""

from __future__ import annotations

import base64

_SETUP = """
IFS= read -r setup
run_setup() {
eval "$(printf %s "$setup" | base64 -d)" </dev/null >"$1" 2>&1; status=$?; set +eu; return $status; }
"""
_FOLDER = """
base=/tmp; [ -d "$TMPDIR" ] && [ -w "$TMPDIR" ] && base=$TMPDIR
dir=$base/gswarm-profile-$(id -u)-$token
"""

# All that a rank starts has this mark, also what its parents leave behind, such as nsys's own agent.
# What is started while the others are searched is found in the next round.
_END = """
end_marked() { found=; for file in $(grep -lsz "^GSWARM_PROFILE=$2" /proc/[0-9]*/environ); do
process=${file%/environ}; kill -"$1" "${process#/proc/}" 2>/dev/null && found=yes; done; }
kill_marked() { for round in 1 2 3 4 5; do end_marked KILL "$1"; [ "$found" ] || return 0; done; }
"""

# Checks a node, then holds the folder for its reports until its input ends or SIGTERM comes, and removes it.
HOLD = (
    """
token=$1; tool=$2; node=${SLURMD_NODENAME:-$(hostname)}
"""
    + _FOLDER
    + _END
    + """
tell() { printf 'GSWARM %s %s %s\\n' "$1" "$node" "$2"; }
mkdir -m 700 "$dir" 2>/dev/null || { tell nofolder "$dir"; exit 0; }
path=$PATH
leave() { trap - EXIT; PATH=$path; kill_marked "$token-"; [ -e "$dir/keep" ] || rm -rf "$dir"; exit 0; }
trap leave TERM INT HUP
"""
    + _SETUP
    + """
exec 6>&1; trap 'tell setup "$? it ends the shell by exit" >&6; leave' EXIT
run_setup "$dir/setup" || { tell setup "$status $(tail -n1 "$dir/setup")"; leave; }
trap - EXIT; exec 6>&-
command -v "$tool" >/dev/null || { tell notool "$tool"; leave; }
[ "$tool" = nsys ] && nsys profile --help 2>/dev/null | grep -q cuda-graph-trace && tell graphs yes
tell space "$(df -Pk "$dir" | tail -n1 | tr -s ' ' | cut -d' ' -f4) $dir"
names=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) ||
names=$(sed -n 's/^Model:[[:space:]]*//p' /proc/driver/nvidia/gpus/*/information 2>/dev/null)
tell gpus "$(printf %s "$names" | sort -u | tr '\\n' ';')"
for file in /proc/[0-9]*/comm; do { read -r comm <"$file"; } 2>/dev/null || continue
case $comm in nsys | ncu) process=${file%/comm}
tell profiler "$comm ${process#/proc/} $(stat -c %U "$process" 2>/dev/null)"; break;; esac; done
tell admin "$(sed -n 's/^RmProfilingAdminOnly: *//p' /proc/driver/nvidia/params 2>/dev/null)"
tell ready "$dir"
exec 5<&0; cat <&5 >/dev/null & wait; leave
"""
)

# One rank: the profiler's own output goes to a log; the command's output and exit status are its own. nsys
# ends with the capture, and the command may continue. What a rank leaves behind, such as nsys's own agent, is
# ended with it: the agent holds the step's output open, and srun would wait for it.
RUN = (
    """
token=$1; ranks=$2; count=$3; shift 3; rank=${SLURM_PROCID:-0}; mark=$token-$rank-
"""
    + _FOLDER
    + _SETUP
    + _END
    + """
tool=("${@:1:$count}"); shift "$count"
run_setup /dev/null || { echo "gswarm-tui: ${SLURMD_NODENAME:-$(hostname)}: the setup failed with \
exit status $status; correct it." >&2; exit 1; }
stop() { trap '' TERM INT HUP; exec 2>/dev/null; end_marked TERM "$mark"
for try in 1 2 3 4 5 6 7 8 9 10; do kill -0 $main 2>/dev/null || break; sleep 0.2; done
kill_marked "$mark"; }
trap stop TERM INT HUP
exec 3>&1 4>&2 5<&0 </dev/null
{ while read -r line; do :; done; kill -TERM $$; } <&5 >/dev/null 2>&1 3>&- 4>&- & watch=$!
own=(env -u TMPDIR "GSWARM_PROFILE=$mark"); [ -n "${TMPDIR+set}" ] && own=(env "TMPDIR=$TMPDIR" "${own[@]:3}")
name=$dir/${SLURMD_NODENAME:-$(hostname)}-rank$rank-job$SLURM_JOB_ID
case $ranks in all | *",$rank,"*)
inner='name=$1; shift; echo $$ >"$name.pid"; "$@" >&3 2>&4 3>&- 4>&-; echo $? >"$name.status"'
inside=(bash -c "$inner" gswarm-profile "$name" "$@")
"${own[@]}" "TMPDIR=$dir" "${tool[@]}" "$name" "${own[@]}" "${inside[@]}" >"$name.log" 2>&1 5<&- & ;;
*) "${own[@]}" "$@" 3>&- 4>&- 5<&- & ;; esac
main=$!; wait $main; ended=$?
while kill -0 $main 2>/dev/null; do wait $main; ended=$?; done
while [ ! -e "$name.status" ] && kill -0 "$(cat "$name.pid" 2>/dev/null)" 2>/dev/null; do sleep 0.2; done
kill $watch 2>/dev/null
kill_marked "$mark"
[ -s "$name.status" ] && exit "$(cat "$name.status")"
[ -e "$name.log" ] || exit $ended
[ -e "$name.pid" ] || cat "$name.log" >&2
[ $ended = 0 ] && exit 137; exit $ended
"""
)

# Prints short lines: srun takes lines of more than 1,024 bytes apart and mixes the pieces of several nodes.
LIST = (
    """
token=$1; node=${SLURMD_NODENAME:-$(hostname)}
"""
    + _FOLDER
    + """
for log in "$dir"/*.log; do [ -e "$log" ] || continue
tail -c 4000 "$log" | base64 -w600 | while read -r piece || [ -n "$piece" ]; do
printf 'GSWARM log %s %s %s\\n' "$node" "$(basename "$log" .log)" "$piece"; done; done
for file in "$dir"/*.nsys-rep "$dir"/*.ncu-rep "$dir"/*.qdstrm "$dir"/*.qdrep; do [ -e "$file" ] || continue
printf 'GSWARM report %s %s %s\\n' "$node" "$(stat -c '%s %Y' "$file")" "$file"; done
"""
)


def setup_line(setup: str) -> str:
    """Return the setup as the line of input that the scripts read."""
    return base64.b64encode(setup.encode()).decode()
