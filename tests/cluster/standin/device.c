/* Calls on one GPU that report levels of the scenario: identity, memory, power, clocks, health, MIG. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1048576, ENCODER_PERIOD_US = 167000, MEMORY_V2 = 2 << 24 | 40, TEMPERATURE_V1 = 1 << 24 | 12 };

static int put(const Gpu *gpu, int level, unsigned *value)
{
    if (gpu->level[level] == ABSENT)
        return NOT_SUPPORTED;
    *value = (unsigned)gpu->level[level];
    return OK;
}

static int put2(const Gpu *gpu, int first, int second, unsigned *a, unsigned *b)
{
    int verdict = put(gpu, first, a);
    return verdict == OK ? put(gpu, second, b) : verdict;
}

static int64_t level_or(const Gpu *gpu, int level, int64_t fallback)
{
    return gpu->level[level] == ABSENT ? fallback : gpu->level[level];
}

static int text(const char *from, char *into, unsigned size)
{
    if (*from == '\0')
        return NOT_SUPPORTED;
    return (unsigned)snprintf(into, size, "%s", from) < size ? OK : INSUFFICIENT_SIZE;
}

/* ---- one call, one level */

#define REPORTS(function, level)                                                                            \
    int function(Handle device, unsigned *value)                                                            \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        return put(gpu, L_##level, value);                                                                  \
    }

REPORTS(nvmlDeviceGetMinorNumber, minor)
REPORTS(nvmlDeviceGetBrand, brand)
REPORTS(nvmlDeviceGetArchitecture, architecture)
REPORTS(nvmlDeviceGetNumGpuCores, cores)
REPORTS(nvmlDeviceGetPowerUsage, power_mw)
REPORTS(nvmlDeviceGetPowerManagementLimit, power_limit_mw)
REPORTS(nvmlDeviceGetEnforcedPowerLimit, power_limit_mw)
REPORTS(nvmlDeviceGetPowerManagementDefaultLimit, power_limit_default_mw)
REPORTS(nvmlDeviceGetPerformanceState, pstate)
REPORTS(nvmlDeviceGetPowerState, pstate)
REPORTS(nvmlDeviceGetFanSpeed, fan_percent)
REPORTS(nvmlDeviceGetNumFans, fans)
REPORTS(nvmlDeviceGetPersistenceMode, persistence_mode)
REPORTS(nvmlDeviceGetComputeMode, compute_mode)
REPORTS(nvmlDeviceGetDisplayActive, display_active)
REPORTS(nvmlDeviceGetDisplayMode, display_active)
REPORTS(nvmlDeviceGetCurrPcieLinkGeneration, pcie_gen)
REPORTS(nvmlDeviceGetMaxPcieLinkGeneration, pcie_gen_max)
REPORTS(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
REPORTS(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)
REPORTS(nvmlDeviceGetPcieReplayCounter, pcie_replays)

/* ---- two levels, or a level picked by an argument */

#define REPORTS_TWO(function, first, second)                                                                \
    int function(Handle device, unsigned *a, unsigned *b)                                                   \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        return put2(gpu, L_##first, L_##second, a, b);                                                      \
    }

REPORTS_TWO(nvmlDeviceGetCudaComputeCapability, compute_major, compute_minor)
REPORTS_TWO(nvmlDeviceGetPowerManagementLimitConstraints, power_limit_min_mw, power_limit_max_mw)

#define REPORTS_CLOCK(function, first)                                                                      \
    int function(Handle device, unsigned type, unsigned *mhz)                                               \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        return type < 4 ? put(gpu, L_##first + (int)type, mhz) : INVALID_ARGUMENT;                          \
    }

REPORTS_CLOCK(nvmlDeviceGetClockInfo, graphics_clock_mhz)
REPORTS_CLOCK(nvmlDeviceGetMaxClockInfo, max_graphics_clock_mhz)

#define REPORTS_REASONS(function)                                                                           \
    int function(Handle device, uint64_t *reasons)                                                          \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        *reasons = (uint64_t)level_or(gpu, L_clock_reasons, 0);                                             \
        return gpu->level[L_clock_reasons] == ABSENT ? NOT_SUPPORTED : OK;                                  \
    }

REPORTS_REASONS(nvmlDeviceGetCurrentClocksEventReasons)
REPORTS_REASONS(nvmlDeviceGetCurrentClocksThrottleReasons)

