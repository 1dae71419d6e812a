/* Calls that report counters, and the field values, each with its own verdict. */
#include "standin.h"

#include <stdio.h>

enum { UINT = 1, ULONGLONG = 3 };            /* NVML's value types */
enum { ALL_LINKS = -1 };                     /* scope 0xFFFFFFFF */
enum { KIB = 1024, BLACKWELL = 10 };

static int put(const Gpu *gpu, int counter, uint64_t *value)
{
    if (gpu->counter[counter].segments == 0)
        return NOT_SUPPORTED;
    *value = (uint64_t)counter_at(&gpu->counter[counter], monotonic_ns());
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(Handle device, uint64_t *millijoules)
{
    AIM(device, GPU_ONLY);
    return put(gpu, C_energy_mj, millijoules);
}

/* direction 0 is tx, 1 is rx; the value is in KiB/s, and the call takes its 20 ms by the scenario's delay */
int nvmlDeviceGetPcieThroughput(Handle device, unsigned direction, unsigned *kib_per_s)
{
    AIM(device, GPU_ONLY);
    if (direction > 1)
        return INVALID_ARGUMENT;
    const Counter *counter = &gpu->counter[direction == 0 ? C_pcie_tx_bytes : C_pcie_rx_bytes];
    if (counter->segments == 0)
        return NOT_SUPPORTED;
    int64_t now = monotonic_ns();
    *kib_per_s = (unsigned)((counter_at(counter, now) - counter_at(counter, now - 20000000)) * 50 / KIB);
    return OK;
}

typedef struct {
    uint64_t reference_us, violation_ns;
} Violation;

/* policy 0 is power, 1 is thermal; the scenario counts no other */
int nvmlDeviceGetViolationStatus(Handle device, unsigned policy, Violation *violation)
{
    AIM(device, GPU_ONLY);
    violation->reference_us = (uint64_t)unix_us();
    if (policy > 1)
        return NOT_SUPPORTED;
    return put(gpu, policy == 0 ? C_throttle_power_ns : C_throttle_sw_thermal_ns, &violation->violation_ns);
}

/* ---- field values */

typedef struct {
    unsigned id, scope;
    int64_t timestamp_us, latency_us;
    unsigned type;
    int verdict;
    union {
        unsigned ui;
        uint64_t ull;
    } value;
} Field;

_Static_assert(sizeof(Field) == 40, "nvmlFieldValue_t");

enum { MODULE = 1 }; /* NVML_POWER_SCOPE_MODULE */
enum Source { LEVEL, LINK_ERRORS, COUNTER, PCIE_COUNT, LINK_KIB, LINK_BYTES, LINK_SPEED };

static const struct {
    unsigned id;
    enum Source source;
    int index;
    unsigned type;
} fields[] = {
    {3, LEVEL, L_ecc_corrected_volatile, ULONGLONG},
    {4, LEVEL, L_ecc_uncorrected_volatile, ULONGLONG},
    {5, LEVEL, L_ecc_corrected_aggregate, ULONGLONG},
    {6, LEVEL, L_ecc_uncorrected_aggregate, ULONGLONG},
    {38, LINK_ERRORS, -1, ULONGLONG},
    {45, LINK_ERRORS, L_nvlink_crc_errors, ULONGLONG},
    {52, LINK_ERRORS, L_nvlink_replays, ULONGLONG},
    {59, LINK_ERRORS, L_nvlink_recoveries, ULONGLONG},
    {74, COUNTER, C_throttle_power_ns, ULONGLONG},
    {75, COUNTER, C_throttle_sw_thermal_ns, ULONGLONG},
    {82, LEVEL, L_memory_temperature_c, UINT},
    {83, COUNTER, C_energy_mj, ULONGLONG},
    {90, LEVEL, L_nvlink_speed_mbps, UINT},
    {91, LEVEL, L_nvlink_links, UINT},
    {94, LEVEL, L_pcie_replays, UINT},
    {138, LINK_KIB, C_nvlink_tx_kib, ULONGLONG},
    {139, LINK_KIB, C_nvlink_rx_kib, ULONGLONG},
    {142, LEVEL, L_remapped_corrected, UINT},
    {143, LEVEL, L_remapped_uncorrected, UINT},
    {144, LEVEL, L_remapped_pending, UINT},
    {145, LEVEL, L_remapped_failure, UINT},
    {161, LINK_ERRORS, L_nvlink_replays, ULONGLONG},
    {162, LINK_ERRORS, L_nvlink_recoveries, ULONGLONG},
    {163, LINK_ERRORS, L_nvlink_crc_errors, ULONGLONG},
    {164, LINK_SPEED, L_nvlink_speed_mbps, UINT},
    {185, LEVEL, L_power_mw, UINT},
    {186, LEVEL, L_power_instant_mw, UINT},
    {187, LEVEL, L_power_limit_min_mw, UINT},
    {188, LEVEL, L_power_limit_max_mw, UINT},
    {189, LEVEL, L_power_limit_default_mw, UINT},
    {190, LEVEL, L_power_limit_mw, UINT},
    {197, PCIE_COUNT, C_pcie_tx_bytes, ULONGLONG},
    {198, PCIE_COUNT, C_pcie_rx_bytes, ULONGLONG},
    {202, LINK_BYTES, C_nvlink_tx_kib, ULONGLONG},
    {204, LINK_BYTES, C_nvlink_rx_kib, ULONGLONG},
    {206, LINK_ERRORS, -1, ULONGLONG},
    {207, LINK_ERRORS, -1, ULONGLONG},
    {208, LINK_ERRORS, L_nvlink_crc_errors, ULONGLONG},
    {209, LINK_ERRORS, -1, ULONGLONG},
    {210, LINK_ERRORS, -1, ULONGLONG},
    {211, LINK_ERRORS, -1, ULONGLONG},
    {212, LINK_ERRORS, L_nvlink_replays, ULONGLONG},
    {215, LINK_ERRORS, L_nvlink_recoveries, ULONGLONG},
    {230, LEVEL, L_recovery_action, UINT},
    {269, COUNTER, C_throttle_sw_thermal_ns, ULONGLONG},
    {270, COUNTER, C_throttle_hw_thermal_ns, ULONGLONG},
    {271, COUNTER, C_throttle_power_brake_ns, ULONGLONG},
};

/* The total is shared out so that the links' values add up to it exactly and none ever falls. */
static int link_share(const Gpu *gpu, int link, uint64_t total, uint64_t *value)
{
    int64_t links = gpu->level[L_nvlink_links];
    if (links <= 0)
        return NOT_SUPPORTED;
    if (link < ALL_LINKS || link >= links)
        return INVALID_ARGUMENT;
    *value = link == ALL_LINKS ? total : (total + (uint64_t)link) / (uint64_t)links;
    return OK;
}

/* Before NVLink 5 there are totals (38 to 59) and counts of each link (161 to 163), from NVLink 5 on counts of all
 * links (206 to 215), as the change log of nvml.h and DCGM's NvmlFieldRequiresNvLinkAggregate say. */
static int link_errors(const Gpu *gpu, const Field *field, int level, uint64_t *value)
{
    int five = gpu->level[L_nvlink_version] >= 7, of_link = field->id >= 161 && field->id <= 163;
    *value = level < 0 ? 0 : (uint64_t)gpu->level[level];
    if (gpu->level[L_nvlink_links] <= 0 || five != (field->id >= 206))
        return NOT_SUPPORTED;
    if (five && (int)field->scope != ALL_LINKS)
        return INVALID_ARGUMENT;
    return of_link ? link_share(gpu, (int)field->scope, *value, value) : OK;
}

enum { PWR_SMOOTHING = 0 };

/* The id that nvml.h of driver 580.82 has for what a driver means by an id, from NVML_FI_MAX and the field ids of
 * nvidia-ml-py 12.535.161, 12.550.89, 12.570.86, 12.575.51, 13.580.65, 13.580.82 and 13.590.44. */
static unsigned meaning(const Scenario *driver, unsigned id)
{
    unsigned end = driver_before(driver, 550, 0)   ? 197
                   : driver_before(driver, 570, 0) ? 228
                   : driver_before(driver, 575, 0) ? 269
                   : driver_before(driver, 590, 0) ? 274
                                                   : 289;
    if (id >= end)
        return UINT32_MAX;
    if (driver_before(driver, 575, 0) || !driver_before(driver, 580, 82))
        return id >= 251 && id <= 268 ? PWR_SMOOTHING : id;
    return id >= 256 ? PWR_SMOOTHING : id >= 251 && id <= 253 ? id + 18 : id;
}

static int field_value(const Gpu *gpu, Field *field, unsigned id)
{
    size_t i = 0;
    if (id == UINT32_MAX)
        return INVALID_ARGUMENT;
    if (id == PWR_SMOOTHING && gpu->level[L_architecture] >= BLACKWELL) {
        field->type = UINT;
        field->value.ull = 7;
        return OK;
    }
    while (i < sizeof fields / sizeof *fields && fields[i].id != id)
        i++;
    if (i == sizeof fields / sizeof *fields)
        return NOT_SUPPORTED;

    uint64_t value = 0;
    int verdict = OK, index = fields[i].index;
    field->type = fields[i].type;
    if (field->id == 186 && field->scope == MODULE)
        index = L_module_power_mw;
    if (fields[i].source == LINK_ERRORS) {
        verdict = link_errors(gpu, field, index, &value);
    } else if (fields[i].source == LEVEL || fields[i].source == LINK_SPEED) {
        value = (uint64_t)gpu->level[index];
        verdict = gpu->level[index] == ABSENT ? NOT_SUPPORTED : OK;
    } else {
        verdict = put(gpu, index, &value);
    }
    if (fields[i].source == LINK_SPEED && field->scope < 64 && gpu->level[L_nvlink_slow] >> field->scope & 1)
        value /= 2;
    if (fields[i].source == PCIE_COUNT && gpu->level[L_pcie_counts_wrap] == 1) {
        field->type = UINT;
        value &= UINT32_MAX;
    }
    if (fields[i].source == LINK_BYTES && gpu->level[L_nvlink_version] < 7)
        verdict = NOT_SUPPORTED;
    if (verdict == OK && (fields[i].source == LINK_KIB || fields[i].source == LINK_BYTES))
        verdict = link_share(gpu, (int)field->scope, value, &value);
    if (fields[i].source == LINK_BYTES)
        value *= KIB;
    else if (fields[i].source == LINK_KIB && gpu->level[L_nvlink_version] >= 7)
        value = 0; /* no document says what NVLink 5 answers here: the worst is a counter that never moves */
    field->value.ull = 0;
    if (field->type == UINT)
        field->value.ui = (unsigned)value;
    else
        field->value.ull = value;
    return verdict;
}

int nvmlDeviceGetFieldValues(Handle device, int count, Field *values)
{
    AIM(device, GPU_ONLY);
    if (count <= 0)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", values[i].id);
        values[i].timestamp_us = unix_us();
        values[i].latency_us = 1;
        values[i].verdict = rule_for(&gpu->answers, id, OK);
        if (values[i].verdict == OK)
            values[i].verdict = field_value(gpu, &values[i], meaning(target.scenario, values[i].id));
    }
    return OK;
}
