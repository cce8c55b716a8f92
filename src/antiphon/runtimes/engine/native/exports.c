/* The one name of this library that others see, beside those of MPI where it is to be preloaded: it finds all others.
 *
 * Everything else is hidden (-fvisibility=hidden). Under LD_PRELOAD a program with a function `ap_run` of its own would
 * otherwise have it called in the middle of an MPI_Allreduce, and would call ours where it means its own. One library
 * with one door, rather than one library for LD_PRELOAD and another for Python: it is compiled once, and both run the
 * same.
 *
 * Threading: a constant table. Ownership: none.
 */
#include <string.h>

#include "choose.h"
#include "plan.h"
#include "transport.h"
#if defined(AP_FOR_MPI)
#include "preload.h"
#include "transport_mpi.h"
#elif defined(AP_FOR_SOCKETS)
#include "shared.h"
#include "transport_shared.h"
#include "transport_sockets.h"
#endif

typedef void (*function)(void);

#define ONE(NAME) {#NAME, (function)NAME}

static const struct {
    const char *name;
    function at;
} functions[] = {
    ONE(ap_abi), ONE(ap_open_bytes), ONE(ap_close), ONE(ap_describe), ONE(ap_prepare), ONE(ap_release), ONE(ap_ask), ONE(ap_warm),
    ONE(ap_split), ONE(ap_run), ONE(ap_agree), ONE(ap_uneven), ONE(ap_wire_call), ONE(ap_wire_theirs), ONE(ap_wire_left),
    ONE(ap_wire_trace), ONE(ap_wire_hear), ONE(ap_trace_moment), ONE(ap_wire_close), ONE(ap_fold), ONE(ap_divide),
#if defined(AP_FOR_MPI)
    ONE(ap_mpi_open_number), ONE(ap_mpi_library), ONE(ap_book_open), ONE(ap_book_close), ONE(ap_table_keep),
    ONE(ap_range_of), ONE(ap_chooser_open), ONE(ap_chooser_close), ONE(ap_choose), ONE(ap_measure_open),
    ONE(ap_measure_calls), ONE(ap_measure_close),
#elif defined(AP_FOR_SOCKETS)
    ONE(ap_sockets_open), ONE(ap_shared_open), ONE(ap_shared_make),  ONE(ap_shared_join),    ONE(ap_shared_complete),
    ONE(ap_shared_close), ONE(ap_shared_busy), ONE(ap_shared_send),  ONE(ap_shared_receive), ONE(ap_shared_progress),
#else
    ONE(ap_threads_open),
#endif
};

function antiphon_engine(const char *name);

/* NULL where there is none of this name. */
__attribute__((visibility("default"))) function antiphon_engine(const char *name) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return functions[i].at;
    return NULL;
}
