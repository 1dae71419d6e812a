/* A wall clock that a test can set, for one process: preloaded, it shifts what CLOCK_REALTIME tells by the
 * seconds in the file that GSWARM_TEST_CLOCK names. All other clocks are the kernel's, as after a real step.
 * The kernel has time namespaces for the monotonic clocks only.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_s;

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("GSWARM_TEST_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *map = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        ahead_s = map;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && ahead_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (into != NULL)
        *into = precise.tv_sec;
    return precise.tv_sec;
}
