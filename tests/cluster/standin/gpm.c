/* GPU performance monitoring: two samples of a GPU, some time apart, give the metrics between them. The
 * scenario states the metrics; a GPU for which it states none has no GPM. */
#include "standin.h"

#include <stdlib.h>

enum { GPM_VERSION = 1 };
static const int64_t LEAST_DISTANCE_NS = 100000000;

typedef struct {
    int taken;
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
    support->supported = gpu->gpms > 0;
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
    if (gpu->gpms == 0)
        return NOT_SUPPORTED;
    *sample = (Sample){1, monotonic_ns(), *gpu};
    return OK;
}

/* The metrics are those of the later sample's scenario. */
int nvmlGpmMetricsGet(Metrics *metrics)
{
    int verdict = enter(__func__, NULL);
    if (verdict != OK)
        return verdict;
    if (metrics->version != GPM_VERSION)
        return VERSION_MISMATCH;
    if (!metrics->first->taken || !metrics->second->taken ||
        metrics->second->taken_ns - metrics->first->taken_ns < LEAST_DISTANCE_NS)
        return INVALID_ARGUMENT;
    const Gpu *gpu = &metrics->second->gpu;
    for (unsigned i = 0; i < metrics->count; i++) {
        Metric *metric = &metrics->metric[i];
        metric->verdict = NOT_SUPPORTED;
        for (int j = 0; j < gpu->gpms; j++)
            if (gpu->gpm[j].id == metric->id) {
                metric->verdict = OK;
                metric->value = gpu->gpm[j].value;
            }
    }
    return OK;
}
