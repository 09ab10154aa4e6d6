/* A stand-in for libnvidia-ml.so.1: the real binding loads it and asks it what it would ask a driver.
 *
 * Only the ABI is NVIDIA's (struct layouts and numbers as in nvml.h); what is answered comes from the scenario file.
 * It also watches its caller: nvml_stub_count, _gpm_alive, _inside and _violations tell a test how often a call was
 * made, whether GPM samples leaked, how many threads are inside a call, and whether NVML was shut down under one;
 * _gpm_crowd, how many were in GPM calls at once before the first metrics were had, which has crashed a real driver.
 */
#define _GNU_SOURCE
#include "scenario.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25,
};

typedef struct { int slot, mig; } device_t; /* mig: row of the scenario's list, -1 for a whole GPU */
typedef struct { int slot; double taken_at; } sample_t;
typedef struct { unsigned long long types[MAX_GPUS]; unsigned last; } event_set_t;
typedef struct { char name[TEXT]; unsigned long count; } counter_t;

static device_t table[MAX_GPUS], mig_table[MAX_MIGS]; /* by index, filled by the first init as a driver's are */
static int table_count, stuck[MAX_GPUS];
static atomic_int references, inside, gpm_alive, violations;
static atomic_int gpm_young = 1, gpm_inside, gpm_crowd; /* until the first metrics of the process */
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static counter_t counters[128];
static void *volatile nowhere = NULL;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void spend(unsigned microseconds) {
    if (microseconds >= 200) { /* a driver waits for its GPU */
        struct timespec pause = { microseconds / 1000000, (long)(microseconds % 1000000) * 1000 };
        nanosleep(&pause, NULL);
        return;
    }
    double end = now_s() + microseconds * 1e-6; /* a short call computes; a sleep would take far longer than asked */
    while (now_s() < end) { }
}

static void count_call(const char *name) { /* under the scenario's lock */
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        if (counters[i].name[0] == 0) snprintf(counters[i].name, TEXT, "%s", name);
        if (strcmp(counters[i].name, name) != 0) continue;
        counters[i].count++;
        return;
    }
}

unsigned long nvml_stub_count(const char *name) {
    unsigned long count = 0;
    scenario_lock();
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        if (strcmp(counters[i].name, name) == 0) count = counters[i].count;
    scenario_unlock();
    return count;
}

int nvml_stub_gpm_alive(void) { return gpm_alive; }
int nvml_stub_violations(void) { return violations; }
int nvml_stub_inside(void) { return inside; }
int nvml_stub_gpm_crowd(void) { return gpm_crowd; }
void nvml_stub_gpm_forget(void) { gpm_young = 1; gpm_crowd = 0; }

static int arrive(void) { return atomic_fetch_add(&inside, 1); }
static void leave(int *token) { (void)token; atomic_fetch_sub(&inside, 1); }

static int arrive_gpm(void) {
    int others = atomic_fetch_add(&gpm_inside, 1);
    if (gpm_young && others + 1 > gpm_crowd) gpm_crowd = others + 1;
    return others;
}
static void leave_gpm(int *token) { (void)token; atomic_fetch_sub(&gpm_inside, 1); }
#define GPM_CALL __attribute__((cleanup(leave_gpm), unused)) int gpm_token = arrive_gpm();

typedef struct { int error, hang, locked, crash; unsigned latency_us; } fate_t;

static fate_t fate_of(const scenario_t *s, const char *call, int slot) { /* a later line wins over an earlier one */
    fate_t fate = {0};
    for (int i = 0; i < s->fault_count; i++) {
        const fault_t *f = &s->fault[i];
        if (strcmp(f->call, call) != 0 && !(f->call[0] == '*' && slot >= 0)) continue;
        if (f->slot >= 0 && f->slot != slot) continue;
        if (f->latency_us) fate.latency_us = f->latency_us;
        else if (f->hang) fate.hang = 1;
        else if (f->locked) fate.locked = 1;
        else if (f->crash) fate.crash = f->crash;
        else fate.error = f->error;
    }
    return fate;
}

