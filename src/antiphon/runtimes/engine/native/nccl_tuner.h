/* The interface between NCCL and a tuner plugin, as far as it is used here: versions 2 to 6.
 *
 * Written from NCCL's documentation: the names and order of the functions; nccl_rules.h has the numbers of collectives,
 * algorithms and protocols. With AP_NCCL_H results come from NCCL's own nccl.h instead.
 *
 * Threading: NCCL calls a context from one thread at a time. Ownership: declarations only; nccl_tuner.c owns the contexts.
 */
#pragma once

#include <stddef.h>

#include "nccl_rules.h"

#ifdef AP_NCCL_H
#include <nccl.h>
#else
typedef enum { ncclSuccess = 0, ncclSystemError = 2 } ncclResult_t;
#endif

enum ap_nccl_level { AP_LOG_WARN = 2, AP_LOG_INFO = 3 };
enum ap_nccl_part { AP_LOG_TUNING = 0x40 }; /* NCCL_DEBUG_SUBSYS=TUNING */

#define AP_NEVER (-1.0f) /* the cost of an algorithm that NCCL does not support here */

/* `level`, `parts`: of the enums above; `form`: as for printf. */
typedef void (*ap_nccl_log)(int level, unsigned long parts, const char *file, int line, const char *form, ...)
    __attribute__((format(printf, 5, 6)));

/* Parameters of `choose`. `costs`: a matrix of algorithms times protocols, in microseconds, with contiguous rows in
 * spite of its type; NCCL takes the least that is not AP_NEVER. `channels`: NCCL sets it to 0 before, which means its
 * own choice. `together`: number of calls in one group. `collnet`, `nvls`: whether NCCL supports these algorithms here.
 * `registered`: whether buffers are registered with NCCL. */

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t ranks, size_t nodes, ap_nccl_log log, void **context);
    ncclResult_t (*choose)(void *context, int collective, size_t nbytes, int collnet, int nvls, int together,
                           int *algorithm, int *protocol, int *channels);
    ncclResult_t (*destroy)(void *context);
} ap_nccl_tuner_2;

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t ranks, size_t nodes, ap_nccl_log log, void **context);
    ncclResult_t (*choose)(void *context, int collective, size_t nbytes, int together, float **costs, int algorithms,
                           int protocols, int *channels);
    ncclResult_t (*destroy)(void *context);
} ap_nccl_tuner_3;

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t ranks, size_t nodes, ap_nccl_log log, void **context);
    ncclResult_t (*choose)(void *context, int collective, size_t nbytes, int together, float **costs, int algorithms,
                           int protocols, int registered, int *channels);
    ncclResult_t (*destroy)(void *context);
} ap_nccl_tuner_4;

/* `domains` (GPUs connected by NVLink) and `constants` (of NCCL's own model) are ignored. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, ap_nccl_log log,
                         void *domains, void *constants);
    ncclResult_t (*choose)(void *context, int collective, size_t nbytes, int together, float **costs, int algorithms,
                           int protocols, int registered, int *channels);
    ncclResult_t (*finalize)(void *context);
} ap_nccl_tuner_5;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t communicator, size_t ranks, size_t nodes, ap_nccl_log log,
                         void *domains, void *constants);
    ncclResult_t (*choose)(void *context, int collective, size_t nbytes, int together, float **costs, int algorithms,
                           int protocols, int registered, int *channels);
    ncclResult_t (*finalize)(void *context);
    ncclResult_t (*chunk)(void *context, int collective, size_t nbytes, int algorithm, int protocol, int channels,
                          size_t *bytes); /* in and out: NCCL's own choice before */
} ap_nccl_tuner_6;
