/* SHA-256 (FIPS 180-4) of a whole buffer at once.
 *
 * Threading: no state. Ownership: all memory is the caller's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t ap_rotate_right(uint32_t x, int by) { return x >> by | x << (32 - by); }

/* The initial state and `root` are the first bits of the fractional parts of roots of the first primes: square roots of 8, and
 * cube roots of 64. */
static inline void ap_sha256_block(uint32_t state[8], const unsigned char *block) {
    static const uint32_t root[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
        0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
        0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
        0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
        0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
        0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (ap_rotate_right(a, 7) ^ ap_rotate_right(a, 18) ^ a >> 3) + w[i - 7] +
               (ap_rotate_right(b, 17) ^ ap_rotate_right(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[0], e = s[4];
        uint32_t mixed = ap_rotate_right(e, 6) ^ ap_rotate_right(e, 11) ^ ap_rotate_right(e, 25);
        uint32_t t1 = s[7] + mixed + ((e & s[5]) ^ (~e & s[6])) + root[i] + w[i];
        uint32_t t2 = (ap_rotate_right(a, 2) ^ ap_rotate_right(a, 13) ^ ap_rotate_right(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1, s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

/* The digest, as 64 hexadecimal digits and a zero. */
static inline void ap_sha256(const void *data, size_t size, char text[65]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const unsigned char *bytes = data;
    unsigned char end[128] = {0};
    /* `end`: the rest of the data, a byte 0x80, zeros, and the length in bits as 8 bytes; one block or two (`tail` bytes) */
    size_t full_bytes = size / 64 * 64, rest = size - full_bytes, tail = rest < 56 ? 64 : 128;
    for (size_t at = 0; at < full_bytes; at += 64) ap_sha256_block(state, bytes + at);
    if (rest) memcpy(end, bytes + full_bytes, rest);
    end[rest] = 0x80;
    for (int i = 0; i < 8; i++) end[tail - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
    for (size_t at = 0; at < tail; at += 64) ap_sha256_block(state, end + at);
    for (int i = 0; i < 64; i++) text[i] = "0123456789abcdef"[state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    text[64] = 0;
}
