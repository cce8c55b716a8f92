/* Who carries messages on: one thread at a time, of those that wait for one; where nobody does, a thread of our own. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "mail_types.h"

/* Looks before one sleeps; for how many microseconds at most, until one looks after the others. */
enum { LOOKS = 16, NAP = 20000 };
/* The thread of our own looks once in so many nanoseconds whether there is something to do, after SOON looks in vain more seldom:
 * programs that send and wait need it never, and to wake it each time would cost more than a message. After IDLE looks with
 * nothing under way it sleeps until it is woken. */
enum { PAUSE = 1000000, SELDOM = 4000000, SOON = 8, IDLE = 32 };

void ap_mail_turns(ap_mail *m) {
    pthread_condattr_t by_clock;
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&m->turn, &by_clock), pthread_cond_init(&m->stir, &by_clock);
    pthread_condattr_destroy(&by_clock);
}

/* Those who wait look anew. */
void ap_mail_changed(ap_mail *m) {
    if (m->waiting) pthread_cond_broadcast(&m->turn);
    if (m->asleep) m->wire->turns->wake(m->wire);
}

static void wait_on(ap_mail *m, pthread_cond_t *what, double seconds) {
    double end = ap_now() + seconds;
    struct timespec until = {(time_t)end, (long)(1e9 * (end - (double)(time_t)end))};
    pthread_cond_timedwait(what, &m->lock->of, &until);
}

/* What a thread does whose turn it is, between two looks at what it is there for: one step, or some rest. */
static void step(ap_mail *m, unsigned *vain, double most) {
    const double naps = 1e-6 * NAP;
    if (ap_mail_pass(m)) {
        *vain = 0;
    } else if (m->broken || !ap_mail_busy(m)) {
        return;
    } else if (++*vain < LOOKS) {
        pthread_mutex_unlock(&m->lock->of);
        sched_yield();
        pthread_mutex_lock(&m->lock->of);
    } else {
        if (*vain > LOOKS) ap_mail_mourn(m);
        if (m->broken || !ap_mail_busy(m) || !m->wire->turns->lie_down(m->wire)) return;
        m->asleep = 1;
        pthread_mutex_unlock(&m->lock->of);
        m->wire->turns->sleep(m->wire, (int)(1e6 * (most < naps ? most : naps)) + 1);
        pthread_mutex_lock(&m->lock->of);
        m->asleep = 0;
        m->wire->turns->get_up(m->wire);
        if (m->broken) pthread_cond_broadcast(&m->turn); /* who ends it waits for that */
    }
}

static void *carry_on(void *given) {
    ap_mail *m = given;
    unsigned vain = 0;
    pthread_mutex_lock(&m->lock->of);
    for (int idle = 0; !m->broken;) {
        if (ap_mail_busy(m) && !m->driven && !m->waiting) {
            m->driven = 1, idle = 0;
            step(m, &vain, 1.0);
            m->driven = 0;
            if (m->waiting) pthread_cond_broadcast(&m->turn);
        } else if (idle++ < IDLE || ap_mail_busy(m)) {
            const struct timespec pause = {0, idle < SOON ? PAUSE : SELDOM};
            vain = 0;
            pthread_mutex_unlock(&m->lock->of);
            nanosleep(&pause, NULL);
            pthread_mutex_lock(&m->lock->of);
        } else {
            m->dormant = 1;
            pthread_cond_wait(&m->stir, &m->lock->of);
            m->dormant = 0, idle = 0;
        }
    }
    pthread_mutex_unlock(&m->lock->of);
    return NULL;
}

void ap_mail_begun(ap_mail *m) {
    if (!m->started) {
        m->started = !pthread_create(&m->thread, NULL, carry_on, m);
        if (!m->started) ap_mail_break(m, AP_MEMORY, "no further thread can be started");
    } else if (m->dormant) {
        pthread_cond_signal(&m->stir);
    }
}

int ap_mail_wait(ap_mail *m, ap_message *one, double seconds, uint32_t *source, int64_t *moved, ap_error *error) {
    double end = ap_now() + seconds, left = seconds;
    unsigned vain = 0;
    pthread_mutex_lock(&m->lock->of);
    if (!m->driven && one->state != OVER) ap_mail_pass(m);
    for (m->waiting++; one->state != OVER && left > 0; left = end - ap_now()) {
        if (m->driven) {
            if (m->asleep) m->wire->turns->wake(m->wire); /* it may be the thread of our own, which makes room */
            wait_on(m, &m->turn, left);
        } else {
            m->driven = 1;
            step(m, &vain, left);
            m->driven = 0;
        }
    }
    if (one->state != OVER && seconds > 0 && !m->driven) ap_mail_mourn(m); /* who waits for short times only learns it, too */
    if (--m->waiting) pthread_cond_signal(&m->turn); /* another takes over */
    int code = one->state == OVER ? one->code : AP_TIMEOUT;
    *moved = -1;
    if (one->state == MOVING)
        *moved = (int64_t)m->wire->turns->moved(m->wire, one->sends ? one->peer : one->source, one->sends);
    *source = one->source;
    if (code) ap_fail(error, code, "%s", one->state == OVER ? one->why : "it is not over");
    if (one->state == OVER) free(one);
    pthread_mutex_unlock(&m->lock->of);
    return code;
}

void ap_mail_end(ap_mail *m, const char *why, int all) {
    if (m->process != getpid()) return; /* the child of a fork has neither the thread nor a lock that anybody opens */
    pthread_mutex_lock(&m->lock->of);
    m->all = all;
    ap_mail_break(m, AP_TRANSPORT, why);
    pthread_cond_signal(&m->stir);
    while (m->asleep) {
        m->wire->turns->wake(m->wire);
        pthread_cond_wait(&m->turn, &m->lock->of);
    }
    ap_wire *wire = m->wire;
    const int started = m->started;
    m->wire = NULL, m->started = 0;
    pthread_mutex_unlock(&m->lock->of);
    if (started) pthread_join(m->thread, NULL);
    if (wire) wire->close(wire);
}
