/* What the stand-in answers: read from the file that LLMTOP_NVML_SCENARIO names, again whenever it changes.
 *
 * One statement a line; '#' starts a comment; GPU is a slot (a physical GPU, from 0) or '*' for all.
 *
 *   driver VERSION            nvmlSystemGetDriverVersion
 *   cuda NUMBER               nvmlSystemGetCudaDriverVersion, 13000 is 13.0
 *   order SLOT ...            which slot answers at index 0, 1, ...; taken at nvmlInit, as a driver does
 *   gpu GPU KEY VALUE         a value of that GPU; the keys are in gpu_keys (scenario.c), "name" and "uuid" are text
 *   gpm GPU METRIC VALUE [RETURN]   a GPM metric: a number or nan, and the metric's own nvmlReturn
 *   process GPU PID BYTES SM KIND GI    KIND is compute, graphics or mps; SM is -1 for "no sample"; GI is -1 without MIG
 *   mig GPU UUID USED TOTAL GI NAME     a MIG instance of that GPU
 *   event GPU NUMBER TYPE DATA          delivered once, to event sets made before NUMBER was there
 *   fault CALL GPU error CODE           that call answers CODE
 *   fault CALL GPU latency MICROSECONDS
 *   fault CALL GPU hang 1               that call blocks for as long as this line is there
 *   fault CALL GPU crash SIGNAL         that call ends the process: 11 by writing where nothing is, else by the signal
 *   fault CALL GPU locked 1             its latency is spent inside one lock that all locked calls share
 */
#ifndef SCENARIO_H
#define SCENARIO_H

#include <stddef.h>

enum { MAX_GPUS = 64, MAX_FAULTS = 512, MAX_PROCESSES = 4096, MAX_MIGS = 64, MAX_EVENTS = 64, MAX_METRICS = 160, TEXT = 96 };

typedef struct {
    char name[TEXT], uuid[TEXT];
    unsigned util, util_sampled, mem_util, temp_c, mem_temp_c, sm_mhz, sm_max_mhz, pcie_gen, pcie_width, pcie_rx_kb, pcie_tx_kb;
    unsigned power_mw, limit_mw, retired_pending, remap_pending, remap_failure, gpm, mig_mode, lost, sticky_loss;
    unsigned long long mem_used, mem_total, mem_reserved, energy_mj, reasons, ecc_uncorrected;
    double metric[MAX_METRICS];
    int metric_return[MAX_METRICS];
} gpu_t;

typedef struct { char call[TEXT]; int slot; int error; unsigned latency_us; int hang, locked, crash; } fault_t;
typedef enum { COMPUTE, GRAPHICS, MPS } process_kind_t;
typedef struct { int slot; unsigned pid; unsigned long long bytes; int sm; process_kind_t kind; unsigned gi; } process_t;
typedef struct { int slot; char uuid[TEXT], name[TEXT]; unsigned long long used, total; unsigned gi; } mig_t;
typedef struct { int slot; unsigned number; unsigned long long type, data; } event_t;

typedef struct {
    char driver[TEXT];
    int cuda;
    int gpu_count, order_count, order[MAX_GPUS];
    gpu_t gpu[MAX_GPUS];
    int fault_count, process_count, mig_count, event_count;
    fault_t fault[MAX_FAULTS];
    process_t process[MAX_PROCESSES];
    mig_t mig[MAX_MIGS];
    event_t event[MAX_EVENTS];
} scenario_t;

/* Takes the lock and returns the scenario as the file has it now. */
const scenario_t *scenario_lock(void);
void scenario_unlock(void);

#endif