int nvmlDeviceGetTemperature(Handle device, unsigned sensor, unsigned *celsius)
{
    AIM(device, GPU_ONLY);
    return sensor == 0 ? put(gpu, L_temperature_c, celsius) : INVALID_ARGUMENT;
}

typedef struct {
    unsigned version, sensor;
    int celsius;
} Temperature;

int nvmlDeviceGetTemperatureV(Handle device, Temperature *temperature)
{
    AIM(device, GPU_ONLY);
    if (driver_before(target.scenario, 570, 0)) /* nvidia-ml-py has it since 12.570, not in 12.550 */
        return FUNCTION_NOT_FOUND;
    if (temperature->version != TEMPERATURE_V1)
        return VERSION_MISMATCH;
    if (temperature->sensor != 0)
        return INVALID_ARGUMENT;
    return put(gpu, L_temperature_c, (unsigned *)&temperature->celsius);
}

int nvmlDeviceGetTemperatureThreshold(Handle device, unsigned threshold, unsigned *celsius)
{
    AIM(device, GPU_ONLY);
    if (threshold > 1)
        return NOT_SUPPORTED;
    return put(gpu, threshold == 0 ? L_shutdown_temperature_c : L_slowdown_temperature_c, celsius);
}

typedef struct {
    unsigned version;
    int celsius;
} MarginTemperature;

int nvmlDeviceGetMarginTemperature(Handle device, MarginTemperature *margin)
{
    AIM(device, GPU_ONLY);
    return margin->version != (1 << 24 | 8) ? VERSION_MISMATCH
                                            : put(gpu, L_temperature_margin_c, (unsigned *)&margin->celsius);
}

int nvmlDeviceGetApplicationsClock(Handle device, unsigned type, unsigned *mhz)
{
    AIM(device, GPU_ONLY);
    return put(gpu, type == 2 ? L_app_memory_clock_mhz : L_app_sm_clock_mhz, mhz);
}

typedef struct {
    unsigned version;
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique, state, health;
} FabricInfo;

int nvmlDeviceGetGpuFabricInfoV(Handle device, FabricInfo *info)
{
    AIM(device, GPU_ONLY);
    return info->version != (2 << 24 | 36) ? VERSION_MISMATCH : put(gpu, L_fabric_state, &info->state);
}

/* ---- utilisation: not measured on a GPU in MIG mode */

typedef struct {
    unsigned gpu, memory;
} Utilization;

int nvmlDeviceGetUtilizationRates(Handle device, Utilization *rates)
{
    AIM(device, GPU_ONLY);
    if (gpu->level[L_mig_mode] == 1)
        return NOT_SUPPORTED;
    return put2(gpu, L_utilization_percent, L_memory_utilization_percent, &rates->gpu, &rates->memory);
}

#define REPORTS_CODEC(function, name)                                                                       \
    int function(Handle device, unsigned *percent, unsigned *period_us)                                     \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        *period_us = ENCODER_PERIOD_US;                                                                     \
        return gpu->level[L_mig_mode] == 1 ? NOT_SUPPORTED : put(gpu, L_##name, percent);                   \
    }

REPORTS_CODEC(nvmlDeviceGetEncoderUtilization, encoder_percent)
REPORTS_CODEC(nvmlDeviceGetDecoderUtilization, decoder_percent)

/* ---- identity */

int nvmlDeviceGetIndex(Handle device, unsigned *index)
{
    AIM(device, GPU_ONLY);
    (void)gpu;
    *index = (unsigned)target.index;
    return OK;
}

int nvmlDeviceGetName(Handle device, char *name, unsigned size)
{
    AIM(device, GPU_OR_MIG);
    char full[160];
    if (target.mig != NULL)
        snprintf(full, sizeof full, "%s MIG %s", gpu->name, target.mig->profile);
    return text(target.mig != NULL ? full : gpu->name, name, size);
}

int nvmlDeviceGetUUID(Handle device, char *uuid, unsigned size)
{
    AIM(device, GPU_OR_MIG);
    return text(target.mig != NULL ? target.mig->uuid : gpu->uuid, uuid, size);
}

#define REPORTS_TEXT(function, field)                                                                       \
    int function(Handle device, char *value, unsigned size)                                                 \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        return text(gpu->field, value, size);                                                               \
    }

REPORTS_TEXT(nvmlDeviceGetSerial, serial)
REPORTS_TEXT(nvmlDeviceGetBoardPartNumber, part_number)
REPORTS_TEXT(nvmlDeviceGetVbiosVersion, vbios)

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

