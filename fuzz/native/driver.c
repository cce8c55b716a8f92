/* The fuzzer where there is no libFuzzer: seeds from a folder, each turn one of them or one that was made before, changed by
 * the same mutator. It sees no coverage, so it keeps by chance. The same seed does the same. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t limit, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t limit);

enum { MAX_BYTES = 1 << 16, MAX_KEPT = 512 };

typedef struct {
    uint8_t *bytes;
    size_t size;
} fuzz_input;

static fuzz_input seeds[MAX_KEPT], mutated[MAX_KEPT];
static size_t seed_count, mutated_count;
static uint64_t state;

static uint32_t draw_number(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % (below ? below : 1));
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t limit) {
    if (!size || (size < limit && !draw_number(4))) return data[size] = (uint8_t)draw_number(256), size + 1;
    if (!draw_number(8)) return 1 + draw_number(size);
    data[draw_number(size)] = (uint8_t)draw_number(256);
    return size;
}

static fuzz_input read_file(const char *path) {
    fuzz_input input = {malloc(MAX_BYTES), 0};
    FILE *from = fopen(path, "rb");
    if (!from || !input.bytes) exit(2);
    input.size = fread(input.bytes, 1, MAX_BYTES, from);
    fclose(from);
    return input;
}

/* If this one ends the process, it is what to look at. */
static void try_input(const fuzz_input *input, const char *last) {
    FILE *to = fopen(last, "wb");
    if (!to || fwrite(input->bytes, 1, input->size, to) != input->size || fclose(to)) exit(2);
    LLVMFuzzerTestOneInput(input->bytes, input->size);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

int main(int count, char **arguments) {
    if (count == 2) { /* one file, run once: what a crash has left */
        fuzz_input input = read_file(arguments[1]);
        LLVMFuzzerTestOneInput(input.bytes, input.size);
        free(input.bytes);
        return 0;
    }
    if (count != 5) return fprintf(stderr, "usage: %s FILE | %s SEEDS EXECUTIONS SEED LAST\n", arguments[0], arguments[0]), 2;
    struct dirent **names = NULL;
    int seed_files = scandir(arguments[1], &names, NULL, by_name);
    for (int i = 0; i < seed_files; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", arguments[1], names[i]->d_name);
        if (names[i]->d_name[0] != '.' && seed_count < MAX_KEPT) seeds[seed_count++] = read_file(path);
        free(names[i]);
    }
    free(names);
    if (!seed_count) return fprintf(stderr, "%s: no seeds\n", arguments[1]), 2;
    uint64_t executions = strtoull(arguments[2], NULL, 10);
    state = strtoull(arguments[3], NULL, 10) * 2 + 1;
    for (size_t i = 0; i < seed_count; i++) try_input(&seeds[i], arguments[4]);
    static uint8_t bytes[MAX_BYTES];
    for (uint64_t i = 0; i < executions; i++) {
        const fuzz_input *from = &seeds[draw_number(seed_count)];
        if (draw_number(3) && mutated_count) from = &mutated[draw_number(mutated_count)];
        memcpy(bytes, from->bytes, from->size);
        size_t size = LLVMFuzzerCustomMutator(bytes, from->size, MAX_BYTES, draw_number(UINT32_MAX));
        try_input(&(fuzz_input){bytes, size}, arguments[4]);
        if (!draw_number(16)) {
            fuzz_input *place = &mutated[mutated_count < MAX_KEPT ? mutated_count++ : draw_number(MAX_KEPT)];
            free(place->bytes);
            if (!(place->bytes = malloc(size + 1))) exit(2);
            memcpy(place->bytes, bytes, size), place->size = size;
        }
    }
    for (size_t i = 0; i < MAX_KEPT; i++) free(seeds[i].bytes), free(mutated[i].bytes);
    fprintf(stderr, "Done %llu runs\n", (unsigned long long)executions);
    return 0;
}
