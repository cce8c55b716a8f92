/* MPI_Init and MPI_Finalize: process 0 reads the tables and the environment, and broadcasts both.
 *
 * Role: the top of the preload_* files; it alone knows all others, and registers what is freed with a communicator.
 * Threading: the thread that calls MPI_Init or MPI_Finalize.
 * Ownership: fills ap_preload, whose tables and lists stay until the process ends.
 */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"
#include "prefault.h"
#include "transport_mpi.h"
#include "watch.h"

enum { PIECE = 1 << 30 }; /* bytes of one broadcast, whose count is an int */

/* ---- is this the right MPI ---- */

typedef struct {
    char first[256]; /* file name of the first one with a slash before it; "": none */
    int several;     /* another one is loaded, too */
} libraries;

/* dl_iterate_phdr calls it for each loaded object. `data`: the libraries of MPI so far. Returns 0: go on. */
static int count_library(struct dl_phdr_info *info, size_t size, void *data) {
    libraries *l = data;
    const char *name = strrchr(info->dlpi_name ? info->dlpi_name : "", '/');
    (void)size;
    if (!name || (strncmp(name, "/libmpi.so", 10) && strncmp(name, "/libmpich.so", 12) && strncmp(name, "/libmpi_abi.so", 14)))
        return 0;
    if (!l->first[0])
        snprintf(l->first, sizeof l->first, "%s", name);
    else if (strcmp(l->first, name))
        l->several = 1;
    return 0;
}

/* Handles of one MPI are invalid in another: stop with a message rather than crash later. */
static void check_mpi(void) {
    static const char advice[] = "build it with that MPI's own mpicc: antiphon build mpi --compiler .../mpicc";
    libraries loaded = {"", 0};
#ifdef OPEN_MPI
    int same = strstr(ap_mpi_library(), "Open MPI") != NULL;
#else
    int same = strstr(ap_mpi_library(), "Open MPI") == NULL;
#endif
    if (!same) {
        fprintf(stderr, "antiphon: the library in LD_PRELOAD is compiled for another MPI than this program's; %s\n", advice);
        _Exit(1);
    }
    dl_iterate_phdr(count_library, &loaded);
    if (loaded.several)
        fprintf(stderr, "antiphon: this program has loaded two MPIs, one by LD_PRELOAD and another; %s\n", advice);
}

/* ---- what process 0 broadcasts ---- */

typedef struct {
    ap_settings set;
    int32_t automatic, tables; /* as in ap_preload */
    uint64_t size[AP_MAX_BOOKS]; /* per table, with the next two: as in ap_table */
    int32_t of_world[AP_MAX_BOOKS], position[AP_MAX_BOOKS];
    uint64_t learned_bytes; /* of the text ap_preload.learned, with its final zero; 0: none */
    char problem[AP_TEXT];
} message;

/* At process 0: reads the tables that can be of use. */
static void read_tables(message *m) {
    ap_state *p = &ap_preload;
    const char *list = getenv("ANTIPHON_TABLE");
    m->automatic = list && !strcmp(list, "auto");
    if (m->automatic) return;
    m->tables = (int32_t)ap_read_tables(list, p->table, p->problem);
    for (int32_t i = 0; i < m->tables; i++) {
        ap_table *t = &p->table[i];
        m->of_world[i] = t->of_world, m->position[i] = t->position, m->size[i] = t->size;
        ap_book_close(t->book); /* share_table opens it again, as it does at all other processes */
        t->book = NULL;
    }
}

/* ---- setting up ---- */

/* Whether this is so at all processes of the world; collective. */
static int all_ok(int ok) {
    int all = 0;
    return !PMPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) && all;
}

/* Broadcasts the bytes of a table and opens its book; false if that failed at any process. */
static int share_table(ap_table *t) {
    if (ap_preload.rank) t->bytes = malloc(t->size ? (size_t)t->size : 1);
    if (!all_ok(t->bytes != NULL)) return 0;
    for (uint64_t at = 0; at < t->size; at += PIECE) {
        int n = t->size - at < PIECE ? (int)(t->size - at) : PIECE;
        if (PMPI_Bcast(t->bytes + at, n, MPI_BYTE, 0, MPI_COMM_WORLD)) return 0;
    }
    ap_error error = {0, ""};
    t->book = ap_book_open(t->bytes, (size_t)t->size, &error);
    if (t->book && ap_preload.set.report) t->use = calloc(t->book->pages + 1ul, sizeof *t->use);
    return all_ok(t->book && (t->use || !ap_preload.set.report));
}

