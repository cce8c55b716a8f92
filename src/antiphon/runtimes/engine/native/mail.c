/* Messages with tags, as programs ask for them; and how all ends. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "copy.h"
#include "mail_types.h"

int ap_mail_busy(const ap_mail *m) {
    return !m->broken && (m->lists[POSTED] || m->lists[UNHEARD] || m->lists[MOVING] || m->sending);
}

int ap_mail_awaits(const ap_mail *m, uint32_t rank) {
    return m && !m->broken && (m->with[rank].under_way || m->of_anybody);
}

/* ---- ends ---- */

void ap_mail_break(ap_mail *m, int code, const char *why) {
    if (m->broken) return;
    m->broken = code;
    snprintf(m->why, sizeof m->why, "%s", why);
    m->wire->turns->give_up(m->wire, m->all);
    m->wire->broken = 1; /* it touches no memory of messages any more: they are the program's again */
    for (int state = 0; state < OVER; state++)
        while (m->lists[state]) ap_mail_finish(m, m->lists[state], code, m->why);
    ap_mail_changed(m);
}

void ap_mail_lose(ap_mail *m, ap_message *one, uint32_t peer) {
    char why[80];
    if (peer == AP_ANYBODY)
        snprintf(why, sizeof why, "all others are gone");
    else
        snprintf(why, sizeof why, "the connection to rank %u is lost: it has been closed", peer);
    ap_mail_finish(m, one, AP_TRANSPORT, why);
}

static int lost(const ap_mail *m, uint32_t peer) {
    if (peer != AP_ANYBODY) return m->gone[peer];
    for (uint32_t r = 0; r < m->ranks; r++)
        if (r != m->rank && !m->gone[r]) return 0;
    return 1;
}

/* Of one list those with processes that are gone; none of these moves any more. */
static void bury(ap_mail *m, int state) {
    for (ap_message *one = m->lists[state], *next; one; one = next) {
        next = one->next;
        if (lost(m, one->peer)) ap_mail_lose(m, one, one->peer);
    }
}

void ap_mail_mourn(ap_mail *m) {
    int some = 0;
    for (uint32_t r = 0; r < m->ranks; r++) {
        if (!m->gone[r] && m->wire->turns->is_gone(m->wire, r)) m->gone[r] = GONE;
        some |= m->gone[r] == GONE;
    }
    if (m->gone[m->rank]) ap_mail_break(m, AP_TRANSPORT, "the group has been aborted here");
    if (!some) return;
    while (ap_mail_pass(m)) continue; /* what they left behind is still there */
    if (m->broken) return;
    for (uint32_t r = 0; r < m->ranks; r++)
        if (m->gone[r] == GONE) {
            m->gone[r] = BURIED;
            ap_mail_let_go(m, r);
        }
    bury(m, POSTED), bury(m, UNHEARD);
}

/* ---- asked by programs ---- */

/* Whether it may be done; the lock is held then. */
static int open_for(ap_mail *m, uint32_t peer, ap_error *error) {
    pthread_mutex_lock(&m->lock->of);
    int code = m->broken ? ap_fail(error, m->broken, "%s", m->why) : AP_OK;
    if (!code && peer != AP_ANYBODY && (peer >= m->ranks || peer == m->rank))
        code = ap_fail(error, AP_INVALID, "there is no connection to rank %u", peer);
    if (code) pthread_mutex_unlock(&m->lock->of);
    return code;
}

/* Carries on what can be, and tells what became of this one. */
static int asked(ap_mail *m, ap_message *one, int code, ap_message **under_way, uint32_t *source, ap_error *error) {
    if (code) ap_mail_break(m, code, error->text);
    ap_mail_pass(m);
    *under_way = NULL;
    if (one && one->state != OVER) {
        *under_way = one;
    } else if (one) {
        if (one->code) code = ap_fail(error, one->code, "%s", one->why);
        if (source) *source = one->source;
        free(one);
    }
    if (ap_mail_busy(m)) ap_mail_begun(m);
    pthread_mutex_unlock(&m->lock->of);
    return code;
}

