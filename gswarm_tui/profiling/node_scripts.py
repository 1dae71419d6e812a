"""Shell script that runs on the nodes of a job: nothing is installed there, and only bash is needed.

The setup comes as a line of base64 on standard input, because every user of a node sees all arguments.
"""

from __future__ import annotations

import base64

# Debian's nsys doesn't find its own importer and leaves a raw report; the function gets its name and a log.
CONVERT = """
convert() { for importer in /usr/lib/nsight-systems/host-linux-*/QdstrmImporter; do
[ -e "$1.qdstrm" ] && [ -x "$importer" ] && "$importer" --force-overwrite --input-file "$1.qdstrm" \\
--output-file "$1.nsys-rep" >>"$2" 2>&1 </dev/null && rm "$1.qdstrm"; done; }
"""
# One rank. Its arguments are the token of the run, the folder for reports, the ranks to profile, and the
# profiler's words after their number; then the command follows.
#
# The profiler's own output goes to a log; the command's output and exit status are its own. nsys ends with
# the capture, and the command may continue. All that a rank starts has a mark, also what its parents leave
# behind, such as nsys's own agent, and is ended with the rank: the agent holds the step's output open, and
# srun would wait for it. What is started while the others are searched is found in the next round.
RUN = (
    CONVERT
    + """
token=$1; folder=$2; ranks=$3; count=$4; shift 4; tool=("${@:1:$count}"); shift "$count"
rank=${SLURM_PROCID:-0}; mark=$token-$rank-; node=${SLURMD_NODENAME:-$(hostname)}; path=$PATH
fail() { [ "${SLURM_LOCALID:-0}" = 0 ] && echo "gswarm-tui: $node: $1" >&2; exit 1; }
end_marked() { found=; for file in $(grep -lsz "^GSWARM_PROFILE=$2" /proc/[0-9]*/environ); do
process=${file%/environ}; kill -"$1" "${process#/proc/}" 2>/dev/null && found=yes; done; }
kill_marked() { for round in 1 2 3 4 5; do end_marked KILL "$mark"; [ "$found" ] || return 0; done; }
tmp=$(mktemp -dt gswarm-profile-XXXXXX) || fail "set TMPDIR to a folder of yours."
trap 'PATH=$path; rm -rf "$tmp"' EXIT
IFS= read -r setup
eval "$(printf %s "$setup" | base64 -d)" </dev/null >"$tmp/setup" 2>&1; status=$?; set +eu
[ $status = 0 ] || fail "the setup failed with exit status $status: $(PATH=$path; tail -n1 "$tmp/setup")"
[ $count = 0 ] || command -v "${tool[0]}" >/dev/null ||
fail "there is no ${tool[0]} on its PATH; load its module with --setup 'module load ...'."
[ $count = 0 ] || [ -d "$folder" ] ||
fail "there is no folder $folder; name one that the nodes share with --output."
stop() { trap '' TERM INT HUP; exec 2>/dev/null; end_marked TERM "$mark"
for try in 1 2 3 4 5 6 7 8 9 10; do kill -0 $main 2>/dev/null || break; sleep 0.2; done; kill_marked; }
trap stop TERM INT HUP
exec 3>&1 4>&2 5<&0 </dev/null
{ while read -r line; do :; done; kill -TERM $$; } <&5 >/dev/null 2>&1 3>&- 4>&- & watch=$!
own=(env -u TMPDIR "GSWARM_PROFILE=$mark"); [ -n "${TMPDIR+set}" ] && own=(env "TMPDIR=$TMPDIR" "${own[@]:3}")
name=$folder/$node-rank$rank-job$SLURM_JOB_ID
case $ranks in all | *",$rank,"*)
[ "${tool[0]}" = nsys ] && nsys profile --help 2>/dev/null | grep -q cuda-graph-trace &&
tool=(nsys profile --cuda-graph-trace=node "${tool[@]:2}")
inner='tmp=$1; shift; echo $$ >"$tmp/pid"; "$@" >&3 2>&4 3>&- 4>&-; echo $? >"$tmp/status"'
inside=(bash -c "$inner" gswarm-profile "$tmp" "$@")
"${own[@]}" "TMPDIR=$tmp" "${tool[@]}" "$name" "${own[@]}" "${inside[@]}" >"$name.log" 2>&1 5<&- & ;;
*) "${own[@]}" "$@" 3>&- 4>&- 5<&- & ;; esac
main=$!; wait $main; ended=$?
while kill -0 $main 2>/dev/null; do wait $main; ended=$?; done
while [ ! -e "$tmp/status" ] && kill -0 "$(cat "$tmp/pid" 2>/dev/null)" 2>/dev/null; do sleep 0.2; done
kill $watch 2>/dev/null
kill_marked
PATH=$path; convert "$name" "$name.log"
[ -s "$tmp/status" ] && exit "$(cat "$tmp/status")"
[ -e "$name.log" ] || exit $ended
[ -e "$tmp/pid" ] || cat "$name.log" >&2
[ $ended = 0 ] && exit 137; exit $ended
"""
)


def setup_line(setup: str) -> str:
    """Return the setup as the line of input that the script reads."""
    return base64.b64encode(setup.encode()).decode()