int nvmlDeviceGetPciInfo_v3(Handle device, PciInfo *info)
{
    AIM(device, GPU_ONLY);
    memset(info, 0, sizeof *info);
    if (sscanf(gpu->pci_bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3)
        return NOT_SUPPORTED;
    info->pci_device_id = 0x10DE; /* the vendor; the device in the upper half is unknown */
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", info->domain & 0xFFFF,
             info->bus & 0xFF, info->device & 0xFF);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", gpu->pci_bus_id);
    return OK;
}

/* ---- memory, in bytes */

typedef struct {
    uint64_t total, free, used;
} Memory;

typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} MemoryV2;

static int memory(const Target *target, MemoryV2 *memory)
{
    const int64_t *level = target->gpu->level;
    int64_t total = target->mig ? target->mig->total_mib : level[L_memory_total_mib];
    int64_t used = target->mig ? target->mig->used_mib : level[L_memory_used_mib];
    int64_t reserved = target->mig ? 0 : level_or(target->gpu, L_memory_reserved_mib, 0);
    if (total == ABSENT || used == ABSENT)
        return NOT_SUPPORTED;
    *memory = (MemoryV2){MEMORY_V2, (uint64_t)total * MIB, (uint64_t)reserved * MIB,
                         (uint64_t)(total - reserved - used) * MIB, (uint64_t)used * MIB};
    return OK;
}

/* The first version counts the driver's reserve as used. */
int nvmlDeviceGetMemoryInfo(Handle device, Memory *info)
{
    AIM(device, GPU_OR_MIG);
    (void)gpu;
    MemoryV2 all;
    if ((verdict = memory(&target, &all)) == OK)
        *info = (Memory){all.total, all.free, all.used + all.reserved};
    return verdict;
}

int nvmlDeviceGetMemoryInfo_v2(Handle device, MemoryV2 *info)
{
    AIM(device, GPU_OR_MIG);
    (void)gpu;
    return info->version == MEMORY_V2 ? memory(&target, info) : VERSION_MISMATCH;
}

/* MIG devices share the GPU's. */
int nvmlDeviceGetBAR1MemoryInfo(Handle device, Memory *info)
{
    AIM(device, GPU_OR_MIG);
    int64_t total = gpu->level[L_bar1_total_mib], used = gpu->level[L_bar1_used_mib];
    if (total == ABSENT || used == ABSENT)
        return NOT_SUPPORTED;
    *info = (Memory){(uint64_t)total * MIB, (uint64_t)(total - used) * MIB, (uint64_t)used * MIB};
    return OK;
}

/* ---- health */

int nvmlDeviceGetEccMode(Handle device, unsigned *now, unsigned *pending)
{
    AIM(device, GPU_ONLY);
    *now = *pending = 1;
    return gpu->level[L_ecc_corrected_volatile] == ABSENT ? NOT_SUPPORTED : OK;
}

/* type 0 corrected, 1 uncorrected; kind 0 volatile, 1 aggregate */
int nvmlDeviceGetTotalEccErrors(Handle device, unsigned type, unsigned kind, uint64_t *count)
{
    AIM(device, GPU_ONLY);
    if (type > 1 || kind > 1)
        return INVALID_ARGUMENT;
    int64_t level = gpu->level[L_ecc_corrected_volatile + (int)(type + 2 * kind)];
    *count = (uint64_t)level;
    return level == ABSENT ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetRemappedRows(Handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure)
{
    AIM(device, GPU_ONLY);
    verdict = put2(gpu, L_remapped_corrected, L_remapped_uncorrected, corrected, uncorrected);
    return verdict == OK ? put2(gpu, L_remapped_pending, L_remapped_failure, pending, failure) : verdict;
}

/* ---- NVLink; a link is active as long as the scenario counts it, and does not call it down */

#define REPORTS_LINK(function, expression)                                                                  \
    int function(Handle device, unsigned link, unsigned *value)                                             \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        if (level_or(gpu, L_nvlink_links, 0) == 0)                                                          \
            return NOT_SUPPORTED;                                                                           \
        *value = (unsigned)(expression);                                                                    \
        return (int64_t)link < gpu->level[L_nvlink_links] ? OK : INVALID_ARGUMENT;                          \
    }

