/* Work that must not hold up the program: in a thread that gives way and often rests. It calls nothing of MPI. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload.h"
#include "touch.h"

enum { LESS = 10, TURN = 100000, STACK = 1 << 20 }; /* priority; nanoseconds; bytes */

struct ap_beside {
    pthread_t thread;
    int apart; /* there is a thread */
    _Atomic int done;
    ap_pace pace;
    void (*work)(void *what, ap_pace *pace);
    void *what;
};

/* What a processor is shared out by: that this thread gives way, and (since Linux 6.12) never for long keeps one that is
 * wanted elsewhere. Where that cannot be, it is as others are. */
static void give_way(void) {
#if defined(__linux__) && defined(SYS_gettid) && defined(SYS_sched_setattr)
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t turn, deadline, period;
    } wish = {.size = 48, .nice = LESS, .turn = TURN};
    pid_t me = (pid_t)syscall(SYS_gettid);
    if (syscall(SYS_sched_setattr, me, &wish, 0) && setpriority(PRIO_PROCESS, (id_t)me, LESS)) return;
#endif
}

static void *run(void *given) {
    ap_beside *b = given;
    give_way();
    b->pace.gentle = 1;
    ap_rest(&b->pace);
    b->work(b->what, &b->pace);
    atomic_store_explicit(&b->done, 1, memory_order_release);
    return NULL;
}

ap_beside *ap_beside_begin(void (*work)(void *what, ap_pace *pace), void *what) {
    ap_beside *b = calloc(1, sizeof *b);
    pthread_attr_t how;
    sigset_t all, before;
    if (!b) return NULL;
    b->work = work, b->what = what;
    sigfillset(&all);
    int blocked = !pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    if (blocked && !pthread_attr_init(&how)) {
        pthread_attr_setstacksize(&how, STACK);
        b->apart = !pthread_create(&b->thread, &how, run, b);
        pthread_attr_destroy(&how);
    }
    if (blocked) pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!b->apart) {
        work(what, &b->pace);
        atomic_store(&b->done, 1);
    }
    return b;
}

int ap_beside_done(const ap_beside *b) { return atomic_load_explicit(&b->done, memory_order_acquire); }

void ap_beside_end(ap_beside *b) {
    if (!b) return;
    atomic_store(&b->pace.stop, 1);
    if (b->apart) pthread_join(b->thread, NULL);
    free(b);
}
