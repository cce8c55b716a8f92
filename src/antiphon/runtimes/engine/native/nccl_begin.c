/* What the ranks of a communicator agree upon while it is made: rank 0's tables and settings, which rows are for them, whether
 * each can run these; and a communicator of our own, over which each pair that a row needs has spoken once. After that
 * nothing has to be asked, and no call waits on the host.
 *
 * This goes over the new communicator itself, on which nothing else can be under way yet.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_preload.h"
#include "sha256.h"
#include "transport.h"

enum { PIECE = 1 << 20, HOST = 64 };

typedef struct {
    char version[32];
    ap_settings set;
    ncclUniqueId id; /* of our own communicator */
    int32_t tables;
    uint64_t size[AP_MOST_TABLES];
    unsigned char digest[64];
    char why[AP_TEXT];
} header;

typedef struct {
    int32_t good, lacks, origin, origins;
    char host[HOST];
} said;

typedef struct {
    ap_comm *c;
    ap_queue queue;
    void *memory; /* of the device, PIECE bytes */
} line;

/* ---- what is said ---- */

/* A call of a communicator whose calls do not wait goes on until it is made. */
static int settle(line *l, ncclResult_t code) {
    while (code == ncclInProgress && !l->c->stop) {
        if (AP_REAL(CommGetAsyncError, l->c->comm, &code)) return 0;
        if (code == ncclInProgress) usleep(50);
    }
    return code == ncclSuccess && !l->c->stop;
}

static int share(line *l, void *data, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        size_t n = (size_t)(bytes - at < PIECE ? bytes - at : PIECE);
        unsigned char *here = (unsigned char *)data + at;
        int first = l->c->rank == 0;
        if (first && ap_device_copy(l->memory, here, n, l->queue)) return 0;
        if (!settle(l, AP_REAL(Broadcast, l->memory, l->memory, n, ncclUint8, 0, l->c->comm, (ap_stream)l->queue))) return 0;
        if (!first && ap_device_copy(here, l->memory, n, l->queue)) return 0;
        if (ap_comm_wait(l->c, l->queue)) return 0;
    }
    return 1;
}

static int gather(line *l, const said *mine, said *all) {
    const size_t n = sizeof *mine, ranks = (size_t)l->c->size;
    if (n * ranks + n > PIECE) return 0;
    unsigned char *to = (unsigned char *)l->memory + n;
    return !ap_device_copy(l->memory, mine, n, l->queue) &&
           settle(l, AP_REAL(AllGather, l->memory, to, n, ncclUint8, l->c->comm, (ap_stream)l->queue)) &&
           !ap_device_copy(all, to, n * ranks, l->queue) && !ap_comm_wait(l->c, l->queue);
}

/* Whether it is so at all of them. */
static int all_good(line *l, int good) {
    int32_t mine = good, all = 0;
    return !ap_device_copy(l->memory, &mine, sizeof mine, l->queue) &&
           settle(l, AP_REAL(AllReduce, l->memory, l->memory, 1, ncclInt32, ncclMin, l->c->comm, (ap_stream)l->queue)) &&
           !ap_device_copy(&all, l->memory, sizeof all, l->queue) && !ap_comm_wait(l->c, l->queue) && all;
}

/* ---- tables ---- */

static void name_tables(ap_tables *t) {
    char digests[AP_MOST_TABLES * 64], digest[65];
    for (uint32_t i = 0; i < t->tables; i++) {
        ap_sha256(t->table[i].bytes, (size_t)t->table[i].size, digest);
        memcpy(digests + 64 * i, digest, 64);
        t->table[i].use = calloc(t->table[i].book->pages + 1ul, sizeof(ap_use));
    }
    ap_sha256(digests, 64ul * t->tables, digest);
    memcpy(t->digest, digest, 64);
    ap_nccl_keep_tables(t);
}

static ap_tables *read_by_environment(void) {
    ap_tables *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->tables = ap_read_tables(getenv("ANTIPHON_TABLE"), 0, t->table, ap_nccl_why);
    name_tables(t);
    return t;
}

/* A book that the program has given; NULL: there is nothing in it. Kept until the process ends, each once. */
static ap_tables *read_given(const void *bytes, uint64_t size) {
    char digest[65], both[65];
    ap_sha256(bytes, (size_t)size, digest);
    ap_sha256(digest, 64, both);
    ap_tables *t = ap_nccl_tables((const unsigned char *)both);
    if (t || !size) return t;
    unsigned char *copy = malloc((size_t)size);
    ap_book *book = copy ? ap_book_open(memcpy(copy, bytes, (size_t)size), (size_t)size, NULL) : NULL;
    if (!book || !book->pages || !(t = calloc(1, sizeof *t))) {
        ap_book_close(book);
        free(copy);
        return NULL;
    }
    t->tables = 1, t->table[0] = (ap_table){.book = book, .bytes = copy, .size = size};
    name_tables(t);
    return t;
}

