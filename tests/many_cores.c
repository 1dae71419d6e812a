/* Lets a program believe that the machine has MANY_CORES cores, if loaded by LD_PRELOAD: libraries start threads
 * for each of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

int get_nprocs(void) { return MANY_CORES; }

int get_nprocs_conf(void) { return MANY_CORES; }

long sysconf(int name)
{
    long (*next)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? MANY_CORES : next(name);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    memset(set, 0, size);
    for (int core = 0; core < MANY_CORES; core++)
        CPU_SET_S(core, size, set);
    return 0;
}
