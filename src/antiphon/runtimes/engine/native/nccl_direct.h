/* What nccl_direct.c gives. Calls of a communicator are of one thread. */
#ifndef ANTIPHON_NCCL_DIRECT_H
#define ANTIPHON_NCCL_DIRECT_H

#include "plan.h"

typedef struct ap_direct_comm ap_direct_comm;
typedef struct ap_direct_run ap_direct_run;

const char *ap_direct_why(void);
int ap_direct_library(const char *path);
int ap_direct_id(void *id); /* 128 bytes, that one rank tells all others */
ap_direct_comm *ap_direct_open(int ranks, int rank, const void *id, int on); /* collective; `on`: which GPU */
void ap_direct_close(ap_direct_comm *comm);

void *ap_direct_memory(uint64_t bytes);
void ap_direct_free(void *memory); /* with no call under way */
int ap_direct_copy(ap_direct_comm *comm, void *to, const void *from, uint64_t bytes); /* until it is done */
int ap_direct_wait(ap_direct_comm *comm, double seconds);                             /* -1: its time was up */

/* What a rank does at a size; `place_of`: of each rank of the program its rank in the communicator. */
ap_direct_run *ap_direct_prepare(ap_program *program, uint32_t rank, int in_place, uint64_t unit, uint64_t item,
                                 const int32_t *place_of, ap_error *error);
uint64_t ap_direct_scratch(const ap_direct_run *run); /* bytes */
void ap_direct_end(ap_direct_run *run);
/* A call, to its end. */
int ap_direct_go(ap_direct_comm *comm, const ap_direct_run *run, void *in, void *out, void *scratch, int type, int op, double seconds);

#endif
