/* Preloaded first, for process $POOR of three: our library's malloc of as many bytes as an alltoallv's counts
 * take fails. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSES = 3, COUNTS = PROCESSES * PROCESSES + (PROCESSES + 1) * (2 * PROCESSES + 1), BYTES = 8 * COUNTS };

static int is_poor(void *caller) {
    Dl_info from;
    if (!dladdr(caller, &from) || !strstr(from.dli_fname, "libantiphon")) return 0;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *poor = getenv("POOR");
    if (!rank) rank = getenv("PMI_RANK");
    return rank && poor && !strcmp(rank, poor);
}

void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    if (bytes == BYTES && is_poor(__builtin_return_address(0))) {
        errno = ENOMEM;
        return NULL;
    }
    return next(bytes);
}