static const char version[32] = AP_VERSION " 1"; /* of what ranks say to each other */

static void put_tables(header *h, const ap_tables *t) {
    h->tables = t ? (int32_t)t->tables : 0;
    if (t) memcpy(h->digest, t->digest, sizeof h->digest);
    for (int32_t i = 0; i < h->tables; i++) h->size[i] = t->table[i].size;
}

static header given_header(const void *bytes, uint64_t size, ap_tables **tables) {
    header h;
    char why[AP_TEXT] = "";
    memset(&h, 0, sizeof h);
    memcpy(h.version, version, sizeof version);
    ap_read_settings(&h.set, why);
    put_tables(&h, *tables = read_given(bytes, size));
    return h;
}

/* The settings and tables of this process, read when they are first asked for: by rank 0 of some communicator. */
static const header *own_header(ap_tables **tables) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static header own;
    static ap_tables *read;
    static int done;
    pthread_mutex_lock(&once);
    if (!done) {
        memcpy(own.version, version, sizeof version);
        ap_read_settings(&own.set, ap_nccl_why);
        const char *list = getenv("ANTIPHON_TABLE");
        if (list && !strcmp(list, "auto"))
            ap_complain(ap_nccl_why, "ANTIPHON_TABLE=auto is for MPI and for PyTorch; here it must be a file");
        else
            read = read_by_environment();
        put_tables(&own, read);
        memcpy(own.why, ap_nccl_why, sizeof own.why);
        if (own.why[0])
            fprintf(stderr, "antiphon: %s; %s\n", own.why, own.tables ? "the rest is used" : "NCCL does it all");
        done = 1;
    }
    pthread_mutex_unlock(&once);
    *tables = read;
    return &own;
}

static int receive_tables(line *l, const header *h, ap_tables **tables) {
    ap_tables *t = *tables ? *tables : calloc(1, sizeof *t);
    int is_new = !*tables, good = t != NULL;
    for (int32_t i = 0; i < h->tables; i++) {
        unsigned char *bytes = !is_new ? t->table[i].bytes : good ? malloc((size_t)h->size[i] + 1) : NULL;
        if (!all_good(l, bytes != NULL)) {
            if (is_new) free(bytes);
            return 0; /* what has come stays; out of memory is out of memory */
        }
        /* who has it already gets it again, into memory that nobody looks at */
        unsigned char *into = is_new || l->c->rank == 0 ? bytes : malloc((size_t)h->size[i] + 1);
        int came = into && share(l, into, h->size[i]);
        if (into != bytes) free(into);
        if (!came) return 0;
        if (!is_new) continue;
        ap_book *book = ap_book_open(bytes, (size_t)h->size[i], NULL);
        t->table[i] = (ap_table){.book = book, .bytes = bytes, .size = h->size[i]};
        t->table[i].use = book ? calloc(book->pages + 1ul, sizeof(ap_use)) : NULL;
        good = good && book && t->table[i].use;
        t->tables = (uint32_t)i + 1;
    }
    if (is_new && good) {
        memcpy(t->digest, h->digest, sizeof t->digest);
        ap_nccl_keep_tables(t);
        *tables = t;
    }
    return good;
}

/* ---- rows ---- */

/* What its ranks are in the first communicator, if all of them know that; else they are what they are here. */
static int match(ap_comm *c, const said *all) {
    int *process = malloc((size_t)c->size * sizeof *process), known = c->origins > 0, world = c->size;
    ap_table *table = malloc((c->tables->tables + 1ul) * sizeof *table);
    for (int i = 0; i < c->size && known; i++) {
        known &= all[i].origins == all[0].origins && all[i].origin >= 0 && all[i].origin < all[i].origins;
        for (int j = 0; j < i && known; j++) known &= all[i].origin != all[j].origin;
    }
    if (known) world = all[0].origins;
    int32_t *host = calloc((size_t)world, sizeof *host);
    int good = process && table && host;
    for (int i = 0; good && i < c->size; i++) {
        process[i] = known ? all[i].origin : i;
        int j = 0;
        while (strncmp(all[i].host, all[j].host, HOST)) j++;
        host[process[i]] = j;
    }
    c->origin = known ? c->origin : c->rank, c->origins = world;
    for (uint32_t i = 0; good && i < c->tables->tables; i++) {
        table[i] = c->tables->table[i];
        table[i].of_world = table[i].book->ranks == (uint32_t)world, table[i].position = 1;
    }
    const ap_matching m = {.size = c->size, .rank = c->rank, .process = process, .world = world, .host = host,
                           .anywhere = c->set.anywhere, .table = table, .tables = c->tables->tables};
    good = good && ap_match(&m, &c->found);
    if (good && c->found.rows) {
        c->place_of = malloc(c->found.ranks * sizeof *c->place_of);
        c->bound = calloc(c->found.rows, sizeof *c->bound);
        good = c->place_of && c->bound;
        for (uint32_t r = 0; good && r < c->found.ranks; r++) c->place_of[r] = -1;
        for (int i = 0; good && i < c->size; i++) c->place_of[c->found.rank_of[i]] = i;
    }
    free(process), free(table), free(host);
    return good;
}

