/* A stand-in for NVIDIA's management library, for tests only: shared declarations.
 *
 * It is no driver and knows no GPU. It implements NVML's calls from a scenario file that a test writes
 * (scenario.py) and may rewrite at any time. Levels and counters are named as in the scenario's Python
 * classes, with their units.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdint.h>

/* Return codes and value types carry NVML's numbers. */
enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    OUT_OF_MEMORY = 20,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

enum { MAX_GPUS = 16, MAX_MIGS = 7, MAX_PROCESSES = 64, MAX_EVENTS = 64, MAX_GPM = 32 };
enum { MAX_RULES = 48, MAX_SEGMENTS = 4 };

/* A level is one number that a call reports as it is; one that the scenario leaves out is NOT_SUPPORTED. The
 * clocks stand in the order of NVML's clock types, the ECC counts in that of its error types. */
#define LEVELS(X)                                                                                           \
    X(lost) X(minor) X(brand) X(architecture) X(cores) X(compute_major) X(compute_minor)                    \
    X(utilization_percent) X(memory_utilization_percent) X(encoder_percent) X(decoder_percent)              \
    X(memory_total_mib) X(memory_used_mib) X(memory_reserved_mib) X(bar1_total_mib) X(bar1_used_mib)        \
    X(power_mw) X(power_limit_mw) X(power_limit_default_mw) X(power_limit_min_mw) X(power_limit_max_mw)     \
    X(temperature_c) X(memory_temperature_c) X(slowdown_temperature_c) X(shutdown_temperature_c)            \
    X(graphics_clock_mhz) X(sm_clock_mhz) X(memory_clock_mhz) X(video_clock_mhz)                            \
    X(max_graphics_clock_mhz) X(max_sm_clock_mhz) X(max_memory_clock_mhz) X(max_video_clock_mhz)            \
    X(pstate) X(clock_reasons) X(fan_percent) X(fans)                                                       \
    X(ecc_corrected_volatile) X(ecc_uncorrected_volatile)                                                   \
    X(ecc_corrected_aggregate) X(ecc_uncorrected_aggregate)                                                 \
    X(remapped_corrected) X(remapped_uncorrected) X(remapped_pending) X(remapped_failure)                   \
    X(mig_mode) X(persistence_mode) X(compute_mode) X(display_active) X(event_types)                        \
    X(pcie_gen) X(pcie_gen_max) X(pcie_width) X(pcie_width_max) X(pcie_replays) X(pcie_counts_wrap)         \
    X(has_gpm)                                                                                              \
    X(nvlink_links) X(nvlink_version) X(nvlink_down) X(nvlink_slow) X(nvlink_peer)                          \
    X(nvlink_crc_errors) X(nvlink_replays) X(nvlink_recoveries) X(fabric_state) X(recovery_action)          \
    X(power_instant_mw) X(module_power_mw) X(temperature_margin_c) X(app_sm_clock_mhz) X(app_memory_clock_mhz) \
    X(nvlink_speed_mbps)

#define COUNTERS(X)                                                                                         \
    X(energy_mj) X(pcie_tx_bytes) X(pcie_rx_bytes) X(nvlink_tx_kib) X(nvlink_rx_kib)                        \
    X(throttle_power_ns) X(throttle_sw_thermal_ns) X(throttle_hw_thermal_ns) X(throttle_power_brake_ns)

#define LEVEL_ID(name) L_##name,
#define COUNTER_ID(name) C_##name,
enum { LEVELS(LEVEL_ID) LEVEL_COUNT };
enum { COUNTERS(COUNTER_ID) COUNTER_COUNT };

#define ABSENT INT64_MIN

/* From anchor_ns (CLOCK_MONOTONIC) on, the counter is value + rate * seconds. */
typedef struct {
    int64_t anchor_ns, value, rate;
} Segment;

typedef struct {
    int segments;
    Segment segment[MAX_SEGMENTS];
} Counter;

typedef struct {
    char type; /* C: compute, G: graphics */
    unsigned pid, gpu_instance, compute_instance;
    int64_t used_mib, sm_percent, memory_percent; /* sm_percent is ABSENT for a process without samples */
} Process;

typedef struct {
    uint64_t type, data;
} Event;

typedef struct {
    unsigned id;
    double value;
} GpmLevel;

typedef struct {
    char uuid[96], profile[32];
    unsigned gpu_instance, compute_instance, slices, multiprocessors;
    int64_t total_mib, used_mib;
    double sm_active;
} Mig;

/* The return code of a call (by function name) or field value (by id), how long a call sleeps in ms, or the CPU
 * time that it takes in microseconds. */
typedef struct {
    int rules;
    struct {
        char name[64];
        int value;
    } rule[MAX_RULES];
} Rules;

typedef struct {
    char uuid[96], name[96], serial[30], part_number[80], vbios[32], pci_bus_id[32];
    int64_t level[LEVEL_COUNT];
    Counter counter[COUNTER_COUNT];
    int processes, events, gpms, migs;
    Process process[MAX_PROCESSES];
    Event event[MAX_EVENTS];
    GpmLevel gpm[MAX_GPM];
    Mig mig[MAX_MIGS];
    Rules answers, delays;
} Gpu;

/* A scenario as it was read. Running calls share it; the last one to release an outdated scenario frees it. */
typedef struct {
    int holders;
    char driver_version[80], nvml_version[80];
    int cuda_version, gpus, one_lock;
    Rules answers, delays, spins;
    Gpu gpu[MAX_GPUS];
} Scenario;

/* nvmlDevice_t is opaque: here a slot's address; each GPU has a slot, and after it one for each MIG device. */
typedef struct {
    char unused;
} Slot, *Handle;

/* One call's view of its device, which stays the same when the scenario changes while the call runs. */
typedef struct {
    int index;
    const Mig *mig; /* of gpu, NULL for the GPU itself */
    const Gpu *gpu;
    Scenario *scenario;
} Target;

enum { GPU_ONLY = 0, GPU_OR_MIG = 1 };

/* Starts a call on a device: current scenario, its delay, its fault. A code other than OK is the call's result. */
int aim(Handle handle, const char *function, int accepts, Target *target);

/* Starts a call without a device; system, unless NULL, gets the scenario, which the caller releases. */
int enter(const char *function, Scenario **system);

void let_go(Scenario **scenario);
void let_go_of(Target *target);

/* A watch over the folder where scenarios are replaced, -1 where there can be none; what may have changed since it
 * began, or so many milliseconds, end a wait on it. */
int watch_changes(void);
void await_change(int watch, int milliseconds);
void end_watch(int *watch);

/* The answer or delay in ms that a rule gives for name, or fallback. */
int rule_for(const Rules *rules, const char *name, int fallback);

/* Whether the scenario's driver is older than a version. */
int driver_before(const Scenario *scenario, int major, int minor);

int attach_user(void);
int detach_user(void);

Handle handle_of(int gpu, int mig /* -1: the GPU */);
int64_t counter_at(const Counter *counter, int64_t now_ns);
int64_t monotonic_ns(void);
int64_t unix_us(void);
void sleep_ms(int milliseconds);

#define AIM(handle, accepts)                                                                                \
    Target target __attribute__((cleanup(let_go_of))) = {0};                                                \
    int verdict = aim((handle), __func__, (accepts), &target);                                              \
    if (verdict != OK)                                                                                      \
        return verdict;                                                                                     \
    const Gpu *gpu = target.gpu

#endif
