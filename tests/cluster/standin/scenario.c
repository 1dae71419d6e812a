/* The stand-in's scenario: found by host name, read again when the file changes, shared by running calls. */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef SCENARIOS
#error "define SCENARIOS: the folder of the scenario files"
#endif

#define NAME(name) #name,
static const char *const level_names[] = {LEVELS(NAME)};
static const char *const counter_names[] = {COUNTERS(NAME)};

static const struct {
    const char *key;
    size_t offset, size;
} texts[] = {
#define TEXT(field) {#field, offsetof(Gpu, field), sizeof((Gpu *)0)->field}
    TEXT(name), TEXT(serial), TEXT(part_number), TEXT(vbios), TEXT(pci_bus_id),
};

enum { UNWATCHED_MS = 10 };
/* The file is checked no more often than this, so about once for each tick of all GPUs. The writer of a scenario waits
 * several times as long before its new rates begin. */
static const int64_t LOOK_EVERY_NS = 2000000;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER; /* for scenarios with one_lock */
static Scenario *current; /* holds itself */
static FILE *held; /* the file that current was read from */
static struct stat seen;
static int64_t looked_ns;
static char scenario_path[4096], journal_path[4096];
static int state = DRIVER_NOT_LOADED, users;
static Slot slots[MAX_GPUS][1 + MAX_MIGS];

int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t unix_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void sleep_ms(int milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (milliseconds > 0 && nanosleep(&left, &left) != 0)
        ;
}

/* Takes CPU time as the driver's call does, with one_lock one call after another. */
static void spin_us(int microseconds, int one_lock)
{
    struct timespec begun, now;
    if (microseconds <= 0)
        return;
    if (one_lock)
        pthread_mutex_lock(&driver_lock);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < microseconds * 1000L);
    if (one_lock)
        pthread_mutex_unlock(&driver_lock);
}

int64_t counter_at(const Counter *counter, int64_t now_ns)
{
    const Segment *segment = counter->segment;
    for (int i = 1; i < counter->segments && counter->segment[i].anchor_ns <= now_ns; i++)
        segment = &counter->segment[i];
    if (now_ns < segment->anchor_ns)
        return segment->value;
    return segment->value + (int64_t)((__int128)segment->rate * (now_ns - segment->anchor_ns) / 1000000000);
}

int rule_for(const Rules *rules, const char *name, int fallback)
{
    for (int i = rules->rules - 1; i >= 0; i--) /* the last one counts */
        if (strcmp(rules->rule[i].name, name) == 0)
            return rules->rule[i].value;
    return fallback;
}

int driver_before(const Scenario *scenario, int major, int minor)
{
    int own_major = 0, own_minor = 0;
    sscanf(scenario->driver_version, "%d.%d", &own_major, &own_minor);
    return own_major < major || (own_major == major && own_minor < minor);
}

/* ---- parsing; each parser returns 1 if it understood the line */

static int copy_text(char *into, size_t size, const char *text)
{
    return (size_t)snprintf(into, size, "%s", text) < size;
}

static int name_index(const char *const *names, int count, const char *name)
{
    int i = 0;
    while (i < count && strcmp(names[i], name) != 0)
        i++;
    return i;
}

static int parse_rule(Rules *rules, const char *rest)
{
    return rules->rules < MAX_RULES &&
           sscanf(rest, "%63s %d", rules->rule[rules->rules].name, &rules->rule[rules->rules].value) == 2 &&
           ++rules->rules;
}

static int parse_counter(Gpu *gpu, const char *rest)
{
    char name[40];
    long long anchor, value, rate;
    if (sscanf(rest, "%39s %lld %lld %lld", name, &anchor, &value, &rate) != 4)
        return 0;
    int index = name_index(counter_names, COUNTER_COUNT, name);
    if (index == COUNTER_COUNT)
        return 0;
    Counter *counter = &gpu->counter[index];
    if (counter->segments == MAX_SEGMENTS) { /* the file holds the whole history, a call needs its end */
        memmove(counter->segment, counter->segment + 1, sizeof(Segment) * (MAX_SEGMENTS - 1));
        counter->segments--;
    }
    counter->segment[counter->segments++] = (Segment){anchor, value, rate};
    return 1;
}

static int parse_process(Gpu *gpu, const char *rest)
{
    if (gpu->processes == MAX_PROCESSES)
        return 0;
    Process *process = &gpu->process[gpu->processes++];
    long long used, sm, memory;
    if (sscanf(rest, "%c %u %u %u %lld %lld %lld", &process->type, &process->pid, &process->gpu_instance,
               &process->compute_instance, &used, &sm, &memory) != 7)
        return 0;
    process->used_mib = used;
    process->sm_percent = sm < 0 ? ABSENT : sm;
    process->memory_percent = memory;
    return 1;
}

static int parse_mig(Gpu *gpu, const char *rest)
{
    if (gpu->migs == MAX_MIGS)
        return 0;
    Mig *mig = &gpu->mig[gpu->migs++];
    long long total, used;
    if (sscanf(rest, "%95s %31s %u %u %u %u %lld %lld %lf", mig->uuid, mig->profile, &mig->gpu_instance,
               &mig->compute_instance, &mig->slices, &mig->multiprocessors, &total, &used,
               &mig->sm_active) != 9)
        return 0;
    mig->total_mib = total;
    mig->used_mib = used;
    return 1;
}

