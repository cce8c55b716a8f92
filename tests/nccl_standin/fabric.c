#define _GNU_SOURCE
#include "fabric.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

fabric *fabric_open(const char *name) {
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(fabric))) return NULL;
    void *at = mmap(NULL, sizeof(fabric), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}

void fabric_close(fabric *f, const char *name, int ranks) {
    if (atomic_fetch_add(&f->left, 1) + 1 == (uint64_t)ranks) shm_unlink(name);
    munmap(f, sizeof *f);
}

static void put(pipe_ *p, uint64_t at, const unsigned char *from, uint64_t bytes) {
    uint64_t first = RING - at % RING < bytes ? RING - at % RING : bytes;
    memcpy(p->data + at % RING, from, first), memcpy(p->data, from + first, bytes - first);
}

static void get(const pipe_ *p, uint64_t at, unsigned char *to, uint64_t bytes) {
    uint64_t first = RING - at % RING < bytes ? RING - at % RING : bytes;
    memcpy(to, p->data + at % RING, first), memcpy(to + first, p->data, bytes - first);
}

int fabric_move(fabric *f, int me, transfer *t, uint64_t room) {
    pipe_ *p = t->sends ? &f->pipe[t->kind][me][t->peer] : &f->pipe[t->kind][t->peer][me];
    uint64_t written = atomic_load(&p->written), read = atomic_load(&p->read), left = t->bytes + 8 - t->done;
    uint64_t can = t->sends ? room - (written - read < room ? written - read : room) : written - read;
    uint64_t said = t->bytes;
    if (t->done < 8) { /* its length, in one piece */
        if (can < 8) return 0;
        if (t->sends)
            put(p, written, (unsigned char *)&said, 8);
        else
            get(p, read, (unsigned char *)&said, 8);
        if (said != t->bytes) return -1;
        left = can = 8;
    } else {
        can = can < left ? can : left;
        if (!can) return 0;
        if (t->sends)
            put(p, written, t->data + t->done - 8, can);
        else
            get(p, read, t->data + t->done - 8, can);
    }
    t->done += can;
    atomic_fetch_add(t->sends ? &p->written : &p->read, can);
    return 1;
}
