/* Plain sums, one element after another: nothing of the engine is used here. */
#include "numbers.h"

#include <string.h>

static float of_brain(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static uint16_t to_brain(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

size_t number_size(int type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type < 0 || type > 11 ? 0 : sizes[type];
}

/* What a type can hold exactly, a double can, or a whole number of 64 bits. */
double number_at(const void *data, size_t i, int type) {
    const char *at = (const char *)data + i * number_size(type);
    switch (type) {
#define CASE(NUMBER, T) case NUMBER: { T x; memcpy(&x, at, sizeof x); return (double)x; }
        CASE(0, int8_t) CASE(1, uint8_t) CASE(2, int32_t) CASE(3, uint32_t) CASE(4, int64_t) CASE(5, uint64_t)
        CASE(6, _Float16) CASE(7, float) CASE(8, double) CASE(10, uint8_t) CASE(11, uint8_t)
    }
    uint16_t b;
    memcpy(&b, at, 2);
    return of_brain(b);
}

void number_put(void *data, size_t i, int type, double value) {
    char *at = (char *)data + i * number_size(type);
    switch (type) {
#define PUT(NUMBER, T) case NUMBER: { T x = (T)value; memcpy(at, &x, sizeof x); return; }
#define WHOLE(NUMBER, T) case NUMBER: { T x = (T)(int64_t)value; memcpy(at, &x, sizeof x); return; }
        WHOLE(0, int8_t) WHOLE(1, uint8_t) WHOLE(2, int32_t) WHOLE(3, uint32_t) WHOLE(4, int64_t) WHOLE(5, uint64_t)
        PUT(6, _Float16) PUT(7, float) PUT(8, double) WHOLE(10, uint8_t) WHOLE(11, uint8_t)
    }
    uint16_t b = to_brain((float)value);
    memcpy(at, &b, 2);
}

double number_both(double x, double y, int op) {
    switch (op) {
    case 1: return x * y;
    case 2: return x > y ? x : y;
    case 3: return x < y ? x : y;
    default: return x + y;
    }
}
