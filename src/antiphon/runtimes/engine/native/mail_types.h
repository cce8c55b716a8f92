/* What mail.c and mail_turns.c know of one another. */
#ifndef ANTIPHON_MAIL_TYPES_H
#define ANTIPHON_MAIL_TYPES_H

#include "lock.h"
#include "mail.h"
#include "transport.h"

/* A message of up to EAGER bytes goes to its receiver unasked, as long as no more than WINDOW bytes lie there that nobody has
 * taken yet; each counts as CHARGE bytes more. Longer ones are asked for. Of up to HERE bytes all is in the note. */
enum { EAGER = 1 << 16, WINDOW = 1 << 18, CHARGE = 64, HERE = 16 };

enum { NOTES, UNASKED, ASKED }; /* channels */

/* What one tells another. COMES: a message follows, or is here; ASKS: one is there; GO: it may come now; TOO_LONG: it never
 * may; TAKEN: so many bytes that came unasked. */
enum { COMES = 1, ASKS, GO, TOO_LONG, TAKEN };

typedef struct {
    uint32_t kind;
    int32_t tag;
    uint64_t bytes, id; /* id: of the send, by its sender */
    unsigned char here[HERE];
} note;

/* POSTED: a receive that nothing has come for. UNHEARD: a send whose receiver has not said to go on. */
enum { POSTED, UNHEARD, MOVING, OVER };

struct ap_message {
    ap_message *next, *previous; /* in the list of its state */
    int state, sends, code;
    int32_t tag;
    uint32_t peer, source;
    unsigned char *data;
    uint64_t bytes, come, id;
    char why[160];
};

/* What came and was not asked for yet. */
typedef struct arrival {
    struct arrival *next;
    uint32_t from;
    int32_t tag;
    int asks, whole, useless; /* useless: nobody will want it */
    uint64_t bytes, id;
    unsigned char *data;
    ap_message *wanted; /* what asked for it while it is coming */
} arrival;

typedef struct out_note {
    struct out_note *next;
    note note;
    ap_message *over; /* which has been sent with it, or NULL */
} out_note;

/* A message of the wire beside those notes that are always waited for. */
enum { FREE, SENT_NOTE, SENT_DATA, CAME_DATA, CAME_UNASKED };
typedef struct {
    int what;
    uint32_t peer, next; /* next: free ones */
    void *of;
} slot;

/* Of processes: GONE: nothing more comes from there. BURIED: what was under way with it has ended. */
enum { PRESENT, GONE, BURIED };

typedef struct {
    note note;     /* the next one from there */
    uint64_t room; /* what may go there unasked */
    uint64_t owed; /* of what came unasked and was taken, not yet told */
    uint64_t sent; /* what came unasked, of which it was not told that it was taken: at most WINDOW */
    uint32_t under_way; /* messages to it, and those that are to come from it */
} correspondent;

struct ap_mail {
    ap_wire *wire; /* NULL: it has ended */
    uint32_t rank, ranks;
    int process;
    int all;    /* calls end with it */
    int broken; /* the code with which all has ended, or ends */
    char why[200];
    ap_lock *lock; /* its own, or the wire's, too */
    uint32_t of_anybody;        /* messages under way that may come from anybody */
    correspondent *with;
    unsigned char *gone;
    ap_message *lists[OVER], *last[OVER];
    arrival *first, **end;
    slot *slots;
    uint32_t space, unused; /* unused: the first free one */
    out_note *spare;
    uint64_t drawn; /* ids */
    uint32_t sending; /* parts that the wire has not yet sent */
    int more; /* there may be some that who sleeps knows nothing of */
    /* turns */
    pthread_cond_t turn, stir;
    int driven, asleep, waiting; /* waiting: threads that wait for a message of theirs */
    int started, dormant;
    pthread_t thread;
};

/* All of it under the lock. mail_notes.c: in the list of that state; NULL: no memory */
ap_message *ap_mail_new(ap_mail *m, int sends, uint32_t peer, int32_t tag, void *data, uint64_t bytes, int state);
void ap_mail_finish(ap_mail *m, ap_message *one, int code, const char *why);
int ap_mail_no_memory(ap_error *error);
/* with `over` a message ends when the note is gone */
int ap_mail_tell(ap_mail *m, uint32_t to, const note *told, ap_message *over, ap_error *error);
int ap_mail_send_part(ap_mail *m, uint32_t to, uint32_t channel, const void *data, uint64_t bytes, int what, void *of,
                      ap_error *error);
int ap_mail_await_note(ap_mail *m, uint32_t from, ap_error *error);
void ap_mail_move(ap_mail *m, ap_message *one, int state);
int ap_mail_look_for(ap_mail *m, ap_message *one, ap_error *error);
/* carries on what can be, without waiting: whether anything was done. */
int ap_mail_pass(ap_mail *m);
/* What is under way with that one, of which nothing more comes, ends. */
void ap_mail_let_go(ap_mail *m, uint32_t rank);
/* mail.c: one ends because that one, or everybody, is gone */
void ap_mail_lose(ap_mail *m, ap_message *one, uint32_t peer);
/* mail.c: whether anything is under way; with that one, or NULL: nobody carries mail */
int ap_mail_busy(const ap_mail *m);
int ap_mail_awaits(const ap_mail *m, uint32_t rank);
/* what is with processes that are gone ends */
void ap_mail_mourn(ap_mail *m);
/* all ends, and nothing can be sent any more. */
void ap_mail_break(ap_mail *m, int code, const char *why);
/* mail_turns.c: what threads need is made; something is under way; a message has ended. */
void ap_mail_turns(ap_mail *m);
void ap_mail_begun(ap_mail *m);
void ap_mail_changed(ap_mail *m);

#endif