/* A send begins: its note goes, and what is short behind it. */
static int start(ap_mail *m, ap_message *one, ap_error *error) {
    const uint32_t to = one->peer;
    const uint64_t bytes = one->bytes;
    correspondent *c = &m->with[to];
    const int unasked = bytes <= EAGER && c->room >= bytes + CHARGE, is_here = unasked && bytes <= HERE;
    note told = {.kind = unasked ? COMES : ASKS, .tag = one->tag, .bytes = bytes, .id = one->id};
    if (m->gone[to] || m->wire->turns->is_gone(m->wire, to)) {
        ap_mail_lose(m, one, to);
        return AP_OK;
    }
    if (unasked) ap_mail_move(m, one, MOVING);
    if (unasked) c->room -= bytes + CHARGE;
    if (is_here) ap_copy(told.here, one->data, bytes);
    int code = ap_mail_tell(m, to, &told, is_here ? one : NULL, error);
    if (!code && unasked && !is_here) code = ap_mail_send_part(m, to, UNASKED, one->data, bytes, SENT_DATA, one, error);
    return code;
}

int ap_mail_send(ap_mail *m, uint32_t to, int32_t tag, const void *data, uint64_t bytes, ap_message **under_way,
                 ap_error *error) {
    int code = open_for(m, to, error);
    if (code) return code;
    /* what goes out is only read */
    ap_message *one = ap_mail_new(m, 1, to, tag, (void *)(uintptr_t)data, bytes, UNHEARD);
    code = one ? start(m, one, error) : ap_mail_no_memory(error);
    return asked(m, one, code, under_way, NULL, error);
}

int ap_mail_receive(ap_mail *m, uint32_t from, int32_t tag, void *data, uint64_t bytes, ap_message **under_way,
                    uint32_t *source, ap_error *error) {
    int code = open_for(m, from, error);
    if (code) return code;
    ap_mail_pass(m);
    ap_message *one = m->broken ? NULL : ap_mail_new(m, 0, from, tag, data, bytes, POSTED);
    if (!one) code = m->broken ? ap_fail(error, m->broken, "%s", m->why) : ap_mail_no_memory(error);
    if (one) code = ap_mail_look_for(m, one, error);
    if (one && !code && one->state == POSTED && lost(m, from)) ap_mail_lose(m, one, from);
    return asked(m, one, code, under_way, source, error);
}

static ap_mail *open_by(ap_wire *wire, uint32_t rank, ap_error *error) {
    ap_mail *m = calloc(1, sizeof *m);
    if (m) m->with = calloc(wire->ranks, sizeof *m->with), m->gone = calloc(wire->ranks, 1);
    if (m) m->lock = wire->lock ? ap_lock_join(wire->lock) : ap_lock_new();
    if (!m || !m->with || !m->gone || !m->lock) {
        if (m) ap_lock_leave(m->lock), free(m->with), free(m->gone), free(m);
        wire->close(wire);
        ap_mail_no_memory(error);
        return NULL;
    }
    m->wire = wire, m->rank = rank, m->ranks = wire->ranks, m->process = getpid(), m->end = &m->first;
    ap_mail_turns(m);
    wire->expected = WINDOW, wire->mail = m;
    int code = AP_OK;
    pthread_mutex_lock(&m->lock->of);
    for (uint32_t r = 0; r < m->ranks && !code; r++) {
        m->with[r].room = WINDOW;
        if (r != rank) code = ap_mail_await_note(m, r, error);
    }
    pthread_mutex_unlock(&m->lock->of);
    if (!code) return m;
    ap_mail_end(m, "it could not begin", 1);
    ap_mail_free(m);
    return NULL;
}

ap_mail *ap_mail_open(ap_wire *first, uint32_t rank, ap_error *error) {
    if (!first->beside) return ap_fail(error, AP_UNSUPPORTED, "no messages from one to another go by this wire"), NULL;
    ap_wire *wire = first->beside(first, error);
    return wire ? open_by(wire, rank, error) : NULL;
}

void ap_mail_free(ap_mail *m) {
    if (m->process != getpid()) return;
    for (arrival *a = m->first, *next; a; a = next) next = a->next, free(a->data), free(a);
    for (out_note *o = m->spare, *next; o; o = next) next = o->next, free(o);
    for (uint32_t i = 0; i < m->space; i++)
        if (m->slots[i].what == SENT_NOTE) free(m->slots[i].of);
    ap_lock_leave(m->lock);
    pthread_cond_destroy(&m->turn), pthread_cond_destroy(&m->stir);
    free(m->slots), free(m->with), free(m->gone), free(m);
}
