// PTX text in a container, in the form that compilers produce.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

// A header, and one entry of PTX for this architecture that is not compressed. Of its options, an empty text, NVIDIA's driver
// reads where they are said to be.
inline std::vector<uint64_t> container(const char *text, uint32_t architecture) {
    struct {
        uint32_t magic = 0xba55ed50;
        uint16_t version = 1, header = 16;
        uint64_t size = 0;
        uint16_t kind = 1, entry_version = 0x101;
        uint32_t entry_header = 80;
        uint64_t text = 0;
        uint32_t compressed = 0, options = 64;
        uint16_t minor = 0, major = 7;
        uint32_t architecture = 0;
        uint64_t name = 0, flags = 0x11, reserved = 0, uncompressed = 0;
        uint64_t options_text = 72, no_options = 0;
    } head;
    static_assert(sizeof head == 16 + 80, "other sizes than in the file");
    head.text = (strlen(text) + 8) / 8 * 8;
    head.size = 80 + head.text;
    head.architecture = architecture;
    std::vector<uint64_t> whole((sizeof head + head.text) / 8, 0);
    memcpy(whole.data(), &head, sizeof head);
    memcpy(whole.data() + sizeof head / 8, text, strlen(text));
    return whole;
}
