/* Messages with tags: the notes that go before them, and who gets what. */
#include <stdio.h>
#include <stdlib.h>

#include "copy.h"
#include "mail_types.h"

enum { BATCH = 64 };

/* ---- lists ---- */

static void count(ap_mail *m, const ap_message *one, int more) {
    uint32_t *of = one->peer == AP_ANYBODY ? &m->of_anybody : &m->with[one->peer].under_way;
    *of += (uint32_t)more;
}

static void enter(ap_mail *m, ap_message *one, int state) {
    count(m, one, 1);
    one->state = state, one->next = NULL, one->previous = m->last[state];
    if (one->previous)
        one->previous->next = one;
    else
        m->lists[state] = one;
    m->last[state] = one;
}

static void leave(ap_mail *m, ap_message *one) {
    count(m, one, -1);
    if (one->previous)
        one->previous->next = one->next;
    else
        m->lists[one->state] = one->next;
    if (one->next)
        one->next->previous = one->previous;
    else
        m->last[one->state] = one->previous;
}

void ap_mail_move(ap_mail *m, ap_message *one, int state) {
    leave(m, one);
    enter(m, one, state);
}

void ap_mail_finish(ap_mail *m, ap_message *one, int code, const char *why) {
    leave(m, one);
    one->state = OVER, one->code = code;
    snprintf(one->why, sizeof one->why, "%s", why);
    ap_mail_changed(m);
}

ap_message *ap_mail_new(ap_mail *m, int sends, uint32_t peer, int32_t tag, void *data, uint64_t bytes, int state) {
    ap_message *one = calloc(1, sizeof *one);
    if (!one) return NULL;
    one->sends = sends, one->peer = peer, one->tag = tag, one->data = data, one->bytes = bytes, one->id = ++m->drawn;
    enter(m, one, state);
    return one;
}

/* ---- parts that the wire carries ---- */

/* The number of a message of the wire; 0 where there is no memory. */
static uint32_t number_of(ap_mail *m, uint32_t peer, int what, void *of) {
    if (m->unused == m->space) {
        uint32_t space = m->space ? 2 * m->space : 64;
        slot *more = realloc(m->slots, space * sizeof *more);
        if (!more) return 0;
        for (uint32_t i = m->space; i < space; i++) more[i] = (slot){FREE, 0, i + 1, NULL};
        m->slots = more, m->space = space;
    }
    slot *s = &m->slots[m->unused];
    uint32_t number = m->ranks + m->unused; /* below that: notes that are waited for, by who sends them */
    m->unused = s->next;
    *s = (slot){what, peer, 0, of};
    return number;
}

int ap_mail_no_memory(ap_error *error) { return ap_fail(error, AP_MEMORY, "out of memory"); }

int ap_mail_send_part(ap_mail *m, uint32_t to, uint32_t channel, const void *data, uint64_t bytes, int what, void *of,
                     ap_error *error) {
    uint32_t number = number_of(m, to, what, of);
    if (!number) return ap_mail_no_memory(error);
    m->sending++, m->more = 1;
    return m->wire->send(m->wire, to, channel, data, bytes, number, error);
}

static int receive_part(ap_mail *m, uint32_t from, uint32_t channel, void *data, uint64_t bytes, int what, void *of,
                        ap_error *error) {
    uint32_t number = number_of(m, from, what, of);
    return number ? m->wire->receive(m->wire, from, channel, data, bytes, number, error) : ap_mail_no_memory(error);
}

int ap_mail_tell(ap_mail *m, uint32_t to, const note *told, ap_message *over, ap_error *error) {
    out_note *out = m->spare;
    if (m->gone[to]) return AP_OK; /* nobody hears it */
    if (out)
        m->spare = out->next;
    else if (!(out = malloc(sizeof *out)))
        return ap_mail_no_memory(error);
    out->note = *told, out->over = over;
    return ap_mail_send_part(m, to, NOTES, &out->note, sizeof out->note, SENT_NOTE, out, error);
}

int ap_mail_await_note(ap_mail *m, uint32_t from, ap_error *error) {
    return m->wire->receive(m->wire, from, NOTES, &m->with[from].note, sizeof(note), from, error);
}

/* ---- what comes ---- */

/* It has left the memory that is set apart for what nobody has asked for; the sender hears so before he runs out of it. */
static int taken(ap_mail *m, uint32_t from, uint64_t bytes, ap_error *error) {
    correspondent *c = &m->with[from];
    c->owed += bytes + CHARGE;
    if (c->owed < WINDOW / 2) return AP_OK;
    note told = {.kind = TAKEN, .bytes = c->owed};
    c->sent -= c->owed, c->owed = 0;
    return ap_mail_tell(m, from, &told, NULL, error);
}

