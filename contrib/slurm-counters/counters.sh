# shellcheck shell=bash
# What prolog and epilog share. Everything can be repeated: a script that was killed half way is made good by the next one.

here=$(dirname "$(readlink -f "$0")")
# shellcheck source=contrib/slurm-counters/counters.conf
. "$here/counters.conf" || exit 1

# Start again with a time limit: a name that turns into a FIFO at the wrong moment would block its opening for ever.
[ -n "${SLURM_COUNTERS_LIMITED-}" ] || SLURM_COUNTERS_LIMITED=yes exec timeout --foreground 30 "$0"

# One script at a time on this node.
install -d -m 700 "$STATE" && exec 8>"$STATE/mutex" && flock 8 || exit 1

log() {
    printf 'job %s of %s, %s: %s\n' "$SLURM_JOB_ID" "$SLURM_JOB_USER" "${0##*/}" "$1" | $LOG || :
}

# Whether the job has the constraint hwperf, alone or among others ("gpu&hwperf*2").
job_wants_counters() {
    [[ ${SLURM_JOB_CONSTRAINTS-} =~ (^|[^[:alnum:]_.-])hwperf($|[^[:alnum:]_.-]) ]]
}

# The job that the counters are lent to, or nothing.
borrower() {
    [ ! -e "$STATE/lent" ] || cut -d ' ' -f 1 "$STATE/lent"
}

# Make a user (uid) the owner of the lock; a missing lock is created. The lock is opened once, and the opened file is checked
# and changed, so it makes no difference what happens to its name meanwhile: the file must be a regular one, the lock's name
# must lead to it without a symbolic link, and it may have no other name.
give_lock() {
    local opened=/proc/self/fd/9 former
    if [ ! -e "$LOCK" ] && [ ! -L "$LOCK" ]; then
        (set -o noclobber && : >"$LOCK") && log "$LOCK created"
    fi
    if ! { [ -f "$LOCK" ] && [ ! -L "$LOCK" ] && exec 9<"$LOCK"; }; then
        log "$LOCK is not a regular file: not touched"
        return 1
    fi
    if [ ! -f $opened ] || [ "$(stat -Lc '%d:%i %h' $opened)" != "$(stat -c '%d:%i 1' "$LOCK")" ]; then
        log "$LOCK has another name too, or was exchanged: not touched"
        return 1
    fi
    [ "$(stat -Lc %u $opened)" != "$1" ] || return 0
    former=$(stat -Lc %U $opened)
    chown -- "$1" $opened && chmod 644 $opened && : >$opened && log "owner of $LOCK: $former, now $(stat -Lc %U $opened)"
}

set_paranoid() {
    local former
    former=$(cat "$PARANOID") || return 1
    [ "$former" != "$1" ] || return 0
    echo "$1" >"$PARANOID" && log "$PARANOID: $former, now $1"
}

run_for_gpus() { # a command of the settings; without it there is nothing to do
    [ -n "$1" ] || return 0
    # shellcheck disable=SC2086 # a command with its arguments
    if timeout 10 $1 8>&-; then log "$1: done"; else log "$1: failed with status $?"; fi
}

# Give the job's user lock and perf. The value to restore is on record before it changes.
lend_counters() {
    give_lock "$SLURM_JOB_UID" || return 1
    if echo "$SLURM_JOB_ID $(cat "$PARANOID")" >"$STATE/new" && mv "$STATE/new" "$STATE/lent" && set_paranoid 0; then
        run_for_gpus "$DCGM_PAUSE"
    else
        take_counters_back
        return 1
    fi
}

# Give everything back to monitoring.
take_counters_back() {
    if [ -e "$STATE/lent" ]; then
        set_paranoid "$(cut -d ' ' -f 2 "$STATE/lent")" || return 1
        run_for_gpus "$DCGM_RESUME"
    fi
    give_lock "$(id -u "$MONITORING_USER")" && rm -f "$STATE/lent"
}