/* What every call goes through: its count, its fault, its time, and whether its GPU is there. */
static int begin(const char *call, int slot, gpu_t *copy) {
    fate_t fate;
    int lost = 0, first = 1;
    for (;;) {
        const scenario_t *s = scenario_lock();
        if (first) count_call(call);
        first = 0;
        fate = fate_of(s, call, slot);
        if (slot >= 0) {
            *copy = s->gpu[slot];
            if (copy->lost && copy->sticky_loss) stuck[slot] = 1;
            lost = copy->lost || stuck[slot];
        }
        scenario_unlock();
        if (!fate.hang) break;
        usleep(5000);
    }
    if (fate.crash == SIGSEGV) *(volatile int *)nowhere = 1;
    if (fate.crash) { signal(fate.crash, SIG_DFL); raise(fate.crash); }
    if (fate.locked) pthread_mutex_lock(&driver_lock);
    spend(fate.latency_us);
    if (fate.locked) pthread_mutex_unlock(&driver_lock);
    if (fate.error) return fate.error;
    if (references == 0 && strncmp(call, "nvmlInit", 8) != 0) return UNINITIALIZED;
    return lost ? GPU_IS_LOST : SUCCESS;
}

static int known(const device_t *d) {
    return (d >= table && d < table + MAX_GPUS) || (d >= mig_table && d < mig_table + MAX_MIGS);
}

#define SYSTEM_CALL                                                                      \
    __attribute__((cleanup(leave), unused)) int token = arrive();                        \
    { int answer = begin(__func__, -1, NULL); if (answer) return answer; }
#define DEVICE_CALL(d)                                                                   \
    __attribute__((cleanup(leave), unused)) int token = arrive();                        \
    gpu_t gpu;                                                                           \
    if (!known(d)) return INVALID_ARGUMENT;                                              \
    { int answer = begin(__func__, (d)->slot, &gpu); if (answer) return answer; }
#define GPU_CALL(d)                                                                      \
    DEVICE_CALL(d)                                                                       \
    if ((d)->mig >= 0) return NOT_SUPPORTED; /* a MIG instance has few values of its own */

static int text_out(char *to, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static int known_value(unsigned value, unsigned *to) { /* 0 in a scenario: this GPU has no such value */
    *to = value;
    return value ? SUCCESS : NOT_SUPPORTED;
}

static int slot_at(const scenario_t *s, int index) { return s->order_count ? s->order[index] : index; }

/* ---- the library ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    SYSTEM_CALL
    if (atomic_fetch_add(&references, 1) > 0) return SUCCESS;
    const scenario_t *s = scenario_lock();
    table_count = s->order_count ? s->order_count : s->gpu_count;
    for (int i = 0; i < table_count; i++) table[i] = (device_t){ slot_at(s, i), -1 };
    memset(stuck, 0, sizeof stuck);
    scenario_unlock();
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    SYSTEM_CALL
    if (atomic_fetch_sub(&references, 1) > 1) return SUCCESS;
    if (inside > 1) { /* a real driver crashes here, sooner or later */
        violations++;
        fprintf(stderr, "nvml stand-in: shut down while %d other calls were inside\n", inside - 1);
    }
    return SUCCESS;
}