static int too_long(ap_mail *m, ap_message *one, uint32_t from, uint64_t bytes) {
    char why[sizeof one->why];
    if (bytes <= one->bytes) return 0;
    one->source = from;
    snprintf(why, sizeof why, "rank %u sends %llu bytes where %llu are expected", from, (unsigned long long)bytes,
             (unsigned long long)one->bytes);
    ap_mail_finish(m, one, AP_INVALID, why);
    return 1;
}

/* A receive has found its message. */
static void met(ap_mail *m, ap_message *one, uint32_t from, uint64_t bytes) {
    one->source = from, one->come = bytes;
    ap_mail_move(m, one, MOVING);
}

static int ask_for(ap_mail *m, ap_message *one, uint32_t from, uint64_t bytes, uint64_t id, ap_error *error) {
    note told = {.kind = GO, .bytes = one->bytes, .id = id};
    if (too_long(m, one, from, bytes)) {
        told.kind = TOO_LONG;
        return ap_mail_tell(m, from, &told, NULL, error);
    }
    met(m, one, from, bytes);
    int code = receive_part(m, from, ASKED, one->data, bytes, CAME_DATA, one, error);
    return code ? code : ap_mail_tell(m, from, &told, NULL, error);
}

static void here(ap_mail *m, ap_message *one, uint32_t from, const void *data, uint64_t bytes) {
    if (too_long(m, one, from, bytes)) return;
    met(m, one, from, bytes);
    ap_copy(one->data, data, bytes);
    ap_mail_finish(m, one, AP_OK, "");
}

static arrival *kept(ap_mail *m, uint32_t from, const note *n, int whole) {
    arrival *a = malloc(sizeof *a);
    if (!a) return NULL;
    *a = (arrival){.from = from, .tag = n->tag, .asks = n->kind == ASKS, .whole = whole, .bytes = n->bytes, .id = n->id};
    if (!a->asks && !(a->data = malloc(n->bytes ? n->bytes : 1))) {
        free(a);
        return NULL;
    }
    *m->end = a, m->end = &a->next;
    return a;
}

static void let_go(ap_mail *m, arrival **at) {
    arrival *a = *at;
    if (m->end == &a->next) m->end = at;
    *at = a->next;
    free(a->data), free(a);
}

static arrival **place_of(ap_mail *m, const arrival *one) {
    arrival **at = &m->first;
    while (*at != one) at = &(*at)->next;
    return at;
}

static ap_message *posted_for(const ap_mail *m, uint32_t from, int32_t tag) {
    for (ap_message *one = m->lists[POSTED]; one; one = one->next)
        if (one->tag == tag && (one->peer == from || one->peer == AP_ANYBODY)) return one;
    return NULL;
}

/* A message, or that one is there. */
static int comes(ap_mail *m, uint32_t from, const note *n, ap_error *error) {
    ap_message *one = posted_for(m, from, n->tag);
    const int is_here = n->kind == COMES && n->bytes <= HERE;
    arrival *a = NULL;
    if (n->kind == ASKS && one) return ask_for(m, one, from, n->bytes, n->id, error);
    if (is_here && one) {
        here(m, one, from, n->here, n->bytes);
        return taken(m, from, n->bytes, error);
    }
    if (one && n->bytes <= one->bytes) { /* straight to its place */
        met(m, one, from, n->bytes);
        int code = receive_part(m, from, UNASKED, one->data, n->bytes, CAME_DATA, one, error);
        return code ? code : taken(m, from, n->bytes, error);
    }
    if (!(a = kept(m, from, n, is_here))) return ap_mail_no_memory(error);
    if (is_here) ap_copy(a->data, n->here, n->bytes);
    if (one) a->useless = too_long(m, one, from, n->bytes);
    return a->asks || is_here ? AP_OK : receive_part(m, from, UNASKED, a->data, a->bytes, CAME_UNASKED, a, error);
}

static int arrived(ap_mail *m, arrival *a, ap_error *error) {
    const uint32_t from = a->from;
    const uint64_t bytes = a->bytes;
    a->whole = 1;
    if (!a->wanted && !a->useless) return AP_OK;
    if (a->wanted) {
        ap_copy(a->wanted->data, a->data, bytes);
        ap_mail_finish(m, a->wanted, AP_OK, "");
    }
    let_go(m, place_of(m, a));
    return taken(m, from, bytes, error);
}

/* One that will never come stays in its place: what was sent behind it is for another receive than its own. Who receives from
 * anybody does not wait for it, nor get that. */
static int never_comes(const ap_mail *m, const arrival *a) {
    for (const arrival *b = m->first; m->gone[a->from]; b = b->next) {
        if (b->asks && b->from == a->from && b->tag == a->tag) return 1;
        if (b == a) break;
    }
    return 0;
}