static int parse_event(Gpu *gpu, const char *rest)
{
    unsigned long long type, data;
    if (gpu->events == MAX_EVENTS || sscanf(rest, "%llu %llu", &type, &data) != 2)
        return 0;
    gpu->event[gpu->events++] = (Event){type, data};
    return 1;
}

static int parse_gpm(Gpu *gpu, const char *rest)
{
    GpmLevel *level = &gpu->gpm[gpu->gpms];
    return gpu->gpms < MAX_GPM && sscanf(rest, "%u %lf", &level->id, &level->value) == 2 && ++gpu->gpms;
}

static int parse_system(Scenario *into, const char *key, const char *rest)
{
    if (strcmp(key, "driver_version") == 0)
        return copy_text(into->driver_version, sizeof into->driver_version, rest);
    if (strcmp(key, "nvml_version") == 0)
        return copy_text(into->nvml_version, sizeof into->nvml_version, rest);
    if (strcmp(key, "cuda_version") == 0)
        return sscanf(rest, "%d", &into->cuda_version) == 1;
    if (strcmp(key, "one_lock") == 0)
        return sscanf(rest, "%d", &into->one_lock) == 1;
    if (strcmp(key, "spin") == 0)
        return parse_rule(&into->spins, rest);
    return 0;
}

static int parse_line(Scenario *into, const char *key, const char *rest)
{
    Gpu *gpu = into->gpus > 0 ? &into->gpu[into->gpus - 1] : NULL;
    if (strcmp(key, "gpu") == 0) {
        if (into->gpus == MAX_GPUS)
            return 0;
        gpu = &into->gpu[into->gpus++];
        gpu->answers = into->answers;
        gpu->delays = into->delays;
        for (int i = 0; i < LEVEL_COUNT; i++)
            gpu->level[i] = ABSENT;
        return copy_text(gpu->uuid, sizeof gpu->uuid, rest);
    }
    if (strcmp(key, "answer") == 0)
        return parse_rule(gpu ? &gpu->answers : &into->answers, rest);
    if (strcmp(key, "delay") == 0)
        return parse_rule(gpu ? &gpu->delays : &into->delays, rest);
    if (gpu == NULL)
        return parse_system(into, key, rest);
    if (strcmp(key, "counter") == 0)
        return parse_counter(gpu, rest);
    if (strcmp(key, "process") == 0)
        return parse_process(gpu, rest);
    if (strcmp(key, "mig") == 0)
        return parse_mig(gpu, rest);
    if (strcmp(key, "event") == 0)
        return parse_event(gpu, rest);
    if (strcmp(key, "gpm") == 0)
        return parse_gpm(gpu, rest);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(key, texts[i].key) == 0)
            return copy_text((char *)gpu + texts[i].offset, texts[i].size, rest);
    int level = name_index(level_names, LEVEL_COUNT, key);
    long long value;
    if (level == LEVEL_COUNT || sscanf(rest, "%lld", &value) != 1)
        return 0;
    gpu->level[level] = value;
    return 1;
}

static int read_scenario(FILE *file, const char *path, Scenario *into)
{
    char line[512];
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        line[strcspn(line, "\n")] = '\0';
        char *rest = strchr(line, ' ');
        if (rest != NULL)
            *rest++ = '\0';
        if (!parse_line(into, line, rest ? rest : "")) {
            fprintf(stderr, "NVML stand-in: %s:%d: cannot read this \"%s\" line\n", path, number, line);
            return UNKNOWN;
        }
    }
    return OK;
}

/* The paths of the scenario and the journal, found once to keep calls cheap. */
__attribute__((constructor)) static void find_paths(void)
{
    char host[256] = "";
    const char *named = getenv("GSWARM_STANDIN_SCENARIO");
    gethostname(host, sizeof host - 1);
    if (named != NULL && *named != '\0')
        snprintf(scenario_path, sizeof scenario_path, "%s", named);
    else
        snprintf(scenario_path, sizeof scenario_path, "%s/%s.scenario", SCENARIOS, host);
    snprintf(journal_path, sizeof journal_path, "%s/%s.journal", SCENARIOS, host);
}

static void drop(Scenario *scenario)
{
    if (scenario != NULL && --scenario->holders == 0)
        free(scenario);
}

