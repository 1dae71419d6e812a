/* Calls without a device, and those that find one: start and end, versions, counts, handles. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return attach_user();
}

int nvmlInit_v2(void)
{
    return attach_user();
}

int nvmlShutdown(void)
{
    return detach_user();
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
    case INVALID_ARGUMENT: return "A supplied argument is invalid";
    case NOT_SUPPORTED: return "The requested operation is not available on target device";
    case NOT_FOUND: return "A query to find an object was unsuccessful";
    case INSUFFICIENT_SIZE: return "An input argument is not large enough";
    case DRIVER_NOT_LOADED: return "NVIDIA driver is not loaded";
    case TIMEOUT: return "User provided timeout passed";
    case GPU_IS_LOST: return "The GPU has fallen off the bus or has otherwise become inaccessible";
    case VERSION_MISMATCH: return "The provided version is invalid/unsupported";
    default: return "An internal driver error occurred";
    }
}

static int text(const char *from, char *into, unsigned size)
{
    return (unsigned)snprintf(into, size, "%s", from) < size ? OK : INSUFFICIENT_SIZE;
}

#define ENTER                                                                                               \
    Scenario *system __attribute__((cleanup(let_go))) = NULL;                                               \
    int verdict = enter(__func__, &system);                                                                 \
    if (verdict != OK)                                                                                      \
    return verdict

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    ENTER;
    return text(system->driver_version, version, size);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    ENTER;
    return text(system->nvml_version, version, size);
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER;
    *version = system->cuda_version;
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    char path[32], found[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NOT_FOUND;
    size_t length = fread(found, 1, sizeof found - 1, file);
    fclose(file);
    return length > 0 ? text(found, name, size) : NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER;
    *count = (unsigned)system->gpus;
    return OK;
}

/* A GPU that is lost from the start (lost 2) is counted, but gives no handle. */
static int open_gpu(const Scenario *system, int index, const char *function, Handle *handle)
{
    const Gpu *gpu = &system->gpu[index];
    int verdict = gpu->level[L_lost] > 1 ? GPU_IS_LOST : rule_for(&gpu->answers, function, OK);
    if (verdict == OK)
        *handle = handle_of(index, -1);
    return verdict;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle)
{
    ENTER;
    return index < (unsigned)system->gpus ? open_gpu(system, (int)index, __func__, handle) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *handle)
{
    ENTER;
    for (int i = 0; i < system->gpus; i++) {
        if (strcmp(system->gpu[i].uuid, uuid) == 0)
            return open_gpu(system, i, __func__, handle);
        for (int j = 0; j < system->gpu[i].migs; j++)
            if (strcmp(system->gpu[i].mig[j].uuid, uuid) == 0) {
                *handle = handle_of(i, j);
                return OK;
            }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle *handle)
{
    ENTER;
    unsigned asked[3], own[3];
    if (sscanf(bus_id, "%x:%x:%x", &asked[0], &asked[1], &asked[2]) != 3)
        return INVALID_ARGUMENT;
    for (int i = 0; i < system->gpus; i++)
        if (sscanf(system->gpu[i].pci_bus_id, "%x:%x:%x", &own[0], &own[1], &own[2]) == 3 &&
            memcmp(asked, own, sizeof own) == 0)
            return open_gpu(system, i, __func__, handle);
    return NOT_FOUND;
}