/* A receive that is new: it may have come already. */
int ap_mail_look_for(ap_mail *m, ap_message *one, ap_error *error) {
    arrival **at = &m->first, *a;
    for (; (a = *at); at = &a->next)
        if (!a->wanted && !a->useless && a->tag == one->tag &&
            (one->peer == AP_ANYBODY ? !never_comes(m, a) : a->from == one->peer))
            break;
    if (!a) return AP_OK;
    const uint32_t from = a->from;
    const uint64_t bytes = a->bytes, id = a->id;
    if (a->asks) {
        let_go(m, at);
        if (m->gone[from]) return ap_mail_lose(m, one, from), AP_OK;
        return ask_for(m, one, from, bytes, id, error);
    }
    if (a->whole) {
        here(m, one, from, a->data, bytes);
        let_go(m, at);
        return taken(m, from, bytes, error);
    }
    a->useless = too_long(m, one, from, bytes);
    if (!a->useless) {
        met(m, one, from, bytes);
        a->wanted = one;
    }
    return AP_OK;
}

/* ---- what was told ---- */

static ap_message *unheard(const ap_mail *m, uint32_t to, uint64_t id) {
    for (ap_message *one = m->lists[UNHEARD]; one; one = one->next)
        if (one->id == id && one->peer == to) return one;
    return NULL;
}

static int noted(ap_mail *m, uint32_t from, ap_error *error) {
    const note n = m->with[from].note;
    char why[160];
    ap_message *one;
    switch (n.kind) {
    case COMES:
        if (n.bytes > EAGER || (m->with[from].sent += n.bytes + CHARGE) > WINDOW) break;
        return comes(m, from, &n, error);
    case ASKS: return comes(m, from, &n, error);
    case GO:
    case TOO_LONG:
        if (!(one = unheard(m, from, n.id))) break;
        if (n.kind == GO) {
            ap_mail_move(m, one, MOVING);
            return ap_mail_send_part(m, from, ASKED, one->data, one->bytes, SENT_DATA, one, error);
        }
        snprintf(why, sizeof why, "rank %u expects %llu bytes where %llu are sent", from, (unsigned long long)n.bytes,
                 (unsigned long long)one->bytes);
        ap_mail_finish(m, one, AP_INVALID, why);
        return AP_OK;
    case TAKEN: m->with[from].room += n.bytes; return AP_OK;
    }
    return ap_fail(error, AP_TRANSPORT, "rank %u sent what is no note", from);
}

static slot freed(ap_mail *m, uint32_t place) {
    const slot was = m->slots[place];
    m->slots[place] = (slot){FREE, 0, m->unused, NULL};
    m->unused = place;
    m->sending -= was.what == SENT_NOTE || was.what == SENT_DATA;
    return was;
}

static int done(ap_mail *m, uint32_t number, ap_error *error) {
    if (number < m->ranks) {
        int code = noted(m, number, error);
        return code ? code : ap_mail_await_note(m, number, error);
    }
    const slot was = freed(m, number - m->ranks);
    if (was.what == CAME_UNASKED) return arrived(m, was.of, error);
    if (was.what == SENT_NOTE) {
        out_note *out = was.of;
        if (out->over) ap_mail_finish(m, out->over, AP_OK, "");
        out->next = m->spare, m->spare = out;
    } else {
        ap_mail_finish(m, was.of, AP_OK, "");
    }
    return AP_OK;
}

void ap_mail_let_go(ap_mail *m, uint32_t rank) {
    m->wire->turns->let_go(m->wire, rank);
    for (uint32_t i = 0; i < m->space; i++) {
        if (m->slots[i].what == FREE || m->slots[i].peer != rank) continue;
        const slot was = freed(m, i);
        ap_message *one = was.of;
        if (was.what == SENT_NOTE) {
            out_note *out = was.of;
            one = out->over;
            out->next = m->spare, m->spare = out;
        } else if (was.what == CAME_UNASKED) {
            one = ((arrival *)was.of)->wanted;
            let_go(m, place_of(m, was.of));
        }
        if (one) ap_mail_lose(m, one, rank);
    }
}

int ap_mail_pass(ap_mail *m) {
    uint32_t numbers[BATCH];
    ap_error error;
    int count, code = AP_OK, any = 0;
    while (!m->broken) {
        code = m->wire->completed(m->wire, 0, 0, numbers, BATCH, &count, &error);
        for (int i = 0; i < count && !code; i++) code = done(m, numbers[i], &error);
        if (code) ap_mail_break(m, code, error.text);
        if (!code && !count) break;
        any = 1;
    }
    if (m->more && m->sending && m->asleep && !m->broken) m->wire->turns->wake(m->wire);
    m->more = 0;
    return any;
}

