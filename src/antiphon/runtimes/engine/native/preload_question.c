/* What a job with ANTIPHON_TABLE=auto asks: plans for its processes, wherever they are. The same words as those of
 * runtimes/serve/auto_question.py, so that what is kept for one is found by the other. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"
#include "sha256.h"

enum { WORD = 201 };

/* Without what would end a word or a line. */
static void plain(char word[WORD], const char *text) {
    size_t i = 0;
    for (; text[i] && i < WORD - 1; i++) word[i] = text[i] > ' ' && text[i] <= '~' ? text[i] : '?';
    word[i] = 0;
}

void ap_auto_facts(char facts[AP_FACTS]) {
    static const char *const visible[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"};
    char boot[64] = "-", host[256] = "", words[3][WORD];
    const char *told = NULL;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(boot, sizeof boot, file)) strcpy(boot, "-");
        boot[strcspn(boot, "\n")] = 0;
        fclose(file);
    }
    gethostname(host, sizeof host - 1);
    for (size_t i = 0; i < 3 && !told; i++) told = getenv(visible[i]);
    plain(words[0], boot), plain(words[1], host), plain(words[2], told ? told : "-");
    snprintf(facts, AP_FACTS, "%s %s %s%s", words[0], words[1], told ? "=" : "", words[2]);
}

/* $ANTIPHON_CACHE/auto, else antiphon/auto of $XDG_CACHE_HOME or ~/.cache; false: nothing is kept. */
static int kept_folder(char folder[AP_PATH]) {
    const char *own = getenv("ANTIPHON_CACHE"), *given = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char here[PATH_MAX] = "";
    int length;
    if (own && !strcmp(own, "off")) return 0;
    if (own && *own) {
        if (*own != '/' && !getcwd(here, sizeof here)) return 0;
        length = snprintf(folder, AP_PATH, "%s%s%s/auto", here, *here ? "/" : "", own);
    } else if (given && *given == '/') {
        length = snprintf(folder, AP_PATH, "%s/antiphon/auto", given);
    } else {
        length = home && *home ? snprintf(folder, AP_PATH, "%s/.cache/antiphon/auto", home) : -1;
    }
    return length > 0 && length < AP_PATH - 80;
}

char *ap_auto_question(const char *facts, int processes, char kept[AP_PATH]) {
    const char *named = getenv("ANTIPHON_TOPOLOGY"), *ranks = getenv("ANTIPHON_RANKS");
    char words[2][WORD], content[65] = "-", digest[65], folder[AP_PATH];
    size_t room = 1024 + (size_t)processes * (AP_FACTS + 16), at;
    char *text = malloc(room);
    kept[0] = 0;
    if (!text) return NULL;
    plain(words[0], named ? named : ""), plain(words[1], ranks ? ranks : "");
    if (named && *named && !ap_file_digest(named, content)) strcpy(content, "-");
    at = (size_t)snprintf(text, room, "antiphon auto 1 " AP_VERSION "\nmachine =%s %s\nranks =%s\n", words[0], content, words[1]);
    for (int i = 0; i < processes; i++)
        at += (size_t)snprintf(text + at, room - at, "process %.*s\n", AP_FACTS, facts + (size_t)i * AP_FACTS);
    ap_sha256(text, at, digest);
    if (kept_folder(folder)) snprintf(kept, AP_PATH, "%s/%s.plan", folder, digest);
    return text;
}

/* ---- answers ---- */

static const char *word_of(const char *from, const char *end, char *word, size_t room) {
    size_t i = 0;
    for (; from < end && *from != '\t' && *from != '\n'; from++)
        if (i + 1 < room) word[i++] = *from;
    word[i] = 0;
    return from < end ? from + 1 : end;
}

unsigned char *ap_auto_answer(const unsigned char *answer, uint64_t bytes, uint64_t *size, ap_told *told) {
    const char *at = (const char *)answer, *end = at + bytes;
    at = word_of(at, end, told->how, sizeof told->how);
    at = word_of(at, end, told->machine, sizeof told->machine);
    at = word_of(at, end, told->gain, sizeof told->gain);
    at = word_of(at, end, told->notes, sizeof told->notes);
    *size = (uint64_t)(end - at);
    unsigned char *book = malloc(*size ? (size_t)*size : 1); /* at a multiple of 8, which it need not be in the file */
    if (!book) return NULL;
    memcpy(book, at, (size_t)*size);
    ap_book *good = ap_book_open(book, *size, NULL);
    ap_book_close(good);
    if (good) return book;
    free(book);
    return NULL;
}
