/* A clock that a test sets, for LD_PRELOAD: what a step of NTP, a resumed machine and a restored one look like.
 *
 * LLMTOP_CLOCK names a file of two 64-bit numbers, read at every call: nanoseconds added to CLOCK_REALTIME, and to
 * CLOCK_BOOTTIME. CLOCK_MONOTONIC stays as it is. A step of the wall clock moves the first alone; a suspended
 * machine moves both, since only the boot clock counts what it slept. What waits in the kernel waits by the
 * kernel's own clocks.
 *
 * With LLMTOP_CLOCK_OLD_WAITS, what a program waits for with a limit (sem_clockwait, as CPython's locks do) waits by
 * CLOCK_REALTIME, as CPython does where it was built for a glibc before 2.30.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

static const volatile int64_t *offsets;
static const int64_t none[2];

static void find_offsets(void)
{
    const char *path = getenv("LLMTOP_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    offsets = mapped == MAP_FAILED ? none : mapped;
}

static void add(struct timespec *at, int64_t nanoseconds)
{
    int64_t total = at->tv_sec * BILLION + at->tv_nsec + nanoseconds;
    at->tv_sec = total / BILLION;
    at->tv_nsec = total % BILLION;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    if (!offsets)
        find_offsets();
    int answer = (int)syscall(SYS_clock_gettime, clock, at);
    if (answer != 0)
        return answer;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        add(at, offsets[0]);
    else if (clock == CLOCK_BOOTTIME)
        add(at, offsets[1]);
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

static int64_t now(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * BILLION + at.tv_nsec;
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until)
{
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    if (!real)
        real = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    if (!getenv("LLMTOP_CLOCK_OLD_WAITS"))
        return real(semaphore, clock, until);
    int64_t deadline = now(CLOCK_REALTIME) + until->tv_sec * BILLION + until->tv_nsec - now(clock);
    while (now(CLOCK_REALTIME) < deadline) {
        struct timespec soon;
        clock_gettime(CLOCK_MONOTONIC, &soon);
        add(&soon, 5 * 1000 * 1000);
        if (real(semaphore, CLOCK_MONOTONIC, &soon) == 0)
            return 0;
        if (errno != ETIMEDOUT)
            return -1;
    }
    errno = ETIMEDOUT;
    return -1;
}
