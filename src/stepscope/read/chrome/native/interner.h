#pragma once

// Numbers distinct values in order of first appearance.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "json_text.h"

namespace {

constexpr std::size_t MOST_PROBES = 256;

inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    return hash ^ (hash >> 32);
}

// All bits depend on all (the last step of MurmurHash3): names that count up lie in few slots without.
inline std::uint64_t spread(std::uint64_t hash) {
    hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCD;
    hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53;
    return hash ^ (hash >> 33);
}

// The end of a text, or all of a short one, is taken as words that may overlap.
inline std::uint64_t mixed(std::uint64_t hash, Span text) {
    std::size_t size = text.size();
    hash = mixed(hash, size);
    if (size >= 8) {
        for (const char* at = text.begin; text.end - at > 8; at += 8)
            hash = mixed(hash, loaded<std::uint64_t>(at));
        return mixed(hash, loaded<std::uint64_t>(text.end - 8));
    }
    if (size >= 4)
        return mixed(hash, loaded<std::uint32_t>(text.begin) |
                               loaded<std::uint32_t>(text.end - 4) << 32);
    std::uint64_t word = 0;
    for (const char* at = text.begin; at != text.end; ++at)
        word = word << 8 | static_cast<unsigned char>(*at);
    return mixed(hash, word);
}

template <typename Value>
class Interner {
public:
    std::int64_t code(const Value& value) {
        if (values_.size() * 2 >= slots_.size()) grow();
        std::uint64_t hash = spread(value.hash());
        std::size_t slot = hash & (slots_.size() - 1);
        for (std::size_t probe = 0; slots_[slot] >= 0; ++probe) {
            auto code = std::size_t(slots_[slot]);
            if (hashes_[code] == hash && values_[code] == value) return std::int64_t(code);
            if (probe == MOST_PROBES) throw Odd();  // somebody chose names that collide
            slot = (slot + 1) & (slots_.size() - 1);
        }
        slots_[slot] = std::int32_t(values_.size());
        values_.push_back(value);
        hashes_.push_back(hash);
        return std::int64_t(values_.size() - 1);
    }

    const std::vector<Value>& values() const { return values_; }

private:
    void grow() {
        slots_.assign(slots_.empty() ? 256 : slots_.size() * 2, -1);
        for (std::size_t code = 0; code < values_.size(); ++code) {
            std::size_t slot = hashes_[code] & (slots_.size() - 1);
            while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
            slots_[slot] = std::int32_t(code);
        }
    }

    std::vector<Value> values_;
    std::vector<std::uint64_t> hashes_;
    std::vector<std::int32_t> slots_;
};

}  // namespace
