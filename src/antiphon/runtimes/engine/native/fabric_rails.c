/* Cards, opened by libfabric: which there are, which are taken. */
#include "fabric_rails.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"

static struct {
    int (*ask)(uint32_t version, const char *node, const char *service, uint64_t flags, const fabric_info *hints,
               fabric_info **found);
    void (*release)(fabric_info *info);
    fabric_info *(*copy)(const fabric_info *info);
    int (*open)(fabric_net *net, fabric_provider **made, void *context);
    const char *(*says)(int code);
    int there;
} lib;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* What comes with it may take signals when it is loaded (libpsm_infinipath: those that end a process, also SIGINT, which Python
 * hears), to write where it ended into a file PROGRAM-PID,HOST.btr: they stay what they were. */
static void *open_library(void) {
    enum { MOST = 64 };
    struct sigaction kept[MOST + 1];
    int known[MOST + 1];
    for (int s = 1; s <= MOST; s++) known[s] = !sigaction(s, NULL, &kept[s]);
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL); /* held from now on */
    for (int s = 1; s <= MOST; s++) {
        struct sigaction now;
        if (known[s] && !sigaction(s, NULL, &now) && now.sa_sigaction != kept[s].sa_sigaction) sigaction(s, &kept[s], NULL);
    }
    return library;
}

static void load(void) {
    void *library = open_library();
    if (!library) return;
    *(void **)&lib.ask = dlsym(library, "fi_getinfo");
    *(void **)&lib.release = dlsym(library, "fi_freeinfo");
    *(void **)&lib.copy = dlsym(library, "fi_dupinfo");
    *(void **)&lib.open = dlsym(library, "fi_fabric");
    *(void **)&lib.says = dlsym(library, "fi_strerror");
    lib.there = lib.ask && lib.release && lib.copy && lib.open && lib.says;
}

const char *ap_fabric_says(int code) { return lib.says(code); }

/* Whether `part` stands among the parts of `list`, between these marks. */
static int among(const char *part, size_t bytes, const char *list, char mark) {
    for (const char *at = list, *end; at && *at; at = end ? end + 1 : NULL) {
        end = strchr(at, mark);
        size_t length = end ? (size_t)(end - at) : strlen(at);
        if (length == bytes && !strncmp(at, part, bytes)) return 1;
    }
    return 0;
}

