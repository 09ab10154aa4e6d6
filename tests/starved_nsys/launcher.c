/* An nsys whose launcher gets no core for a while, for LD_PRELOAD: as on a busy machine, but each time.
 *
 * nsys's process `nsys-launcher` starts the program and then makes a semaphore, which nsys opens five times in 0.5 s
 * before it gives up. Here that takes LLMTOP_STARVED_MS longer. Other processes are left alone.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

sem_t *sem_open(const char *name, int flags, ...)
{
    sem_t *(*next)(const char *, int, ...) = (sem_t * (*)(const char *, int, ...)) dlsym(RTLD_NEXT, "sem_open");
    const char *starved = getenv("LLMTOP_STARVED_MS");
    mode_t mode;
    unsigned value;
    va_list more;
    if (!(flags & O_CREAT))
        return next(name, flags);
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    value = va_arg(more, unsigned);
    va_end(more);
    if (starved && strcmp(program_invocation_short_name, "nsys-launcher") == 0) {
        struct timespec left = {atoi(starved) / 1000, atoi(starved) % 1000 * 1000000L};
        while (nanosleep(&left, &left) == -1 && errno == EINTR)
            ;
    }
    return next(name, flags, mode, value);
}
