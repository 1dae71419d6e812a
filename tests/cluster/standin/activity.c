/* Processes on a GPU, their utilisation samples, and events such as XIDs. */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1048576, PROCESS_DETAIL_V1 = 1 << 24 | 24 };
static const unsigned NO_INSTANCE = 0xFFFFFFFF;
static const int64_t SAMPLE_PERIOD_US = 166667; /* the driver takes about six samples a second */

/* ---- processes */

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

static int belongs(const Target *target, const Process *process, char type)
{
    const Mig *mig = target->mig;
    if (mig != NULL && (mig->gpu_instance != process->gpu_instance ||
                        mig->compute_instance != process->compute_instance))
        return 0;
    return process->type == type;
}

/* Drivers 535.43 to 535.98 write larger entries. */
static size_t entry_size(const Target *target)
{
    const Scenario *of = target->scenario;
    return driver_before(of, 535, 43) || !driver_before(of, 535, 99) ? sizeof(ProcessInfo) : 32;
}

static int list_processes(const Target *target, char type, unsigned *count, void *infos, size_t size)
{
    const Gpu *gpu = target->gpu;
    unsigned room = infos != NULL ? *count : 0;
    *count = 0;
    for (int i = 0; i < gpu->processes; i++) {
        const Process *process = &gpu->process[i];
        if (!belongs(target, process, type))
            continue;
        if (*count < room)
            *(ProcessInfo *)((char *)infos + *count * size) =
                (ProcessInfo){process->pid, (uint64_t)process->used_mib * MIB, process->gpu_instance,
                              process->compute_instance};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

#define LISTS(function, type)                                                                               \
    int function(Handle device, unsigned *count, ProcessInfo *infos)                                        \
    {                                                                                                       \
        AIM(device, GPU_OR_MIG);                                                                            \
        (void)gpu;                                                                                          \
        return list_processes(&target, type, count, infos, entry_size(&target));                                                 \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M')
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
    uint64_t protected_bytes;
} ProcessDetail;

typedef struct {
    unsigned version, mode, count;
    ProcessDetail *details;
} ProcessDetails;

int nvmlDeviceGetRunningProcessDetailList(Handle device, ProcessDetails *list)
{
    AIM(device, GPU_OR_MIG);
    (void)gpu;
    if (list->version != PROCESS_DETAIL_V1)
        return VERSION_MISMATCH;
    if (list->mode > 2)
        return INVALID_ARGUMENT;
    ProcessInfo infos[MAX_PROCESSES];
    unsigned room = list->details != NULL ? list->count : 0;
    list->count = MAX_PROCESSES;
    list_processes(&target, "CGM"[list->mode], &list->count, infos, sizeof infos[0]);
    for (unsigned i = 0; i < list->count && i < room; i++)
        list->details[i] = (ProcessDetail){infos[i].pid, infos[i].used_bytes, infos[i].gpu_instance,
                                           infos[i].compute_instance, 0};
    return list->count > room ? INSUFFICIENT_SIZE : OK;
}

typedef struct {
    unsigned pid;
    uint64_t timestamp_us;
    unsigned sm_percent, memory_percent, encoder_percent, decoder_percent;
} ProcessSample;

/* One sample a process, taken at the last whole period; those not newer than last_seen_us are left out. */
int nvmlDeviceGetProcessUtilization(Handle device, ProcessSample *samples, unsigned *count,
                                    uint64_t last_seen_us)
{
    AIM(device, GPU_ONLY);
    if (gpu->level[L_mig_mode] == 1)
        return NOT_SUPPORTED;
    int64_t now = unix_us(), taken = now - now % SAMPLE_PERIOD_US;
    unsigned found = 0;
    for (int i = 0; i < gpu->processes && taken > (int64_t)last_seen_us; i++) {
        const Process *process = &gpu->process[i];
        if (process->sm_percent == ABSENT)
            continue;
        if (samples != NULL && found < *count)
            samples[found] = (ProcessSample){process->pid, (uint64_t)taken, (unsigned)process->sm_percent,
                                             (unsigned)process->memory_percent, 0, 0};
        found++;
    }
    if (found == 0)
        return NOT_FOUND;
    if (samples == NULL || found > *count) { /* the driver, too, asks for room for its whole buffer */
        *count = MAX_PROCESSES;
        return INSUFFICIENT_SIZE;
    }
    *count = found;
    return OK;
}

/* ---- events: a set gets each event of a registered GPU once, from the moment of registration on */

typedef struct {
    uint64_t mask[MAX_GPUS];
    int delivered[MAX_GPUS];
} EventSet;

typedef struct {
    Handle device;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

int nvmlEventSetCreate(EventSet **set)
{
    int verdict = enter(__func__, NULL);
    if (verdict != OK)
        return verdict;
    *set = calloc(1, sizeof **set);
    return *set != NULL ? OK : OUT_OF_MEMORY;
}

int nvmlEventSetFree(EventSet *set)
{
    free(set);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Handle device, uint64_t *types)
{
    AIM(device, GPU_ONLY);
    *types = gpu->level[L_event_types] == ABSENT ? 0 : (uint64_t)gpu->level[L_event_types];
    return OK;
}

int nvmlDeviceRegisterEvents(Handle device, uint64_t types, EventSet *set)
{
    AIM(device, GPU_ONLY);
    if (gpu->level[L_event_types] == ABSENT || (types & ~(uint64_t)gpu->level[L_event_types]) != 0)
        return NOT_SUPPORTED;
    if (set->mask[target.index] == 0)
        set->delivered[target.index] = gpu->events;
    set->mask[target.index] |= types;
    return OK;
}

static int next_event(const Scenario *system, EventSet *set, EventData *data)
{
    for (int i = 0; i < system->gpus; i++)
        while (set->mask[i] != 0 && set->delivered[i] < system->gpu[i].events) {
            const Event *event = &system->gpu[i].event[set->delivered[i]++];
            if ((event->type & set->mask[i]) != 0) {
                *data = (EventData){handle_of(i, -1), event->type, event->data, NO_INSTANCE, NO_INSTANCE};
                return 1;
            }
        }
    return 0;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms)
{
    int64_t deadline = monotonic_ns() + (int64_t)timeout_ms * 1000000;
    int watch __attribute__((cleanup(end_watch))) = watch_changes();
    for (;;) {
        Scenario *system __attribute__((cleanup(let_go))) = NULL;
        int verdict = enter(__func__, &system);
        if (verdict != OK)
            return verdict;
        if (next_event(system, set, data))
            return OK;
        int64_t left_ns = deadline - monotonic_ns();
        if (left_ns <= 0)
            return TIMEOUT;
        await_change(watch, (int)(left_ns / 1000000) + 1);
    }
}