/* Each looks at all that all ranks do, so they find the same. */
static void judge_rows(ap_comm *c) {
    for (uint32_t i = 0; i < c->found.rows; i++) {
        ap_row *row = &c->found.row[i];
        ap_error error = {0, ""};
        if (!row->program) continue;
        row->state = ap_bound_of(row, &c->bound[i], &error) ? -1 : 1;
        if (row->state < 0 && !c->rank) ap_nccl_tell(c, ap_kind_names[row->page->kind], error.text);
    }
}

/* Every two that will have to do with each other have so now: NCCL connects them, which may take long. */
static int meet(line *l) {
    ap_comm *c = l->c;
    ap_error error = {0, ""};
    unsigned char *peers = calloc(c->found.ranks, 1);
    int good = peers != NULL;
    for (uint32_t i = 0; good && i < c->found.rows; i++)
        if (c->found.row[i].state > 0) good = !ap_peers_of(&c->found.row[i], c->found.me, peers, &error);
    ncclResult_t code = good ? AP_REAL(GroupStart) : ncclSystemError;
    if (code) {
        free(peers);
        return 0;
    }
    for (uint32_t r = 0; r < c->found.ranks && !code; r++) {
        unsigned char *at = (unsigned char *)l->memory + 2 * (r % (PIECE / 2));
        if (peers[r] & 1) code = AP_REAL(Send, at, 1, ncclUint8, c->place_of[r], c->own, (ap_stream)l->queue);
        if (!code && peers[r] & 2) code = AP_REAL(Recv, at + 1, 1, ncclUint8, c->place_of[r], c->own, (ap_stream)l->queue);
    }
    free(peers);
    ncclResult_t ended = AP_REAL(GroupEnd);
    return !code && !ended && !ap_comm_wait(c, l->queue);
}

/* ---- all of it ---- */

static int lacks_any(const said *all, int count, int *bad) {
    int lacks = 0;
    *bad = 0;
    for (int i = 0; i < count; i++) lacks |= all[i].lacks, *bad |= !all[i].good;
    return lacks;
}

static void agree(line *l, said *all) {
    ap_comm *c = l->c;
    ap_tables *own_tables = NULL;
    const void *given = NULL;
    uint64_t size = 0;
    header h;
    memset(&h, 0, sizeof h);
    if (!c->rank) h = ap_nccl_given(&given, &size) ? given_header(given, size, &own_tables) : *own_header(&own_tables);
    if (!c->rank && h.tables && AP_REAL(GetUniqueId, &h.id)) h.tables = 0;
    if (!share(l, &h, sizeof h)) return;
    c->set = h.set;
    if (!c->rank) c->tables = own_tables;
    if (!h.tables) return;
    said mine = {.good = !memcmp(h.version, version, sizeof version), .origin = c->origin, .origins = c->origins};
    gethostname(mine.host, sizeof mine.host - 1);
    if (!c->tables) c->tables = ap_nccl_tables(h.digest);
    mine.lacks = !c->tables;
    if (!gather(l, &mine, all)) return;
    int bad = 0, lacks = lacks_any(all, c->size, &bad);
    c->reason = AP_UNLIKE;
    if (bad) return;
    c->reason = AP_REFUSED;
    if (lacks && !all_good(l, receive_tables(l, &h, &c->tables))) return;
    int good = match(c, all);
    if (!all_good(l, good)) return;
    c->reason = c->found.rows ? AP_REFUSED : AP_STRANGERS;
    if (!c->found.rows) return;
    judge_rows(c);
    if (!all_good(l, ap_track_new(c, 0, c->set.scratch) != NULL)) return;
    ncclComm_t made = NULL;
    good = !AP_REAL(CommInitRank, &made, c->size, h.id, c->rank);
    c->own = made;
    good = good && meet(l);
    if (all_good(l, good)) {
        c->reason = AP_SERVED;
    } else if (c->own) {
        (void)AP_REAL(CommAbort, c->own);
        c->own = NULL;
    }
}

void ap_comm_set_up(ap_comm *c) {
    int mode = -1, code = AP_REAL(CommCount, c->comm, &c->size) || AP_REAL(CommUserRank, c->comm, &c->rank);
    if (code) return;
    ap_nccl_lead(-1);
    if (c->size < 2) {
        c->reason = AP_ALONE;
        return;
    }
    line l = {.c = c};
    said *all = calloc((size_t)c->size, sizeof *all);
    (void)ap_device_relax(&mode);
    if (all && !ap_queue_new(&l.queue)) {
        if (!ap_memory_take(c->device, PIECE, &l.memory)) agree(&l, all);
        if (!c->stop) ap_memory_give(c->device, PIECE, l.memory);
        ap_queue_end(l.queue);
    }
    (void)ap_device_relax(&mode);
    free(all);
}
