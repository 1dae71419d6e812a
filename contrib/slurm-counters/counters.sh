# shellcheck shell=bash
# Functions of prolog and epilog. Each can run again: the next script completes what a killed one left half done.

here=$(dirname "$(readlink -f "$0")")
# shellcheck source=contrib/slurm-counters/counters.conf
. "$here/counters.conf" || exit 1

# Restart with a time limit, so that a command that hangs doesn't keep the node.
[ -n "${SLURM_COUNTERS_LIMITED-}" ] || SLURM_COUNTERS_LIMITED=yes exec timeout --foreground 30 "$0"

umask 022
# One script at a time on this node.
install -d -m 700 "$STATE" && exec 8>"$STATE/mutex" && flock 8 || exit 1

log() {
    printf 'job %s of %s, %s: %s\n' "$SLURM_JOB_ID" "$SLURM_JOB_USER" "${0##*/}" "$1" | $LOG || :
}

# Whether the job has the constraint hwperf, alone or among others ("gpu&hwperf*2").
job_wants_counters() {
    [[ ${SLURM_JOB_CONSTRAINTS-} =~ (^|[^[:alnum:]_.-])hwperf($|[^[:alnum:]_.-]) ]]
}

# Print the ID of the job that has the counters, or nothing.
borrower() {
    [ ! -e "$STATE/lent" ] || cut -d ' ' -f 1 "$STATE/lent"
}

# Make a user (uid) the owner of the lock. A new file takes the lock's name: the former owner may have a second name of the old
# one. Nobody else can do so meanwhile, because only root may write to the lock's folder and those above it.
give_lock() {
    local former new folder
    folder=$(readlink -f "${LOCK%/*}")
    while :; do
        if ! [[ $(stat -c '%u %A' "${folder:-/}") =~ ^0\ d....-..-. ]]; then
            log "users can write to ${folder:-/}: nothing done; set LOCK in counters.conf to a file in a folder of root"
            return 1
        fi
        [ -n "${folder%/}" ] || break
        folder=${folder%/*}
    done
    if [ -f "$LOCK" ] && [ ! -L "$LOCK" ] && [ "$(stat -c '%u %h' "$LOCK")" = "$1 1" ]; then return 0; fi
    former=$(stat -c %U "$LOCK" 2>&-)
    if ! { new=$(mktemp "$LOCK.XXXXXX") && chmod 644 "$new" && chown -- "$1" "$new" && mv -fT "$new" "$LOCK"; }; then
        rm -f "$new"
        log "$LOCK can't be replaced by a file: not touched"
        return 1
    fi
    log "owner of $LOCK: ${former:-none}, now $(stat -c %U "$LOCK")"
}

set_paranoid() {
    local former
    former=$(cat "$PARANOID") || return 1
    [ "$former" != "$1" ] || return 0
    echo "$1" >"$PARANOID" && log "$PARANOID: $former, now $1"
}

# Run a command of the settings, if there is one.
run_for_gpus() {
    [ -n "$1" ] || return 0
    # shellcheck disable=SC2086 # split into command and arguments
    if timeout 10 $1 8>&-; then log "$1: done"; else log "$1: failed with status $?"; fi
}

# Give lock and perf to the job's user. The value to restore is written down before it changes.
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
    local monitoring
    if [ -e "$STATE/lent" ]; then
        set_paranoid "$(cut -d ' ' -f 2 "$STATE/lent")" || return 1
        run_for_gpus "$DCGM_RESUME"
    fi
    if ! monitoring=$(id -u "$MONITORING_USER"); then
        log "MONITORING_USER in counters.conf: there is no user $MONITORING_USER"
        return 1
    fi
    give_lock "$monitoring" && rm -f "$STATE/lent"
}
