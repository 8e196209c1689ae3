// Hashes and ciphers, which are long chains of integer operations: SHA-256, CRC-32 by table in constant memory, and
// ChaCha20, each with the known answer of its standard.
#include "buffer.h"

#include <cstring>

__constant__ unsigned rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__device__ unsigned turned(unsigned x, int n) { return x >> n | x << (32 - n); }

// Each thread takes one message of at most 55 bytes, byte by byte, into a block in local memory.
__global__ void sha256(const unsigned char *messages, const int *lengths, int stride, unsigned *out) {
    unsigned char block[64] = {};
    int length = lengths[threadIdx.x];
    for (int i = 0; i < length; i++) block[i] = messages[threadIdx.x * stride + i];
    block[length] = 0x80, block[62] = (unsigned char)(length * 8 >> 8), block[63] = (unsigned char)(length * 8);
    unsigned w[64], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, s[8];
    for (int i = 0; i < 16; i++) w[i] = unsigned(block[4 * i]) << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        unsigned a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        unsigned e = s[4], a = s[0];
        unsigned t = s[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + rounds[i] + w[i];
        unsigned u = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        for (int k = 7; k > 0; k--) s[k] = s[k - 1];
        s[4] += t, s[0] = t + u;
    }
    for (int k = 0; k < 8; k++) out[threadIdx.x * 8 + k] = h[k] + s[k];
}

__constant__ unsigned crc_table[256];

__global__ void crc32(const unsigned char *messages, const int *lengths, int stride, unsigned *out) {
    unsigned crc = ~0u;
    for (int i = 0; i < lengths[threadIdx.x]; i++) crc = crc_table[(crc ^ messages[threadIdx.x * stride + i]) & 255] ^ crc >> 8;
    out[threadIdx.x] = ~crc;
}

__device__ void quarter(unsigned &a, unsigned &b, unsigned &c, unsigned &d) {
    a += b, d ^= a, d = turned(d, 16), c += d, b ^= c, b = turned(b, 20);
    a += b, d ^= a, d = turned(d, 24), c += d, b ^= c, b = turned(b, 25);
}

__global__ void chacha(unsigned *out) {
    unsigned x[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, start[16];
    for (unsigned k = 0; k < 8; k++) x[4 + k] = 0x03020100 + k * 0x04040404;
    x[12] = threadIdx.x, x[13] = 0x09000000, x[14] = 0x4a000000, x[15] = 0;
    for (int k = 0; k < 16; k++) start[k] = x[k];
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < 4; k++) quarter(x[k], x[4 + k], x[8 + k], x[12 + k]);
        for (int k = 0; k < 4; k++) quarter(x[k], x[4 + (k + 1) % 4], x[8 + (k + 2) % 4], x[12 + (k + 3) % 4]);
    }
    for (int k = 0; k < 16; k++) out[threadIdx.x * 16 + k] = x[k] + start[k];
}

int main() {
    const char *texts[4] = {"abc", "", "123456789", "The quick brown fox jumps over the lazy dog"};
    // The first word of SHA-256, and CRC-32, of each.
    const unsigned firsts[4] = {0xba7816bf, 0xe3b0c442, 0x15e2b0d3, 0xd7a8fbb3}, crcs[4] = {0x352441c2, 0, 0xcbf43926, 0x414fa339};
    const int stride = 56;
    std::vector<unsigned char> messages(4 * stride);
    std::vector<int> lengths(4);
    for (int i = 0; i < 4; i++) lengths[i] = int(strlen(texts[i])), memcpy(&messages[i * stride], texts[i], strlen(texts[i]));
    Buffer<unsigned char> device_messages(messages);
    Buffer<int> device_lengths(lengths);
    Buffer<unsigned> digests(4 * 8), sums(4), stream(4 * 16);
    sha256<<<1, 4>>>(device_messages, device_lengths, stride, digests);
    unsigned table[256];
    for (unsigned i = 0; i < 256; i++) {
        unsigned crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        table[i] = crc;
    }
    OK(cudaMemcpyToSymbol(crc_table, table, sizeof table));
    crc32<<<1, 4>>>(device_messages, device_lengths, stride, sums);
    chacha<<<1, 4>>>(stream);
    RAN();
    std::vector<unsigned> d = digests.read(), s = sums.read(), c = stream.read();
    for (int i = 0; i < 4; i++) CHECK(d[i * 8] == firsts[i] && s[i] == crcs[i], "'%s': %08x, %08x", texts[i], d[i * 8], s[i]);
    CHECK(d[7] == 0xf20015ad && d[15] == 0x7852b855, "last words %08x, %08x", d[7], d[15]);
    // RFC 8439, section 2.3.2: the key stream of block 1.
    CHECK(c[16] == 0xe4e7f110 && c[17] == 0x15593bd1 && c[31] == 0x4e3c50a2, "%08x %08x .. %08x", c[16], c[17], c[31]);
    printf("SHA-256, CRC-32 and ChaCha20 give their known answers\n");
    return finish("hashes");
}
