/* Loaded before the C library: adds to the wall clock and delays syncs, by what a mapped file says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *dial; /* [0] ns to add to the wall clock, [1] ns to wait before a sync */
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("AGENTCTL_VERIFY_SHIM");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    if (file >= 0) {
        void *map = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
        dial = map == MAP_FAILED ? NULL : map;
        close(file);
    }
}

static void now(struct timespec *at) {
    struct timespec real;
    int64_t ns;
    real_clock_gettime(CLOCK_REALTIME, &real);
    ns = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec + (dial ? dial[0] : 0);
    at->tv_sec = ns / 1000000000;
    at->tv_nsec = ns % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real_clock_gettime)
        start();
    if (clock != CLOCK_REALTIME)
        return real_clock_gettime(clock, at);
    now(at);
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec spec;
    (void)zone;
    if (!real_clock_gettime)
        start();
    now(&spec);
    at->tv_sec = spec.tv_sec;
    at->tv_usec = spec.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec spec;
    if (!real_clock_gettime)
        start();
    now(&spec);
    if (at)
        *at = spec.tv_sec;
    return spec.tv_sec;
}

static void linger(void) {
    int64_t ns = dial ? dial[1] : 0;
    struct timespec wait = {ns / 1000000000, ns % 1000000000};
    if (ns > 0)
        nanosleep(&wait, NULL);
}

int fsync(int file) {
    linger();
    return real_fsync(file);
}

int fdatasync(int file) {
    linger();
    return real_fdatasync(file);
}
