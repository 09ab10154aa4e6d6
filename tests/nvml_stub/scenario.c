#define _GNU_SOURCE
#include "scenario.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static scenario_t current;
static struct stat seen;
static char seen_path[4096];

typedef struct { const char *key; size_t offset, size; } key_t_;
#define KEY(field) { #field, offsetof(gpu_t, field), sizeof(((gpu_t *)0)->field) }
static const key_t_ gpu_keys[] = {
    KEY(util), KEY(util_sampled), KEY(mem_util), KEY(temp_c), KEY(mem_temp_c), KEY(sm_mhz), KEY(sm_max_mhz), KEY(pcie_gen),
    KEY(pcie_width), KEY(pcie_rx_kb), KEY(pcie_tx_kb), KEY(power_mw), KEY(limit_mw), KEY(retired_pending),
    KEY(remap_pending), KEY(remap_failure), KEY(gpm), KEY(mig_mode), KEY(lost), KEY(sticky_loss), KEY(mem_used),
    KEY(mem_total), KEY(mem_reserved), KEY(energy_mj), KEY(reasons), KEY(ecc_uncorrected),
};

static void complain(const char *line) { fprintf(stderr, "nvml stand-in: cannot read the scenario line: %s\n", line); }

static int read_slot(const char *text) { return strcmp(text, "*") == 0 ? -1 : atoi(text); }

static void set_gpu(gpu_t *gpu, const char *key, const char *value, const char *line) {
    if (strcmp(key, "name") == 0) { snprintf(gpu->name, TEXT, "%s", value); return; }
    if (strcmp(key, "uuid") == 0) { snprintf(gpu->uuid, TEXT, "%s", value); return; }
    for (size_t i = 0; i < sizeof gpu_keys / sizeof *gpu_keys; i++) {
        if (strcmp(key, gpu_keys[i].key) != 0) continue;
        unsigned long long number = strtoull(value, NULL, 0);
        memcpy((char *)gpu + gpu_keys[i].offset, &number, gpu_keys[i].size); /* little endian */
        return;
    }
    complain(line);
}

static void read_gpu(scenario_t *s, const char *line) {
    char slot_text[TEXT], key[TEXT], value[TEXT];
    if (sscanf(line, "gpu %95s %95s %95[^\n]", slot_text, key, value) != 3) { complain(line); return; }
    int slot = read_slot(slot_text);
    if (slot >= MAX_GPUS) { complain(line); return; }
    if (slot >= s->gpu_count) s->gpu_count = slot + 1;
    for (int i = 0; i < s->gpu_count; i++)
        if (slot < 0 || i == slot) set_gpu(&s->gpu[i], key, value, line);
}

static void read_gpm(scenario_t *s, const char *line) {
    char slot_text[TEXT], value[TEXT];
    int metric, answer = 0;
    if (sscanf(line, "gpm %95s %d %95s %d", slot_text, &metric, value, &answer) < 3 || metric < 0 || metric >= MAX_METRICS) {
        complain(line);
        return;
    }
    int slot = read_slot(slot_text);
    for (int i = 0; i < s->gpu_count; i++) {
        if (slot >= 0 && i != slot) continue;
        s->gpu[i].metric[metric] = strcmp(value, "nan") == 0 ? NAN : strtod(value, NULL);
        s->gpu[i].metric_return[metric] = answer;
    }
}

static void read_fault(scenario_t *s, const char *line) {
    char call[TEXT], slot_text[TEXT], kind[TEXT];
    int value;
    if (sscanf(line, "fault %95s %95s %95s %d", call, slot_text, kind, &value) != 4 || s->fault_count == MAX_FAULTS) {
        complain(line);
        return;
    }
    fault_t *fault = &s->fault[s->fault_count++];
    snprintf(fault->call, TEXT, "%s", call);
    fault->slot = read_slot(slot_text);
    if (strcmp(kind, "error") == 0) fault->error = value;
    else if (strcmp(kind, "latency") == 0) fault->latency_us = (unsigned)value;
    else if (strcmp(kind, "hang") == 0) fault->hang = value;
    else if (strcmp(kind, "crash") == 0) fault->crash = value;
    else if (strcmp(kind, "locked") == 0) fault->locked = value;
    else complain(line);
}

static void read_process(scenario_t *s, const char *line) {
    char kind[TEXT];
    int gi;
    process_t p = {0};
    if (sscanf(line, "process %d %u %llu %d %95s %d", &p.slot, &p.pid, &p.bytes, &p.sm, kind, &gi) != 6
        || s->process_count == MAX_PROCESSES) {
        complain(line);
        return;
    }
    p.kind = strcmp(kind, "graphics") == 0 ? GRAPHICS : strcmp(kind, "mps") == 0 ? MPS : COMPUTE;
    p.gi = (unsigned)gi;
    s->process[s->process_count++] = p;
}

static void read_mig(scenario_t *s, const char *line) {
    mig_t m = {0};
    if (sscanf(line, "mig %d %95s %llu %llu %u %95[^\n]", &m.slot, m.uuid, &m.used, &m.total, &m.gi, m.name) != 6
        || s->mig_count == MAX_MIGS) {
        complain(line);
        return;
    }
    s->mig[s->mig_count++] = m;
}

static void read_event(scenario_t *s, const char *line) {
    event_t e = {0};
    if (sscanf(line, "event %d %u %llu %llu", &e.slot, &e.number, &e.type, &e.data) != 4 || s->event_count == MAX_EVENTS) {
        complain(line);
        return;
    }
    s->event[s->event_count++] = e;
}

static void read_order(scenario_t *s, const char *line) {
    int used = 0, slot;
    const char *at = line + strlen("order");
    while (s->order_count < MAX_GPUS && sscanf(at, "%d%n", &slot, &used) == 1) {
        s->order[s->order_count++] = slot;
        at += used;
    }
}

static void read_line(scenario_t *s, char *line) {
    line[strcspn(line, "\n")] = 0;
    if (line[0] == 0 || line[0] == '#') return;
    if (strncmp(line, "gpu ", 4) == 0) read_gpu(s, line);
    else if (strncmp(line, "gpm ", 4) == 0) read_gpm(s, line);
    else if (strncmp(line, "fault ", 6) == 0) read_fault(s, line);
    else if (strncmp(line, "process ", 8) == 0) read_process(s, line);
    else if (strncmp(line, "mig ", 4) == 0) read_mig(s, line);
    else if (strncmp(line, "event ", 6) == 0) read_event(s, line);
    else if (strncmp(line, "order", 5) == 0) read_order(s, line);
    else if (sscanf(line, "driver %95s", s->driver) != 1 && sscanf(line, "cuda %d", &s->cuda) != 1) complain(line);
}

static void reload(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return;
    scenario_t *fresh = calloc(1, sizeof *fresh);
    char line[1024];
    while (fgets(line, sizeof line, file)) read_line(fresh, line);
    fclose(file);
    current = *fresh;
    free(fresh);
}

const scenario_t *scenario_lock(void) {
    pthread_mutex_lock(&guard);
    const char *path = getenv("LLMTOP_NVML_SCENARIO");
    struct stat now;
    if (path && stat(path, &now) == 0
        && (now.st_ino != seen.st_ino || now.st_size != seen.st_size || now.st_mtim.tv_sec != seen.st_mtim.tv_sec
            || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec || strcmp(path, seen_path) != 0)) {
        reload(path);
        seen = now;
        snprintf(seen_path, sizeof seen_path, "%s", path);
    }
    return &current;
}

void scenario_unlock(void) { pthread_mutex_unlock(&guard); }
