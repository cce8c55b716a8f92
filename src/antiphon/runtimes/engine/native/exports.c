/* The only symbol that this library exports (beside MPI's names, if it is to be preloaded): antiphon_engine looks up all
 * other functions by name.
 *
 * Everything else is hidden (-fvisibility=hidden). Otherwise, under LD_PRELOAD, a program with its own function `ap_run`
 * would have it called in the middle of an MPI_Allreduce, or would call ours by mistake.
 *
 * There is a library for MPI, which serves both LD_PRELOAD and Python, one for sockets and shared memory, and one for
 * threads.
 *
 * Threading: a constant table. Ownership: none.
 */
#include <string.h>

#include "choose.h"
#include "learn.h"
#include "plan.h"
#include "transport.h"
#include "watch.h"
#if defined(AP_FOR_MPI)
#include "preload.h"
#include "transport_mpi.h"
#elif defined(AP_FOR_SOCKETS)
#include "shared.h"
#include "transport_shared.h"
#include "transport_sockets.h"
#endif

typedef void (*function)(void);

#define NAMED(NAME) {#NAME, (function)NAME} /* an entry of `functions`: a name and its address */

static const struct {
    const char *name;
    function at;
} functions[] = {
    NAMED(ap_abi), NAMED(ap_open_bytes), NAMED(ap_close), NAMED(ap_describe), NAMED(ap_prepare), NAMED(ap_release),
    NAMED(ap_get_needs), NAMED(ap_warm), NAMED(ap_split), NAMED(ap_run), NAMED(ap_agree), NAMED(ap_run_uneven),
    NAMED(ap_wire_call), NAMED(ap_wire_other_call), NAMED(ap_wire_check_unreceived), NAMED(ap_wire_trace),
    NAMED(ap_wire_set_signals), NAMED(ap_trace_moment), NAMED(ap_wire_close), NAMED(ap_fold), NAMED(ap_divide),
    NAMED(ap_prepare_sliced), NAMED(ap_prepare_counts),
    NAMED(ap_learner_open), NAMED(ap_learner_close), NAMED(ap_learner_recall), NAMED(ap_learner_report), NAMED(ap_learner_update),
    NAMED(ap_learner_exchanged), NAMED(ap_learner_begin), NAMED(ap_learner_refuse), NAMED(ap_learner_restart),
    NAMED(ap_learner_arms), NAMED(ap_learner_choices), NAMED(ap_watch_open), NAMED(ap_watch_call), NAMED(ap_watch_close),
#if defined(AP_FOR_MPI)
    NAMED(ap_mpi_open_number), NAMED(ap_mpi_library), NAMED(ap_book_open), NAMED(ap_book_close), NAMED(ap_table_store),
    NAMED(ap_range_of), NAMED(ap_chooser_open), NAMED(ap_chooser_close), NAMED(ap_choose), NAMED(ap_measure_open),
    NAMED(ap_measure_calls), NAMED(ap_measure_close),
#elif defined(AP_FOR_SOCKETS)
    NAMED(ap_sockets_open), NAMED(ap_shared_open), NAMED(ap_shared_make),  NAMED(ap_shared_join),    NAMED(ap_shared_complete),
    NAMED(ap_shared_close), NAMED(ap_shared_busy), NAMED(ap_shared_send),  NAMED(ap_shared_receive), NAMED(ap_shared_progress),
#else
    NAMED(ap_threads_open),
#endif
};

function antiphon_engine(const char *name);

/* The function of this name; NULL if there is none. */
__attribute__((visibility("default"))) function antiphon_engine(const char *name) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return functions[i].at;
    return NULL;
}
