/* What PyTorch's profiler does where TEARDOWN_CUPTI is "1", without a GPU: when a recording has ended, a thread waits
 * for the next call of CUDA. The destructor of what it waits for runs after Python and does not end while it waits.
 */

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static int is_awaited;

static void *await_call(void *nothing)
{
    pthread_mutex_lock(&lock);
    while (is_awaited)
        pthread_cond_wait(&left, &lock);
    pthread_mutex_unlock(&lock);
    return nothing;
}

/* A recording has ended. */
void recording_has_ended(void)
{
    pthread_t thread;
    is_awaited = 1;
    if (pthread_create(&thread, NULL, await_call, NULL) == 0)
        pthread_detach(thread);
}

/* Any call of CUDA. */
void call_cuda(void)
{
    pthread_mutex_lock(&lock);
    is_awaited = 0;
    pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void destroy(void)
{
    pthread_cond_destroy(&left);
}
