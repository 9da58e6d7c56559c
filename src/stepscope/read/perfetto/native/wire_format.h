#pragma once

// The wire format of protocol buffers, decoded as `read/xplane/protobuf.py` does: a field that would
// end after its message is cut there, and a message ends at an invalid field. Both are counted.
//
// Source: https://protobuf.dev/programming-guides/encoding

#include <cstdint>
#include <cstring>
#include <string_view>

namespace {

enum Kind { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

struct Field {
    std::uint64_t number = 0;
    int kind = VARINT;
    std::uint64_t value = 0;  // of a varint or eight bytes
    std::string_view bytes;
    const char* begin = nullptr;  // of its key

    bool is(std::uint64_t wanted, Kind with) const { return number == wanted && kind == with; }
};

// The fields of a message in order.
class Fields {
public:
    Fields(std::string_view message, std::int64_t& damage)
        : at_(message.data()), end_(at_ + message.size()), damage_(damage) {}

    bool next(Field& field) {
        if (at_ >= end_) return false;
        field.begin = at_;
        std::uint64_t key = 0;
        if (!varint(key) || key < LEAST_KEY || key >= MOST_KEY) return stop();
        field.number = key >> 3;
        field.kind = int(key & 7);
        switch (field.kind) {
            case VARINT: return varint(field.value) || stop();
            case FIXED64:
                if (end_ - at_ < 8) return stop();
                std::memcpy(&field.value, at_, 8);
                at_ += 8;
                return true;
            case FIXED32:
                if (end_ - at_ < 4) return stop();
                at_ += 4;
                return true;
            case BYTES: return bytes(field.bytes);
            default: return stop();
        }
    }

private:
    static constexpr std::uint64_t LEAST_KEY = 8, MOST_KEY = std::uint64_t(1) << 32;

    bool stop() {
        ++damage_;
        at_ = end_;
        return false;
    }

    bool bytes(std::string_view& result) {
        std::uint64_t size = 0;
        if (!varint(size)) return stop();
        const auto room = std::uint64_t(end_ - at_);
        if (size > room) ++damage_;
        result = {at_, std::size_t(size < room ? size : room)};
        at_ += result.size();
        return true;
    }

    bool varint(std::uint64_t& value) {
        value = 0;
        for (int shift = 0; at_ < end_ && shift < 70; shift += 7) {  // ten bytes at most
            const auto byte = static_cast<unsigned char>(*at_++);
            value |= std::uint64_t(byte & 127) << shift;
            if (byte < 128) return true;
        }
        return false;
    }

    const char *at_, *end_;
    std::int64_t& damage_;
};

}  // namespace