REPORTS_LINK(nvmlDeviceGetNvLinkState, (~level_or(gpu, L_nvlink_down, 0) >> (link & 63)) & 1)
REPORTS_LINK(nvmlDeviceGetNvLinkRemoteDeviceType, gpu->level[L_nvlink_peer] == ABSENT ? 2 : 0)
REPORTS_LINK(nvmlDeviceGetNvLinkVersion, level_or(gpu, L_nvlink_version, 0))

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle device, unsigned link, PciInfo *info)
{
    AIM(device, GPU_ONLY);
    int64_t peer = gpu->level[L_nvlink_peer];
    memset(info, 0, sizeof *info);
    if ((int64_t)link >= level_or(gpu, L_nvlink_links, 0))
        return INVALID_ARGUMENT;
    if (peer == ABSENT) /* an NVSwitch */
        snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 5 + link % 4);
    else
        snprintf(info->bus_id, sizeof info->bus_id, "%s", target.scenario->gpu[peer].pci_bus_id);
    return OK;
}

/* Two GPUs share a PCIe switch, four a NUMA node. */
int nvmlDeviceGetTopologyCommonAncestor(Handle device, Handle other, unsigned *level)
{
    AIM(device, GPU_ONLY);
    Target second __attribute__((cleanup(let_go_of))) = {0};
    verdict = aim(other, __func__, GPU_ONLY, &second);
    if (verdict != OK)
        return verdict;
    int a = target.index, b = second.index;
    (void)gpu;
    *level = a / 2 == b / 2 ? 10 : a / 4 == b / 4 ? 40 : 50;
    return OK;
}

/* ---- MIG */

int nvmlDeviceGetMigMode(Handle device, unsigned *now, unsigned *pending)
{
    AIM(device, GPU_ONLY);
    return put2(gpu, L_mig_mode, L_mig_mode, now, pending);
}

int nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count)
{
    AIM(device, GPU_ONLY);
    *count = gpu->level[L_mig_mode] == 1 ? MAX_MIGS : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned index, Handle *mig)
{
    AIM(device, GPU_ONLY);
    if (gpu->level[L_mig_mode] != 1)
        return NOT_SUPPORTED;
    if (index >= MAX_MIGS)
        return INVALID_ARGUMENT;
    *mig = handle_of(target.index, (int)index);
    return (int)index < gpu->migs ? OK : NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(Handle device, unsigned *is_mig)
{
    AIM(device, GPU_OR_MIG);
    (void)gpu;
    *is_mig = target.mig != NULL;
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle device, Handle *parent)
{
    AIM(device, GPU_OR_MIG);
    (void)gpu;
    *parent = handle_of(target.index, -1);
    return target.mig != NULL ? OK : INVALID_ARGUMENT;
}

#define REPORTS_MIG(function, field)                                                                        \
    int function(Handle device, unsigned *value)                                                            \
    {                                                                                                       \
        AIM(device, GPU_OR_MIG);                                                                            \
        (void)gpu;                                                                                          \
        if (target.mig == NULL)                                                                             \
            return NOT_SUPPORTED;                                                                           \
        *value = target.mig->field;                                                                         \
        return OK;                                                                                          \
    }

REPORTS_MIG(nvmlDeviceGetGpuInstanceId, gpu_instance)
REPORTS_MIG(nvmlDeviceGetComputeInstanceId, compute_instance)

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    uint64_t memory_mib;
} Attributes;

int nvmlDeviceGetAttributes_v2(Handle device, Attributes *attributes)
{
    AIM(device, GPU_OR_MIG);
    (void)gpu;
    if (target.mig == NULL)
        return NOT_SUPPORTED;
    *attributes = (Attributes){.multiprocessors = target.mig->multiprocessors,
                               .copy_engines = 1,
                               .gpu_slices = target.mig->slices,
                               .compute_slices = target.mig->slices,
                               .memory_mib = (uint64_t)target.mig->total_mib};
    return OK;
}

/* ---- what these GPUs don't have, but callers ask for: Windows' driver models, the fabric manager's state */

#define HAS_NOT(function)                                                                                   \
    int function(Handle device)                                                                             \
    {                                                                                                       \
        AIM(device, GPU_ONLY);                                                                              \
        (void)gpu;                                                                                          \
        return NOT_SUPPORTED;                                                                               \
    }

HAS_NOT(nvmlDeviceGetDriverModel)
HAS_NOT(nvmlDeviceGetDriverModel_v2)
HAS_NOT(nvmlDeviceGetConfComputeMemSizeInfo)
HAS_NOT(nvmlDeviceGetGpuFabricInfo)
HAS_NOT(nvmlDeviceGetProcessesUtilizationInfo)