/* Brings current up to date with the file. Called with the lock held. */
static int refresh(void)
{
    struct stat status; /* of a file that is held, which costs a third of a path's; replaced, it has no name */
    int64_t now = monotonic_ns();
    if (held != NULL && now - looked_ns < LOOK_EVERY_NS)
        return state;
    looked_ns = now;
    if (held != NULL && fstat(fileno(held), &status) == 0 && status.st_nlink > 0 &&
        status.st_size == seen.st_size && status.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        status.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return state;
    if (held != NULL)
        fclose(held);
    held = fopen(scenario_path, "re");
    if (held == NULL)
        return DRIVER_NOT_LOADED;
    Scenario *next = calloc(1, sizeof *next);
    fstat(fileno(held), &seen);
    state = next == NULL ? OUT_OF_MEMORY : read_scenario(held, scenario_path, next);
    if (next != NULL) {
        next->holders = 1;
        drop(current);
        current = next;
    }
    return state;
}

void let_go(Scenario **scenario)
{
    pthread_mutex_lock(&lock);
    drop(*scenario);
    pthread_mutex_unlock(&lock);
}

void let_go_of(Target *target)
{
    let_go(&target->scenario);
}

static void look_at_once(void)
{
    pthread_mutex_lock(&lock);
    looked_ns = 0;
    pthread_mutex_unlock(&lock);
}

int watch_changes(void)
{
    char folder[sizeof scenario_path];
    strcpy(folder, scenario_path);
    char *end = strrchr(folder, '/');
    if (end != NULL)
        *end = '\0';
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch >= 0 && inotify_add_watch(watch, end != NULL ? folder : ".", IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
        close(watch);
        return -1;
    }
    look_at_once(); /* for a change between the last look and this watch */
    return watch;
}

void await_change(int watch, int milliseconds)
{
    char seen_events[4096];
    if (watch < 0)
        sleep_ms(milliseconds < UNWATCHED_MS ? milliseconds : UNWATCHED_MS);
    else if (poll(&(struct pollfd){.fd = watch, .events = POLLIN}, 1, milliseconds) > 0)
        while (read(watch, seen_events, sizeof seen_events) > 0)
            ;
    look_at_once();
}

void end_watch(int *watch)
{
    if (*watch >= 0)
        close(*watch);
}

/* ---- calls */

int attach_user(void)
{
    pthread_mutex_lock(&lock);
    int verdict = refresh();
    if (verdict == OK)
        verdict = rule_for(&current->answers, "nvmlInit", OK);
    if (verdict == OK)
        users++;
    pthread_mutex_unlock(&lock);
    return verdict;
}

int detach_user(void)
{
    pthread_mutex_lock(&lock);
    int verdict = users > 0 ? OK : UNINITIALIZED;
    if (verdict == OK)
        users--;
    pthread_mutex_unlock(&lock);
    return verdict;
}

int enter(const char *function, Scenario **system)
{
    pthread_mutex_lock(&lock);
    int delay = 0, spin = 0, one_lock = 0;
    int verdict = users > 0 ? refresh() : UNINITIALIZED;
    if (verdict == OK) {
        delay = rule_for(&current->delays, function, 0);
        spin = rule_for(&current->spins, function, 0);
        one_lock = current->one_lock;
        verdict = rule_for(&current->answers, function, OK);
        if (system != NULL) {
            *system = current;
            current->holders++;
        }
    }
    pthread_mutex_unlock(&lock);
    sleep_ms(delay);
    spin_us(spin, one_lock);
    return verdict;
}

Handle handle_of(int gpu, int mig)
{
    return &slots[gpu][1 + mig];
}

static int verdict_on(const Gpu *gpu, const Mig *mig, const char *function, int accepts)
{
    if (gpu->level[L_lost] > 0)
        return GPU_IS_LOST;
    int verdict = rule_for(&gpu->answers, function, OK);
    return verdict == OK && mig != NULL && accepts != GPU_OR_MIG ? NOT_SUPPORTED : verdict;
}

/* Adds a line to the host's journal, if a test has created one: the pid that read GPU 0's power, and the time. */
static void note_reading(int gpu, const char *function)
{
    char line[64];
    if (gpu != 0 || strcmp(function, "nvmlDeviceGetPowerUsage") != 0)
        return;
    int file = open(journal_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%d %lld\n", (int)getpid(), (long long)monotonic_ns());
    if (write(file, line, (size_t)length) != length)
        fprintf(stderr, "NVML stand-in: %s: a reading is not in the journal\n", journal_path);
    close(file);
}

int aim(Handle handle, const char *function, int accepts, Target *target)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)slots; /* wraps to a huge offset for addresses below */
    int index = (int)(offset / sizeof slots[0]), mig = (int)(offset % sizeof slots[0]) - 1, delay = 0;
    int spin = 0, one_lock = 0;

    pthread_mutex_lock(&lock);
    int verdict = users > 0 ? refresh() : UNINITIALIZED;
    if (verdict == OK && (offset >= sizeof slots || index >= current->gpus || mig >= current->gpu[index].migs))
        verdict = INVALID_ARGUMENT;
    if (verdict == OK) {
        note_reading(index, function);
        target->index = index;
        target->scenario = current;
        current->holders++;
        target->gpu = &current->gpu[index];
        target->mig = mig < 0 ? NULL : &target->gpu->mig[mig];
        delay = rule_for(&target->gpu->delays, function, 0);
        spin = rule_for(&current->spins, function, 0);
        one_lock = current->one_lock;
        verdict = verdict_on(target->gpu, target->mig, function, accepts);
    }
    pthread_mutex_unlock(&lock);
    sleep_ms(delay);
    spin_us(spin, one_lock);
    return verdict;
}
