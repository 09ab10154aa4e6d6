/* A disk quota for LD_PRELOAD, for kernels without CONFIG_QUOTA: write(2) fails with EDQUOT.
 *
 * Below the folder LLMTOP_QUOTA_FOLDER the process may write LLMTOP_QUOTA_BYTES. What is beyond is written in part,
 * as a file system does it, and the next write fails. Files that are made shorter give nothing back.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long written;

static int is_below(int number, const char *folder)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", number);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

ssize_t write(int number, const void *data, size_t length)
{
    const char *folder = getenv("LLMTOP_QUOTA_FOLDER"), *most = getenv("LLMTOP_QUOTA_BYTES");
    if (folder && most && length && is_below(number, folder)) {
        long left = atol(most) - atomic_load(&written);
        if (left <= 0) {
            errno = EDQUOT;
            return -1;
        }
        if (length > (size_t)left)
            length = (size_t)left;
        atomic_fetch_add(&written, (long)length);
    }
    return syscall(SYS_write, number, data, length);
}