/* Broadcasts the text ap_preload.learned; if a process has no memory for it, all start without. False: MPI failed. */
static int share_learned(uint64_t bytes) {
    ap_state *p = &ap_preload;
    if (p->rank) p->learned = malloc((size_t)bytes);
    if (all_ok(p->learned != NULL)) return !PMPI_Bcast(p->learned, (int)bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    free(p->learned);
    p->learned = NULL;
    return 1;
}

/* Sets ap_preload.host: for each process of the world, the first one on the same host. */
static void find_hosts(void) {
    enum { NAME = MPI_MAX_PROCESSOR_NAME };
    int needed = ap_preload.automatic; /* a table that comes later may name hosts */
    int length = 0, size = ap_preload.size;
    for (uint32_t i = 0; i < ap_preload.tables; i++) needed |= ap_preload.table[i].book->host != NULL;
    if (!needed) return;
    char name[NAME] = "", *names = malloc((size_t)size * NAME);
    int32_t *host = malloc((size_t)size * sizeof *host);
    int ok = names && host && !PMPI_Get_processor_name(name, &length);
    if (all_ok(ok) && !PMPI_Allgather(name, NAME, MPI_BYTE, names, NAME, MPI_BYTE, MPI_COMM_WORLD)) {
        for (int i = 0; i < size; i++) {
            host[i] = 0;
            while (strncmp(names + (size_t)i * NAME, names + (size_t)host[i] * NAME, NAME)) host[i]++;
        }
        ap_preload.host = host;
        host = NULL;
    }
    free(names), free(host);
}

/* Frees table `i`, and moves those behind it up. */
static void drop_table(uint32_t i) {
    ap_state *p = &ap_preload;
    ap_book_close(p->table[i].book);
    free(p->table[i].bytes), free(p->table[i].use);
    p->tables--;
    for (uint32_t k = i; k < p->tables; k++) p->table[k] = p->table[k + 1];
}

/* Whether MPI_Pack writes exactly the bytes of the elements, in order: plans move data in that form. */
static int check_packing(void) {
    MPI_Datatype every_other;
    int from[6] = {1, 2, 3, 4, 5, 6}, back[6] = {0}, to[3] = {0}, at = 0, ok;
    if (PMPI_Type_vector(3, 1, 2, MPI_INT, &every_other) || PMPI_Type_commit(&every_other)) return 0;
    ok = !PMPI_Pack(from, 1, every_other, to, sizeof to, &at, MPI_COMM_WORLD) && at == (int)sizeof to && to[0] == 1 &&
           to[1] == 3 && to[2] == 5;
    at = 0;
    ok = ok && !PMPI_Unpack(to, sizeof to, &at, back, 1, every_other, MPI_COMM_WORLD) && back[0] == 1 && back[2] == 3 &&
           back[4] == 5 && !back[1];
    PMPI_Type_free(&every_other);
    return ok;
}

/* Fills ap_preload from what process 0 has broadcast. */
static void apply_message(const message *m) {
    ap_state *p = &ap_preload;
    p->set = m->set, p->tables = (uint32_t)m->tables;
    p->device = m->set.device;
    memcpy(p->problem, m->problem, sizeof p->problem);
    for (uint32_t i = 0; i < p->tables; i++)
        p->table[i].size = m->size[i], p->table[i].of_world = m->of_world[i], p->table[i].position = m->position[i];
}

/* Sets ap_preload.memory_of, for connecting communicators later. */
static void find_shared(void) {
    ap_state *p = &ap_preload;
    int32_t *memory_of = malloc((size_t)p->size * sizeof *memory_of);
    if (all_ok(memory_of != NULL) && all_ok(!ap_mpi_find_memory(MPI_COMM_WORLD, memory_of))) {
        p->memory_of = memory_of;
        return;
    }
    free(memory_of);
}

/* Connects MPI_COMM_WORLD now, so that no call has to. */
static void prepare_world(void) {
    ap_error error = {0, ""};
    ap_group *g = ap_group_of(MPI_COMM_WORLD);
    int has_group = g != NULL;
    /* The reason is the same at all processes. Unless it is AP_WAITING, no plan will ever serve this communicator. */
    if (!all_ok(has_group) || (g->reason && g->reason != AP_WAITING)) return;
    if (ap_group_connect(g, &error)) ap_mpi_prefault(g->wire, &(ap_pace){.stop = 0, .gentle = 0}); /* at once */
}

/* Called by MPI when a communicator is freed: the ap_group is an attribute of it. */
static int release_group(MPI_Comm comm, int keyval, void *value, void *extra) {
    ap_group *g = value;
    (void)comm, (void)keyval, (void)extra;
    ap_auto_release(g);
    ap_trials_free(g);
    ap_learning_free(g);
    ap_group_free(g);
    ap_fallbacks_clear();
    return MPI_SUCCESS;
}

/* Finds properties of this MPI and the processes, with the same result at all of them. False: MPI failed. */
static int inspect_mpi(void) {
    ap_state *p = &ap_preload;
    ap_register_types();
    int ready = !PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, release_group, &p->keyval, NULL) &&
                !PMPI_Comm_group(MPI_COMM_WORLD, &p->world);
    p->packs = all_ok(check_packing());
    ready &= !ap_mpi_look_around(MPI_COMM_WORLD);
    return all_ok(ready);
}

