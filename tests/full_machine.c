/* Refuses new processes and threads while the file FULL exists in the current folder, if loaded by LD_PRELOAD: as
 * the system does for users (ulimit -u) and jobs (pids.max) that have as many as allowed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

static int full(void) { return access("FULL", F_OK) == 0; }

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    return full() ? EAGAIN : next(thread, attributes, run, argument);
}

pid_t fork(void)
{
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    if (!full())
        return next();
    errno = EAGAIN;
    return -1;
}

pid_t vfork(void) { return fork(); }
