/* A stand-in for libamd_smi.so: every function that the binding looks up is in functions.h, made from the binding
   itself. What they answer stands in the scenario file ($LLMTOP_AMD_SCENARIO), which is read again when it changes:

     gpus N
     answer CALL SLOT KEY HEX     bytes that CALL writes for that GPU (KEY: its first integer argument, or 0)
     fault CALL SLOT KIND VALUE   KIND: error (amdsmi_status_t), latency (us), hang, crash (signal); SLOT * for all */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 2, NOT_INIT = 32, LINES = 4096 };
typedef struct { char call[64], kind[16]; int slot; long key; unsigned char *bytes; size_t size; long value; } line_t;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static line_t lines[LINES];
static int line_count, gpus, started;
static struct stat seen;
static int inside;

static unsigned char *unhex(const char *text, size_t *size) {
    *size = strlen(text) / 2;
    unsigned char *bytes = malloc(*size + 1);
    for (size_t i = 0; i < *size; i++) sscanf(text + 2 * i, "%2hhx", &bytes[i]);
    return bytes;
}

static void read_scenario(void) {
    const char *path = getenv("LLMTOP_AMD_SCENARIO");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) return;
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_size == seen.st_size) return;
    seen = now;
    for (int i = 0; i < line_count; i++) free(lines[i].bytes);
    line_count = gpus = 0;
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    while (file != NULL && getline(&text, &room, file) > 0 && line_count < LINES) {
        line_t one = {0};
        char slot[16];
        char *hex = malloc(room);
        sscanf(text, "gpus %d", &gpus);
        if (sscanf(text, "answer %63s %15s %ld %s", one.call, slot, &one.key, hex) == 4) one.bytes = unhex(hex, &one.size);
        else if (sscanf(text, "fault %63s %15s %15s %ld", one.call, slot, one.kind, &one.value) != 4) one.call[0] = 0;
        free(hex);
        if (one.call[0] == 0) continue;
        one.slot = strcmp(slot, "*") == 0 ? -1 : atoi(slot);
        lines[line_count++] = one;
    }
    free(text);
    if (file != NULL) fclose(file);
}

static long fault(const char *call, int slot, const char *kind) {
    pthread_mutex_lock(&guard);
    read_scenario();
    long value = 0;
    for (int i = 0; i < line_count; i++)
        if (strcmp(lines[i].kind, kind) == 0 && (lines[i].slot < 0 || lines[i].slot == slot)
            && (strcmp(lines[i].call, call) == 0 || (strcmp(lines[i].call, "*") == 0 && slot >= 0)))
            value = lines[i].value;
    pthread_mutex_unlock(&guard);
    return value;
}

static int enter(const char *call, int slot) {
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    while (fault(call, slot, "hang")) usleep(5000);
    long wait = fault(call, slot, "latency"), number = fault(call, slot, "crash");
    if (wait) usleep((useconds_t)wait);
    if (number) raise((int)number);
    int code = (int)fault(call, slot, "error");
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (code == 0 && slot >= 0 && !started) return NOT_INIT;
    return code;
}

/* A handle is the GPU's slot and 1: no pointer. `size` is what was written. */
static int answer(const char *call, void *handle, long key, void *out, size_t *size) {
    int slot = (int)(intptr_t)handle - 1, code = enter(call, slot);
    if (code != 0) return code;
    code = NOT_SUPPORTED;
    pthread_mutex_lock(&guard);
    for (int i = 0; i < line_count; i++)
        if (lines[i].bytes != NULL && lines[i].slot == slot && lines[i].key == key && strcmp(lines[i].call, call) == 0) {
            memcpy(out, lines[i].bytes, lines[i].size);
            *size = lines[i].size;
            code = 0;
        }
    pthread_mutex_unlock(&guard);
    return code;
}

int amdsmi_init(uint64_t flags) {
    (void)flags;
    int code = enter("amdsmi_init", -1);
    if (code == 0) started = 1;
    return code;
}

int amdsmi_shut_down(void) {
    if (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0) abort(); /* as a real one may */
    started = 0;
    return enter("amdsmi_shut_down", -1);
}

int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    int code = enter("amdsmi_get_socket_handles", -1);
    *count = (uint32_t)gpus;
    for (int i = 0; handles != NULL && i < gpus; i++) handles[i] = (void *)(intptr_t)(i + 1);
    return code;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    *count = 1;
    if (handles != NULL) handles[0] = socket;
    return enter("amdsmi_get_processor_handles", -1);
}

int amdsmi_get_gpu_device_uuid(void *gpu, uint32_t *length, char *uuid) {
    size_t size = 0;
    (void)length;
    return answer("amdsmi_get_gpu_device_uuid", gpu, 0, uuid, &size);
}

int amdsmi_get_energy_count(void *gpu, uint64_t *count, float *unit, uint64_t *stamp) {
    unsigned char bytes[20];
    size_t size = 0;
    int code = answer("amdsmi_get_energy_count", gpu, 0, bytes, &size);
    if (code != 0) return code;
    memcpy(count, bytes, 8); memcpy(unit, bytes + 8, 4); memcpy(stamp, bytes + 12, 8);
    return 0;
}

int amdsmi_get_gpu_process_list(void *gpu, uint32_t *most, void *list) {
    size_t size = 0;
    int code = answer("amdsmi_get_gpu_process_list", gpu, 0, list, &size);
    *most = (uint32_t)(size / PROCESS_SIZE);
    return code;
}

#define OUT(name) int name(void *gpu, void *out) { size_t size; return answer(#name, gpu, 0, out, &size); }
#define KEY_OUT(name) int name(void *gpu, uint32_t key, void *out) { size_t size; return answer(#name, gpu, key, out, &size); }
#define NONE(name) int name(void) { return NOT_SUPPORTED; }
OUT(amdsmi_get_gpu_enumeration_info) OUT(amdsmi_get_gpu_asic_info) OUT(amdsmi_get_gpu_driver_info)
OUT(amdsmi_get_gpu_activity) OUT(amdsmi_get_power_info) OUT(amdsmi_get_pcie_info) OUT(amdsmi_get_link_metrics)
KEY_OUT(amdsmi_get_clock_info) KEY_OUT(amdsmi_get_gpu_memory_usage) KEY_OUT(amdsmi_get_gpu_memory_total)
KEY_OUT(amdsmi_get_power_cap_info)
int amdsmi_get_temp_metric(void *gpu, uint32_t sensor, uint32_t metric, int64_t *out) {
    size_t size;
    (void)metric;
    return answer("amdsmi_get_temp_metric", gpu, sensor, out, &size);
}
#include "functions.h"