/* As set_up, for programs that measure calls by plans of their own, without LD_PRELOAD and tables. False: MPI
 * failed. */
int ap_init_for_measuring(void) {
    ap_state *p = &ap_preload;
    if (p->on) return 1;
    if (PMPI_Comm_size(MPI_COMM_WORLD, &p->size) || PMPI_Comm_rank(MPI_COMM_WORLD, &p->rank)) return 0;
    p->on = inspect_mpi();
    if (p->on) find_shared();
    return p->on;
}

/* Collective, after MPI has begun: fills ap_preload. If MPI fails, all calls go to the library (`on` stays 0). */
static void set_up(void) {
    ap_state *p = &ap_preload;
    message m;
    memset(&m, 0, sizeof m);
    if (PMPI_Comm_size(MPI_COMM_WORLD, &p->size) || PMPI_Comm_rank(MPI_COMM_WORLD, &p->rank)) return;
    if (ap_wait_for_world(/* certain */ 0)) return;
    if (!p->rank) {
        ap_read_settings(&m.set, p->problem);
        read_tables(&m);
        p->learned = ap_learned_read(&m.set, p->problem);
        m.learned_bytes = p->learned ? strlen(p->learned) + 1 : 0;
        memcpy(m.problem, p->problem, sizeof m.problem);
    }
    if (PMPI_Bcast(&m, (int)sizeof m, MPI_BYTE, 0, MPI_COMM_WORLD)) return;
    apply_message(&m);
    if (m.automatic) p->set.compares = 0; /* plans of auto serve calls without a comparison (docs/mpi.md) */
    if (m.automatic && !ap_auto_begin()) ap_complain(p->problem, "auto: the processes could not say where they are");
    for (uint32_t i = 0; i < p->tables;) {
        if (share_table(&p->table[i])) {
            i++;
            continue;
        }
        ap_complain(p->problem, "not all processes could take table %d", p->table[i].position + 1);
        drop_table(i);
    }
    if (m.learned_bytes && !share_learned(m.learned_bytes)) return;
    find_hosts();
    for (uint32_t i = 0; i < p->tables;) {
        if (!ap_contradicts_hosts(&p->table[i])) {
            i++;
            continue;
        }
        ap_complain(p->problem, "table %d has ranks on one host that are on several here", p->table[i].position + 1);
        drop_table(i);
    }
    const int ready = inspect_mpi();
    if (p->device < 0) p->device = !all_ok(!ap_gpus_possible()); /* whether any process may have GPU memory */
    p->on = ready && (p->tables || p->automatic);
    if (p->on) find_shared();
    if (p->on) prepare_world();
    const int watch_error = p->on && p->set.watch_path[0] ? ap_watch_open(p->set.watch_path, p->rank) : 0;
    if (watch_error) fprintf(stderr, "antiphon: ANTIPHON_WATCH: %s: %s\n", p->set.watch_path, strerror(watch_error));
    p->on_is_final = 1;
    if (p->problem[0] && !p->rank)
        fprintf(stderr, "antiphon: %s; %s\n", p->problem, p->on ? "the rest is used" : "the MPI library does it all");
}

/* Collective, before MPI ends: writes the report and what was learned. */
static void tear_down(void) {
    ap_state *p = &ap_preload;
    if (p->automatic) ap_auto_end();
    if (p->set.report) ap_report();
    else if (p->on) ap_report_unused();
    if (p->on) ap_learned_write();
    ap_watch_close();
    ap_group *g = NULL;
    int exists = 0;
    if (p->on && !PMPI_Comm_get_attr(MPI_COMM_WORLD, p->keyval, &g, &exists) && exists)
        PMPI_Comm_delete_attr(MPI_COMM_WORLD, p->keyval);
    p->on = 0, p->finalized = 1, p->set.report = 0; /* what runs within PMPI_Finalize goes to the library, uncounted */
}

AP_EXPORT int MPI_Init(int *count, char ***arguments) {
    check_mpi();
    int code = PMPI_Init(count, arguments);
    if (!code) set_up();
    return code;
}

AP_EXPORT int MPI_Init_thread(int *count, char ***arguments, int required, int *provided) {
    check_mpi();
    int code = PMPI_Init_thread(count, arguments, required, provided);
    if (!code) set_up();
    return code;
}

AP_EXPORT int MPI_Finalize(void) {
    tear_down();
    return PMPI_Finalize();
}