const char *nvmlErrorString(int code) { static _Thread_local char text[32]; snprintf(text, sizeof text, "NVML answer %d", code); return text; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    SYSTEM_CALL
    int answer = text_out(to, size, scenario_lock()->driver);
    scenario_unlock();
    return answer;
}
int nvmlSystemGetNVMLVersion(char *to, unsigned size) { SYSTEM_CALL return text_out(to, size, "13.580.0"); }
int nvmlSystemGetCudaDriverVersion(int *to) { SYSTEM_CALL *to = scenario_lock()->cuda; scenario_unlock(); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { SYSTEM_CALL *to = scenario_lock()->cuda; scenario_unlock(); return SUCCESS; }

/* ---- finding GPUs ---- */

int nvmlDeviceGetCount_v2(unsigned *to) { SYSTEM_CALL *to = (unsigned)table_count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **to) {
    if (index >= (unsigned)table_count) { SYSTEM_CALL return INVALID_ARGUMENT; }
    DEVICE_CALL(&table[index])
    *to = &table[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **to) {
    SYSTEM_CALL
    int answer = NOT_FOUND;
    const scenario_t *s = scenario_lock();
    for (int i = 0; i < table_count; i++)
        if (strcmp(s->gpu[table[i].slot].uuid, uuid) == 0) { *to = &table[i]; answer = SUCCESS; }
    scenario_unlock();
    return answer;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t **to) {
    SYSTEM_CALL
    unsigned domain, number;
    if (sscanf(bus, "%x:%x:", &domain, &number) != 2 || number < 16 || number - 16 >= (unsigned)table_count) return NOT_FOUND;
    *to = &table[number - 16];
    return SUCCESS;
}

int nvmlDeviceGetIndex(device_t *d, unsigned *to) { GPU_CALL(d) *to = (unsigned)(d - table); return SUCCESS; }
int nvmlDeviceGetMinorNumber(device_t *d, unsigned *to) { GPU_CALL(d) *to = (unsigned)d->slot; return SUCCESS; }

static int mig_text(const device_t *d, char *to, unsigned size, int want_name) {
    const scenario_t *s = scenario_lock();
    int answer = d->mig >= s->mig_count ? NOT_FOUND : text_out(to, size, want_name ? s->mig[d->mig].name : s->mig[d->mig].uuid);
    scenario_unlock();
    return answer;
}
int nvmlDeviceGetUUID(device_t *d, char *to, unsigned size) {
    DEVICE_CALL(d)
    return d->mig >= 0 ? mig_text(d, to, size, 0) : text_out(to, size, gpu.uuid);
}
int nvmlDeviceGetName(device_t *d, char *to, unsigned size) {
    DEVICE_CALL(d)
    return d->mig >= 0 ? mig_text(d, to, size, 1) : text_out(to, size, gpu.name);
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *to) {
    GPU_CALL(d)
    *to = (pci_t){ .bus = (unsigned)(d - table) + 16, .id = 0x233510DE };
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", to->bus);
    snprintf(to->legacy, sizeof to->legacy, "0000:%02X:00.0", to->bus);
    return SUCCESS;
}

/* ---- cheap values ---- */

typedef struct { unsigned gpu, memory; } utilization_t;
int nvmlDeviceGetUtilizationRates(device_t *d, utilization_t *to) {
    GPU_CALL(d)
    if (gpu.mig_mode) return NOT_SUPPORTED;
    *to = (utilization_t){ gpu.util, gpu.mem_util };
    return SUCCESS;
}

static int memory_of(const device_t *d, const gpu_t *gpu, unsigned long long *total, unsigned long long *used) {
    *total = gpu->mem_total;
    *used = gpu->mem_used;
    if (d->mig >= 0) {
        const scenario_t *s = scenario_lock();
        int gone = d->mig >= s->mig_count;
        if (!gone) { *total = s->mig[d->mig].total; *used = s->mig[d->mig].used; }
        scenario_unlock();
        if (gone) return NOT_FOUND;
    }
    return *total ? SUCCESS : NOT_SUPPORTED;
}
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *to) { /* the first version counts the reserved part as used */
    DEVICE_CALL(d)
    int answer = memory_of(d, &gpu, &to->total, &to->used);
    to->used += gpu.mem_reserved;
    to->free = to->total - to->used;
    return answer;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory_v2_t *to) {
    DEVICE_CALL(d)
    if (to->version != 0x02000028) return ARGUMENT_VERSION_MISMATCH;
    int answer = memory_of(d, &gpu, &to->total, &to->used);
    to->reserved = gpu.mem_reserved;
    to->free = to->total - to->used - to->reserved;
    return answer;
}

int nvmlDeviceGetPowerUsage(device_t *d, unsigned *to) { GPU_CALL(d) return known_value(gpu.power_mw, to); }
int nvmlDeviceGetEnforcedPowerLimit(device_t *d, unsigned *to) { GPU_CALL(d) return known_value(gpu.limit_mw, to); }
int nvmlDeviceGetPowerManagementLimit(device_t *d, unsigned *to) { GPU_CALL(d) return known_value(gpu.limit_mw, to); }

int nvmlDeviceGetTemperature(device_t *d, int sensor, unsigned *to) { GPU_CALL(d) (void)sensor; return known_value(gpu.temp_c, to); }
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
int nvmlDeviceGetTemperatureV(device_t *d, temperature_t *to) {
    GPU_CALL(d)
    if (to->version != 0x100000C) return ARGUMENT_VERSION_MISMATCH;
    to->temperature = (int)gpu.temp_c;
    return gpu.temp_c ? SUCCESS : NOT_SUPPORTED;
}

static unsigned clock_of(int type, unsigned sm) { return type == 2 ? 3201 : sm; } /* 0 graphics, 1 SM, 2 memory */
int nvmlDeviceGetClockInfo(device_t *d, int type, unsigned *to) { GPU_CALL(d) return known_value(clock_of(type, gpu.sm_mhz), to); }
int nvmlDeviceGetMaxClockInfo(device_t *d, int type, unsigned *to) { GPU_CALL(d) return known_value(clock_of(type, gpu.sm_max_mhz), to); }
int nvmlDeviceGetCurrentClocksEventReasons(device_t *d, unsigned long long *to) { GPU_CALL(d) *to = gpu.reasons; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *d, unsigned long long *to) { GPU_CALL(d) *to = gpu.reasons; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkGeneration(device_t *d, unsigned *to) { GPU_CALL(d) return known_value(gpu.pcie_gen, to); }
int nvmlDeviceGetCurrPcieLinkWidth(device_t *d, unsigned *to) { GPU_CALL(d) return known_value(gpu.pcie_width, to); }

int nvmlDeviceGetTotalEccErrors(device_t *d, int type, int counter, unsigned long long *to) {
    GPU_CALL(d)
    *to = type == 1 && counter == 0 ? gpu.ecc_uncorrected : 0; /* uncorrected, volatile */
    return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(device_t *d, unsigned *to) { GPU_CALL(d) *to = gpu.retired_pending; return SUCCESS; }
int nvmlDeviceGetRemappedRows(device_t *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    GPU_CALL(d)
    *corrected = *uncorrected = 0;
    *pending = gpu.remap_pending;
    *failure = gpu.remap_failure;
    return SUCCESS;
}

/* What peers ask besides. */
int nvmlDeviceGetPerformanceState(device_t *d, unsigned *to) { GPU_CALL(d) *to = 0; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(device_t *d, unsigned *to) { GPU_CALL(d) *to = 1; return SUCCESS; }
int nvmlDeviceGetComputeMode(device_t *d, unsigned *to) { GPU_CALL(d) *to = 0; return SUCCESS; }
int nvmlDeviceGetDisplayMode(device_t *d, unsigned *to) { GPU_CALL(d) *to = 0; return SUCCESS; }
int nvmlDeviceGetDisplayActive(device_t *d, unsigned *to) { GPU_CALL(d) *to = 0; return SUCCESS; }
int nvmlDeviceGetFanSpeed(device_t *d, unsigned *to) { GPU_CALL(d) (void)to; return NOT_SUPPORTED; }
int nvmlDeviceGetEncoderUtilization(device_t *d, unsigned *to, unsigned *period) { GPU_CALL(d) *to = 0; *period = 1; return SUCCESS; }
int nvmlDeviceGetDecoderUtilization(device_t *d, unsigned *to, unsigned *period) { GPU_CALL(d) *to = 0; *period = 1; return SUCCESS; }
int nvmlDeviceGetDriverModel(device_t *d, unsigned *now, unsigned *pending) { GPU_CALL(d) (void)now; (void)pending; return NOT_SUPPORTED; }
int nvmlDeviceGetDriverModel_v2(device_t *d, unsigned *now, unsigned *pending) { GPU_CALL(d) (void)now; (void)pending; return NOT_SUPPORTED; }
int nvmlDeviceGetCudaComputeCapability(device_t *d, int *major, int *minor) { GPU_CALL(d) *major = 9; *minor = 0; return SUCCESS; }
int nvmlDeviceGetBAR1MemoryInfo(device_t *d, memory_t *to) { GPU_CALL(d) *to = (memory_t){ 1ull << 38, 1ull << 38, 0 }; return SUCCESS; }

/* ---- dear values ---- */

int nvmlDeviceGetTotalEnergyConsumption(device_t *d, unsigned long long *to) {
    GPU_CALL(d)
    *to = gpu.energy_mj;
    return gpu.energy_mj ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPcieThroughput(device_t *d, int counter, unsigned *to) { /* KB/s; 0 is TX, 1 is RX */
    GPU_CALL(d)
    *to = counter == 0 ? gpu.pcie_tx_kb : gpu.pcie_rx_kb;
    return SUCCESS;
}

typedef struct { unsigned id, scope; int64_t time, latency; unsigned type, answer; union { double d; unsigned u; unsigned long long ull; } value; } field_t;
int nvmlDeviceGetFieldValues(device_t *d, int count, field_t *fields) {
    GPU_CALL(d)
    for (int i = 0; i < count; i++) {
        field_t *f = &fields[i];
        f->answer = SUCCESS;
        f->type = 1; /* unsigned int */
        switch (f->id) {
        case 82: f->value.u = gpu.mem_temp_c; f->answer = gpu.mem_temp_c ? SUCCESS : NOT_SUPPORTED; break;
        case 83: f->value.ull = gpu.energy_mj; f->type = 3; f->answer = gpu.energy_mj ? SUCCESS : NOT_SUPPORTED; break;
        case 185: case 186: f->value.u = gpu.power_mw; break;
        default: f->answer = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

/* ---- processes ---- */

typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_info_t;
typedef struct { process_info_t plain; unsigned long long protected_bytes; } wide_process_info_t; /* drivers 535.43 to 535.86 */
#ifdef WIDE_PROCESS_INFO
typedef wide_process_info_t newest_process_info_t;
#else
typedef process_info_t newest_process_info_t;
#endif

static int processes(const device_t *d, unsigned *count, char *to, size_t stride, process_kind_t kind) {
    unsigned found = 0, room = *count;
    const scenario_t *s = scenario_lock();
    for (int i = 0; i < s->process_count; i++) {
        const process_t *p = &s->process[i];
        if (p->slot != d->slot || p->kind != kind) continue;
        if (d->mig >= 0 && d->mig < s->mig_count && p->gi != s->mig[d->mig].gi) continue;
        if (found < room && to) {
            memset(to + found * stride, 0, stride);
            *(process_info_t *)(to + found * stride) = (process_info_t){ p->pid, p->bytes, p->gi, p->gi };
        }
        found++;
    }
    scenario_unlock();
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, void *to) {
    DEVICE_CALL(d)
    return processes(d, count, to, sizeof(newest_process_info_t), COMPUTE);
}
int nvmlDeviceGetComputeRunningProcesses_v2(device_t *d, unsigned *count, void *to) {
    DEVICE_CALL(d)
    return processes(d, count, to, sizeof(process_info_t), COMPUTE);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *d, unsigned *count, void *to) {
    DEVICE_CALL(d)
    return processes(d, count, to, sizeof(newest_process_info_t), GRAPHICS);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(device_t *d, unsigned *count, void *to) {
    DEVICE_CALL(d)
    return processes(d, count, to, sizeof(process_info_t), GRAPHICS);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t *d, unsigned *count, void *to) {
    DEVICE_CALL(d)
    return processes(d, count, to, sizeof(newest_process_info_t), MPS);
}

typedef struct { unsigned pid; unsigned long long time; unsigned sm, mem, enc, dec; } process_sample_t;
int nvmlDeviceGetProcessUtilization(device_t *d, process_sample_t *to, unsigned *count, unsigned long long since) {
    GPU_CALL(d)
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    unsigned long long sampled = ((unsigned long long)t.tv_sec * 10 + (unsigned long long)t.tv_nsec / 100000000) * 100000; /* every 0.1 s */
    unsigned found = 0, room = *count;
    const scenario_t *s = scenario_lock();
    for (int i = 0; i < s->process_count && sampled > since; i++) {
        const process_t *p = &s->process[i];
        if (p->slot != d->slot || p->sm < 0) continue;
        if (found < room && to) to[found] = (process_sample_t){ p->pid, sampled, (unsigned)p->sm, 0, 0, 0 };
        found++;
    }
    scenario_unlock();
    *count = found;
    if (!found) return NOT_FOUND;
    return found > room || !to ? INSUFFICIENT_SIZE : SUCCESS;
}

typedef struct { unsigned long long time; union { double d; unsigned ui; unsigned long long ull; } value; } util_sample_t;
int nvmlDeviceGetSamples(device_t *d, int kind, unsigned long long since, int *type, unsigned *count, util_sample_t *to) {
    GPU_CALL(d)
    if (kind != 1 /* NVML_GPU_UTILIZATION_SAMPLES */) return NOT_SUPPORTED;
    *type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
    enum { KEPT = 100 };
    if (!to) { *count = KEPT; return SUCCESS; } /* a driver says how many it keeps, not how many are new */
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    unsigned long long newest = ((unsigned long long)t.tv_sec * 10 + (unsigned long long)t.tv_nsec / 100000000) * 100000; /* every 0.1 s */
    unsigned found = 0;
    for (unsigned back = KEPT; back-- > 0;) {
        unsigned long long sampled = newest - back * 100000ull;
        if (sampled <= since || found >= *count) continue;
        to[found].time = sampled;
        to[found++].value.ui = gpu.util_sampled;
    }
    *count = found;
    return found ? SUCCESS : NOT_FOUND;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(device_t *d, unsigned *now, unsigned *pending) { GPU_CALL(d) *now = *pending = gpu.mig_mode; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(device_t *d, unsigned *to) { GPU_CALL(d) *to = gpu.mig_mode ? 7 : 0; return SUCCESS; }
int nvmlDeviceIsMigDeviceHandle(device_t *d, unsigned *to) { DEVICE_CALL(d) *to = d->mig >= 0; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **to) {
    GPU_CALL(d)
    int answer = NOT_FOUND;
    unsigned at = 0;
    const scenario_t *s = scenario_lock();
    for (int i = 0; i < s->mig_count && answer; i++) {
        if (s->mig[i].slot != d->slot || at++ != index) continue;
        mig_table[i] = (device_t){ d->slot, i };
        *to = &mig_table[i];
        answer = SUCCESS;
    }
    scenario_unlock();
    return answer;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t *d, device_t **to) {
    DEVICE_CALL(d)
    for (int i = 0; i < table_count; i++)
        if (table[i].slot == d->slot) { *to = &table[i]; return SUCCESS; }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(device_t *d, unsigned *to) {
    DEVICE_CALL(d)
    if (d->mig < 0) return NOT_SUPPORTED;
    *to = scenario_lock()->mig[d->mig].gi;
    scenario_unlock();
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(device_t *d, unsigned *to) {
    DEVICE_CALL(d)
    if (d->mig < 0) return NOT_SUPPORTED;
    *to = 0;
    return SUCCESS;
}

/* ---- GPM ---- */

typedef struct { unsigned version, supported; } gpm_support_t;
int nvmlGpmQueryDeviceSupport(device_t *d, gpm_support_t *to) {
    GPU_CALL(d)
    if (to->version != 1) return ARGUMENT_VERSION_MISMATCH;
    to->supported = gpu.gpm;
    return SUCCESS;
}
int nvmlGpmSampleAlloc(sample_t **to) { SYSTEM_CALL *to = calloc(1, sizeof **to); gpm_alive++; return SUCCESS; }
int nvmlGpmSampleFree(sample_t *sample) { SYSTEM_CALL free(sample); gpm_alive--; return SUCCESS; }
int nvmlGpmSampleGet(device_t *d, sample_t *sample) {
    GPM_CALL
    GPU_CALL(d)
    if (!gpu.gpm || gpu.mig_mode) return NOT_SUPPORTED;
    *sample = (sample_t){ d->slot, now_s() };
    return SUCCESS;
}
int nvmlGpmMigSampleGet(device_t *d, unsigned gi, sample_t *sample) {
    GPU_CALL(d)
    (void)gi;
    if (!gpu.gpm || !gpu.mig_mode) return NOT_SUPPORTED;
    *sample = (sample_t){ d->slot, now_s() };
    return SUCCESS;
}

typedef struct { unsigned id; int answer; double value; const char *texts[3]; } metric_t;
typedef struct { unsigned version, count; sample_t *first, *second; metric_t metrics[]; } metrics_get_t;
int nvmlGpmMetricsGet(metrics_get_t *ask) {
    GPM_CALL
    __attribute__((cleanup(leave), unused)) int token = arrive();
    gpu_t gpu;
    if (ask->version != 1 || !ask->first || !ask->second) return INVALID_ARGUMENT;
    int answer = begin(__func__, ask->second->slot, &gpu);
    if (answer) return answer;
    if (ask->first->taken_at == 0 || ask->second->taken_at == 0) return INVALID_ARGUMENT;
    int too_close = ask->second->taken_at - ask->first->taken_at < 0.1;
    for (unsigned i = 0; i < ask->count; i++) {
        metric_t *m = &ask->metrics[i];
        if (m->id >= MAX_METRICS) return INVALID_ARGUMENT;
        m->answer = gpu.metric_return[m->id];
        m->value = too_close ? NAN : gpu.metric[m->id];
    }
    gpm_young = 0;
    return SUCCESS;
}

/* ---- events ---- */

int nvmlEventSetCreate(event_set_t **to) {
    SYSTEM_CALL
    *to = calloc(1, sizeof **to);
    const scenario_t *s = scenario_lock();
    for (int i = 0; i < s->event_count; i++)
        if (s->event[i].number > (*to)->last) (*to)->last = s->event[i].number;
    scenario_unlock();
    return SUCCESS;
}
int nvmlEventSetFree(event_set_t *set) { SYSTEM_CALL free(set); return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(device_t *d, unsigned long long *to) { GPU_CALL(d) *to = 0x1f; return SUCCESS; }
int nvmlDeviceRegisterEvents(device_t *d, unsigned long long types, event_set_t *set) {
    GPU_CALL(d)
    set->types[d->slot] |= types;
    return SUCCESS;
}

typedef struct { device_t *device; unsigned long long type, data; unsigned gi, ci; } event_data_t;
static int next_event(event_set_t *set, event_data_t *to) {
    const scenario_t *s = scenario_lock();
    const event_t *next = NULL;
    for (int i = 0; i < s->event_count; i++) {
        const event_t *e = &s->event[i];
        if (e->number > set->last && (set->types[e->slot] & e->type) && (!next || e->number < next->number)) next = e;
    }
    if (next) {
        set->last = next->number;
        *to = (event_data_t){ NULL, next->type, next->data, 0xffffffff, 0xffffffff };
        for (int i = 0; i < table_count; i++)
            if (table[i].slot == next->slot) to->device = &table[i];
    }
    scenario_unlock();
    return next != NULL;
}
int nvmlEventSetWait_v2(event_set_t *set, event_data_t *to, unsigned timeout_ms) {
    SYSTEM_CALL
    double end = now_s() + timeout_ms * 1e-3;
    while (!next_event(set, to)) {
        if (now_s() >= end) return TIMEOUT;
        usleep(2000);
    }
    return SUCCESS;
}
