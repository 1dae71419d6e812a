/* GPU performance monitoring: two samples of a GPU, some time apart, give the metrics between them. PCIe traffic is
 * the growth of its counters, unless the scenario states it, as it does the other metrics. */
#include "standin.h"

#include <stdlib.h>

enum { GPM_VERSION = 1, SM_UTIL = 2, PCIE_TX = 20, PCIE_RX = 21 };
static const int64_t LEAST_DISTANCE_NS = 50000000;

typedef struct {
    int taken, mig; /* mig: place of the instance, -1 for the GPU */
    int64_t taken_ns;
    Gpu gpu;
} Sample;

typedef struct {
    unsigned version, supported;
} Support;

typedef struct {
    unsigned id;
    int verdict;
    double value;
    const char *short_name, *long_name, *unit;
} Metric;

typedef struct {
    unsigned version, count;
    Sample *first, *second;
    Metric metric[];
} Metrics;

int nvmlGpmQueryDeviceSupport(Handle device, Support *support)
{
    AIM(device, GPU_ONLY);
    if (support->version != GPM_VERSION)
        return VERSION_MISMATCH;
    support->supported = gpu->level[L_has_gpm] == 1;
    return OK;
}

int nvmlGpmSampleAlloc(Sample **sample)
{
    int verdict = enter(__func__, NULL);
    if (verdict != OK)
        return verdict;
    *sample = calloc(1, sizeof **sample);
    return *sample != NULL ? OK : OUT_OF_MEMORY;
}

int nvmlGpmSampleFree(Sample *sample)
{
    free(sample);
    return OK;
}

int nvmlGpmSampleGet(Handle device, Sample *sample)
{
    AIM(device, GPU_ONLY);
    if (gpu->level[L_has_gpm] != 1)
        return NOT_SUPPORTED;
    *sample = (Sample){1, -1, monotonic_ns(), *gpu};
    return OK;
}

/* nvml.h: of a GPU in MIG mode and the id of one of its GPU instances. */
int nvmlGpmMigSampleGet(Handle device, unsigned gpu_instance, Sample *sample)
{
    AIM(device, GPU_ONLY);
    if (gpu->level[L_has_gpm] != 1)
        return NOT_SUPPORTED;
    for (int i = 0; i < gpu->migs; i++)
        if (gpu->level[L_mig_mode] == 1 && gpu->mig[i].gpu_instance == gpu_instance) {
            *sample = (Sample){1, i, monotonic_ns(), *gpu};
            return OK;
        }
    return INVALID_ARGUMENT;
}

/* MiB/s between the samples */
static double pcie_rate(const Metrics *metrics, int counter)
{
    int64_t from = metrics->first->taken_ns, until = metrics->second->taken_ns;
    const Counter *of = &metrics->second->gpu.counter[counter];
    return (double)(counter_at(of, until) - counter_at(of, from)) * 1e9 / (double)(until - from) / (1 << 20);
}

/* The metrics are those of the later sample's scenario. */
int nvmlGpmMetricsGet(Metrics *metrics)
{
    int verdict = enter(__func__, NULL);
    if (verdict != OK)
        return verdict;
    if (metrics->version != GPM_VERSION)
        return VERSION_MISMATCH;
    if (!metrics->first->taken || !metrics->second->taken)
        return INVALID_ARGUMENT;
    int too_close = metrics->second->taken_ns - metrics->first->taken_ns < LEAST_DISTANCE_NS;
    const Gpu *gpu = &metrics->second->gpu;
    for (unsigned i = 0; i < metrics->count; i++) {
        Metric *metric = &metrics->metric[i];
        int counter = metric->id == PCIE_TX ? C_pcie_tx_bytes : metric->id == PCIE_RX ? C_pcie_rx_bytes : -1;
        metric->verdict = NOT_SUPPORTED;
        if (counter >= 0 && gpu->counter[counter].segments > 0) {
            metric->verdict = OK;
            metric->value = pcie_rate(metrics, counter);
        }
        for (int j = 0; j < gpu->gpms; j++)
            if (gpu->gpm[j].id == metric->id) {
                metric->verdict = OK;
                metric->value = gpu->gpm[j].value;
            }
        if (metrics->second->mig >= 0 && counter >= 0) /* an instance has no PCIe link of its own */
            metric->verdict = NOT_SUPPORTED;
        if (metrics->second->mig >= 0 && metric->id == SM_UTIL) {
            metric->verdict = OK;
            metric->value = gpu->mig[metrics->second->mig].sm_active;
        }
        if (too_close)
            metric->value = 0; /* as a H200 does, without an error */
    }
    return OK;
}