/* Those that are no more than the sockets that we have ourselves, or the memory that we share. */
static int over_tcp(const char *provider) {
    static const char *const names[] = {"tcp", "sockets", "udp", "net"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (among(names[i], strlen(names[i]), provider, ';')) return 1;
    return 0;
}

static int within_host(const char *provider) { return among("shm", 3, provider, ';'); }

static int is_loopback(const fabric_info *info) { return info->card->name && !strcmp(info->card->name, "lo"); }

static int is_address(const char *place) { return strpbrk(place, ":.") != NULL; }

static fabric_info *ask(const char *provider, const char *node, ap_error *error) {
    fabric_info *hints = lib.copy(NULL), *found = NULL;
    if (!hints) return ap_fail(error, AP_MEMORY, "out of memory"), NULL;
    hints->caps = FABRIC_TAGGED | FABRIC_DIRECTED, hints->mode = FABRIC_OWN_WORDS;
    hints->end->type = FABRIC_RELIABLE, hints->out->order = hints->in->order = FABRIC_IN_ORDER;
    hints->card->threads = FABRIC_ONE_THREAD, hints->card->careful = FABRIC_CAREFUL, hints->card->names = FABRIC_ANY_NAMES;
    if (*provider) hints->net->provider = strdup(provider);
    int code = lib.ask(FABRIC_VERSION, node, NULL, node ? FABRIC_SOURCE : 0, hints, &found);
    lib.release(hints);
    if (!code && found) return found;
    ap_fail(error, AP_UNSUPPORTED, "libfabric has no card for reliable tagged messages%s%s%s%s: %s",
            *provider ? " of provider " : "", provider, node ? " at " : "", node ? node : "", ap_fabric_says(-code));
    return NULL;
}

/* Whether a card is at that address, or has that name. For an address that is nobody's libfabric names other cards. */
static int is_at(const fabric_info *one, const char *place) {
    unsigned char wanted[16];
    if (!is_address(place)) return one->card->name && !strcmp(one->card->name, place);
    if (inet_pton(AF_INET, place, wanted) == 1)
        return one->own_bytes == sizeof(struct sockaddr_in) && !memcmp(&((struct sockaddr_in *)one->own)->sin_addr, wanted, 4);
    return inet_pton(AF_INET6, place, wanted) == 1 && one->own_bytes == sizeof(struct sockaddr_in6) &&
           !memcmp(&((struct sockaddr_in6 *)one->own)->sin6_addr, wanted, 16);
}

/* The first card that will do: of this provider in full, if one is named, and of this place. Addresses of IPv4 before others. */
static const fabric_info *choose(const fabric_info *all, const char *provider, const char *place) {
    const fabric_info *found = NULL;
    for (const fabric_info *one = all; one; one = one->next) {
        if ((provider && strcmp(one->net->provider, provider)) || (place && !is_at(one, place))) continue;
        if (!found || (found->format != FABRIC_IPV4 && one->format == FABRIC_IPV4)) found = one;
    }
    return found;
}

/* Of a named provider the first that leads out of this host, else the first that is more than TCP. */
static const fabric_info *best(const fabric_info *all, int named) {
    for (const fabric_info *one = all; one; one = one->next) {
        if (named ? is_loopback(one) : over_tcp(one->net->provider) || within_host(one->net->provider)) continue;
        return one->card->name ? choose(all, one->net->provider, one->card->name) : one;
    }
    return named ? all : NULL;
}

static int take(ap_fabric *f, const fabric_info *info, ap_error *error) {
    fabric_info *own = lib.copy(info);
    if (!own) return ap_fail(error, AP_MEMORY, "out of memory");
    f->rail[f->rails++] = (ap_rail){.info = own, .file = -1};
    return AP_OK;
}

/* The cards at these places; what one address or name is for. */
static int take_places(ap_fabric *f, const char *provider, const char *places, ap_error *error) {
    int code = AP_OK;
    for (const char *at = places, *end; !code && at && *at; at = end ? end + 1 : NULL) {
        char place[AP_ADDRESS];
        end = strchr(at, ',');
        size_t bytes = end ? (size_t)(end - at) : strlen(at);
        if (!bytes || bytes >= sizeof place || f->rails == AP_RAILS)
            return ap_fail(error, AP_INVALID, "%s: at most %d places of up to %d letters, with commas between", places,
                           AP_RAILS, AP_ADDRESS - 1);
        memcpy(place, at, bytes), place[bytes] = 0;
        fabric_info *all = ask(provider, is_address(place) ? place : NULL, error);
        if (!all) return error->code;
        const char *same = f->rails ? f->rail[0].info->net->provider : NULL;
        const fabric_info *one = choose(all, same, place);
        code = one ? take(f, one, error)
                   : ap_fail(error, AP_UNSUPPORTED, "%s: libfabric has no card there; it has %s and perhaps others (fi_info)", place,
                             all->card->name ? all->card->name : "some");
        lib.release(all);
    }
    return code;
}

static int take_best(ap_fabric *f, const char *provider, ap_error *error) {
    fabric_info *all = ask(provider, NULL, error);
    if (!all) return error->code;
    const fabric_info *first = best(all, *provider != 0);
    int code = first ? take(f, first, error)
                     : ap_fail(error, AP_UNSUPPORTED, "libfabric has nothing but TCP here; name a provider to go by it");
    for (const fabric_info *one = all; !code && one && !over_tcp(first->net->provider) && f->rails < AP_RAILS; one = one->next) {
        int known = strcmp(one->net->provider, first->net->provider) || !one->card->name;
        for (uint32_t k = 0; k < f->rails && !known; k++) known = !strcmp(f->rail[k].info->card->name, one->card->name);
        if (!known) code = take(f, one, error);
    }
    lib.release(all);
    return code;
}

static int failed(const char *what, int code, const ap_rail *r, ap_error *error) {
    return ap_fail(error, AP_UNSUPPORTED, "libfabric, provider %s, card %s: %s: %s", r->info->net->provider,
                   r->info->card->name ? r->info->card->name : "?", what, ap_fabric_says(-code));
}

#define TRY(WHAT, CALL)                                     \
    do {                                                    \
        int said = (CALL);                                  \
        if (said) return failed(WHAT, said, r, error);      \
    } while (0)

static int open_rail(ap_rail *r, ap_error *error) {
    fabric_book_wish book = {.type = r->info->card->addresses};
    fabric_queue_wish queue = {.format = FABRIC_WITH_LENGTH, .wait = FABRIC_WAIT_FILE};
    TRY("it cannot be opened", lib.open(r->info->net, &r->provider, NULL));
    TRY("it cannot be opened", r->provider->ops->domain(r->provider, r->info, &r->domain, NULL));
    TRY("no addresses", r->domain->ops->book(r->domain, &book, &r->book, NULL));
    if (r->domain->ops->queue(r->domain, &queue, &r->queue, NULL)) { /* not all can be waited for */
        queue.wait = FABRIC_NO_WAIT;
        TRY("no queue", r->domain->ops->queue(r->domain, &queue, &r->queue, NULL));
    } else if (r->queue->object.ops->control(&r->queue->object, FABRIC_GET_FILE, &r->file)) {
        r->file = -1;
    }
    TRY("no end of messages", r->domain->ops->endpoint(r->domain, r->info, &r->end, NULL));
    fabric_object *end = &r->end->object;
    TRY("no end of messages", end->ops->bind(end, &r->book->object, 0));
    TRY("no end of messages", end->ops->bind(end, &r->queue->object, FABRIC_OUT | FABRIC_IN));
    TRY("no end of messages", end->ops->control(end, FABRIC_ENABLE, NULL));
    return AP_OK;
}

static int name_rail(const ap_rail *r, uint32_t number, ap_fabric_name *name, ap_error *error) {
    size_t bytes = AP_ADDRESS;
    TRY("no address of its own", r->end->meeting->name(&r->end->object, name->address[number], &bytes));
    if (r->info->end->longest < name->longest) name->longest = r->info->end->longest;
    return AP_OK;
}

ap_fabric *ap_fabric_make(const char *provider, const char *places, ap_fabric_name *name, ap_error *error) {
    pthread_once(&once, load);
    if (!lib.there) return ap_fail(error, AP_UNSUPPORTED, "there is no libfabric here (libfabric.so.1)"), NULL;
    ap_fabric *f = calloc(1, sizeof *f);
    if (!f) return ap_fail(error, AP_MEMORY, "out of memory"), NULL;
    int code = *places ? take_places(f, provider, places, error) : take_best(f, provider, error);
    memset(name, 0, sizeof *name);
    name->longest = UINT64_C(1) << 30;
    for (uint32_t k = 0; k < f->rails && !code; k++) {
        code = open_rail(&f->rail[k], error);
        if (!code) code = name_rail(&f->rail[k], k, name, error);
    }
    if (code) return ap_fabric_close(f), NULL;
    name->rails = f->rails, f->over_tcp = over_tcp(f->rail[0].info->net->provider);
    strncpy(name->provider, f->rail[0].info->net->provider, sizeof name->provider - 1);
    return f;
}

static void give_up(fabric_object *one) {
    if (one) one->ops->close(one);
}

void ap_fabric_close(ap_fabric *f) {
    for (uint32_t k = 0; f && k < f->rails; k++) {
        ap_rail *r = &f->rail[k];
        give_up((fabric_object *)r->end), give_up((fabric_object *)r->queue), give_up((fabric_object *)r->book);
        give_up((fabric_object *)r->domain), give_up((fabric_object *)r->provider);
        lib.release(r->info);
    }
    free(f);
}
