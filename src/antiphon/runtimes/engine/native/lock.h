/* A lock that several things use, each of which may be the last. */
#ifndef AP_LOCK_H
#define AP_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct ap_lock {
    pthread_mutex_t of;
    atomic_int users;
} ap_lock;

/* With one user; NULL: out of memory. */
static inline ap_lock *ap_lock_new(void) {
    ap_lock *lock = malloc(sizeof *lock);
    if (!lock) return NULL;
    pthread_mutex_init(&lock->of, NULL);
    atomic_init(&lock->users, 1);
    return lock;
}

/* By one more. */
static inline ap_lock *ap_lock_join(ap_lock *lock) {
    atomic_fetch_add(&lock->users, 1);
    return lock;
}

static inline void ap_lock_leave(ap_lock *lock) {
    if (!lock || atomic_fetch_sub(&lock->users, 1) > 1) return;
    pthread_mutex_destroy(&lock->of);
    free(lock);
}

#endif
