/* Memory that processes of one host share: member 0 makes it, the others join it (shared.h). shared_types.h has its
 * layout, and the functions that find parts of it: queue_of, the queue from one member to another; blocks_from, the
 * blocks of a member.
 *
 * Threading: one thread per process.
 * Ownership: a file without a name, which the system frees with the last process that maps it. Each process owns its ap_shared.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shared_types.h"
#include "prefault.h"

uint64_t ap_shared_bytes(uint32_t members) { return head_bytes(members) + members * member_bytes(members); }

/* The state of member `me`, with the memory mapped from the file; NULL: out of memory. */
static ap_shared *map_memory(int file, uint32_t members, uint32_t me) {
    ap_shared *s = calloc(1, sizeof *s);
    const uint32_t count = blocks_of(members);
    if (!s) return NULL;
    s->members = members, s->me = me, s->file = -1;
    s->bytes = ap_shared_bytes(members), s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    s->out = calloc(members, sizeof *s->out), s->in = calloc(members, sizeof *s->in);
    s->free_block = malloc(count * sizeof *s->free_block), s->users = calloc(count, sizeof *s->users);
    if (s->memory == MAP_FAILED || !s->out || !s->in || !s->free_block || !s->users) {
        ap_shared_close(s);
        return NULL;
    }
    for (uint32_t i = 0; i < members; i++) s->out[i].queue = queue_of(s, me, i), s->in[i].queue = queue_of(s, i, me);
    s->blocks = blocks_from(s, me);
    for (uint32_t i = 0; i < count; i++) s->free_block[i] = count - 1 - i;
    s->free_blocks = count;
    return s;
}

/* A key that other shared memory is unlikely to have; never 0, which says that there is no memory. */
static uint64_t make_key(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((uint64_t)t.tv_sec << 32 ^ (uint64_t)t.tv_nsec << 20 ^ (uint64_t)getpid()) * 0x9E3779B97F4A7C15u | 1;
}

/* Makes the memory, at member 0, and its name, by which others join; NULL, and a name without key, if the system
 * cannot. */
ap_shared *ap_shared_make(uint32_t members, ap_shared_name *name) {
    memset(name, 0, sizeof *name);
    if (blocks_of(members) >= NO_BLOCK) return NULL; /* numbers of blocks have 16 bits */
#ifdef MFD_CLOEXEC
    int file = memfd_create("antiphon", MFD_CLOEXEC);
    if (file < 0) return NULL;
    ap_shared *s = NULL;
    if (!ftruncate(file, (off_t)ap_shared_bytes(members))) s = map_memory(file, members, 0);
    if (!s) {
        close(file);
        return NULL;
    }
    s->file = file;
    *name = (ap_shared_name){make_key(), getpid(), file, members};
    ((shared_head *)s->memory)->key = name->key;
    return s;
#else
    return NULL;
#endif
}

/* Maps the memory of that name, at the other members; NULL if it cannot be opened here. */
ap_shared *ap_shared_join(const ap_shared_name *name, uint32_t me) {
    char path[64];
    struct stat about;
    ap_shared *s = NULL;
    if (!name->key) return NULL;
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)name->process, (int)name->file);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return NULL;
    off_t expected_size = (off_t)ap_shared_bytes(name->members);
    /* in another PID namespace the number may be that of another process: check the file */
    if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_size == expected_size)
        s = map_memory(file, name->members, me);
    close(file);
    if (s && ((shared_head *)s->memory)->key != name->key) {
        ap_shared_close(s);
        s = NULL;
    }
    return s;
}

/* At member 0, once all others have joined or failed to: closes the file; the memory stays mapped. */
void ap_shared_complete(ap_shared *s) {
    if (s->file >= 0) close(s->file);
    s->file = -1;
}

/* Touches pages before their first use: all of them up to 64 MiB; of more memory only those that this process writes, and only
 * in the background. */
void ap_shared_prefault(ap_shared *s, ap_pace *pace) {
    enum { MAX_BYTES = 1 << 26 };
    unsigned char *own = (unsigned char *)queue_of(s, s->me, 0);
    if (s->bytes <= MAX_BYTES)
        ap_prefault(s->memory, s->bytes, pace);
    else if (pace->gentle)
        ap_prefault(own, member_bytes(s->members), pace);
}

static void free_messages(message *m) {
    for (message *next; m; m = next) {
        next = m->next;
        free(m->own), free(m);
    }
}

/* Frees the sends to one member; payloads that have other receivers stay until the sends to these are freed. */
static void free_targets(ap_shared *s, outgoing *o) {
    while (o->first) {
        target *t = o->first, **at = &t->of->targets;
        while (*at != t) at = &(*at)->sibling;
        *at = t->sibling;
        if (!--t->of->pending) free(t->of);
        o->first = t->next;
        free(t);
        s->active--;
    }
    o->last = NULL;
    s->recents = 0; /* recent sends may point to freed payloads */
}

void ap_shared_close(ap_shared *s) {
    ap_shared_complete(s);
    if (s->memory != MAP_FAILED) munmap(s->memory, s->bytes);
    for (uint32_t i = 0; s->out && i < s->members; i++) free_targets(s, &s->out[i]);
    for (uint32_t i = 0; s->in && i < s->members; i++) {
        for (uint32_t k = 0; k < s->in[i].count; k++)
            free_messages(s->in[i].lanes[k].posted), free_messages(s->in[i].lanes[k].unexpected);
        free(s->in[i].lanes);
    }
    for (payload *entry = s->spare_payloads, *next; entry; entry = next) next = entry->next, free(entry);
    for (target *entry = s->spare_targets, *next; entry; entry = next) next = entry->next, free(entry);
    free_messages(s->spare_messages);
    free(s->out), free(s->in), free(s->free_block), free(s->users), free(s->done), free(s);
}
