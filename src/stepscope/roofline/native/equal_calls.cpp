// Which calls of operators have equal arguments; `roofline/equal_calls.py` calls it, and its
// function in Python is the specification.

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "exported.h"

namespace {

using Number = std::int64_t;
using Text = std::string_view;

constexpr std::array<Text, 5> KEYS = {
    "Input Dims", "Input type", "Concrete Inputs", "kernel_flop", "kernel_num_gb"};
enum { DIMS, TYPES, VALUES, FLOPS, SIZE };

struct Call {
    Number name;
    std::array<Text, KEYS.size()> values;  // empty where there is none

    bool operator==(const Call& other) const {
        return name == other.name && values == other.values;
    }
};

struct Hash {
    std::size_t operator()(const Call& call) const {
        auto result = std::size_t(call.name);
        for (const Text value : call.values)
            result = result * 1000003 ^ std::hash<Text>()(value);
        return result;
    }
};

// Walks the members of one JSON object; whatever is not plain ends it without success.
class Members {
public:
    explicit Members(Text text) : at_(text.data()), end_(text.data() + text.size()) {}

    bool read(std::array<Text, KEYS.size()>& values) {
        if (!take('{')) return false;
        if (take('}')) return at_end();
        do {
            if (!read_member(values)) return false;
        } while (take(','));
        return take('}') && at_end();
    }

private:
    bool read_member(std::array<Text, KEYS.size()>& values) {
        skip_space();
        const char* begin = at_;
        if (!skip_string()) return false;
        const Text key(begin + 1, std::size_t(at_ - begin - 2));
        if (key.find("\\u") != Text::npos || !take(':')) return false;  // may spell any name
        skip_space();
        begin = at_;
        if (!skip_value()) return false;
        for (std::size_t place = 0; place < KEYS.size(); ++place)
            if (key == KEYS[place]) values[place] = Text(begin, std::size_t(at_ - begin));
        return true;
    }

    bool skip_value() {
        if (at_ == end_) return false;
        if (*at_ == '"') return skip_string();
        if (*at_ == '[' || *at_ == '{') return skip_nested();
        const char* begin = at_;
        while (at_ < end_ && *at_ != ',' && *at_ != '}' && *at_ != ']' && !is_space(*at_)) ++at_;
        return at_ > begin;
    }

    bool skip_nested() {
        for (Number depth = 0; at_ < end_;) {
            const char here = *at_;
            if (here == '"') {
                if (!skip_string()) return false;
                continue;
            }
            ++at_;
            depth += (here == '[' || here == '{') - (here == ']' || here == '}');
            if (!depth) return true;
        }
        return false;
    }

    bool skip_string() {
        if (at_ == end_ || *at_ != '"') return false;
        for (++at_; at_ < end_; ++at_) {
            if (*at_ == '\\') {
                if (++at_ == end_) return false;
            } else if (*at_ == '"') {
                ++at_;
                return true;
            }
        }
        return false;
    }

    bool take(char wanted) {
        skip_space();
        if (at_ == end_ || *at_ != wanted) return false;
        ++at_;
        return true;
    }

    bool at_end() {
        skip_space();
        return at_ == end_;
    }

    void skip_space() {
        while (at_ < end_ && is_space(*at_)) ++at_;
    }

    static bool is_space(char one) {
        return one == ' ' || one == '\n' || one == '\t' || one == '\r';
    }

    const char *at_, *end_;
};

}  // namespace

// first: of each of `count` calls, the first whose name and arguments are equal. The arguments of a
// call are `text` from its start to its end, none where these are equal.
// Returns 1, or 0 where a text is no plain JSON object.
EXPORTED int stepscope_equal_calls(const char* text, Number count, const Number* starts,
                                   const Number* ends, const Number* names, Number* first) {
    std::unordered_map<Call, Number, Hash> known;
    for (Number row = 0; row < count; ++row) {
        Call call{names[row], {}};
        const Text given(text + starts[row], std::size_t(ends[row] - starts[row]));
        if (!given.empty() && !Members(given).read(call.values)) return 0;
        if (call.values[DIMS].empty() && call.values[FLOPS].empty() && call.values[SIZE].empty())
            call.values[TYPES] = call.values[VALUES] = Text();
        first[row] = known.emplace(call, row).first->second;
    }
    return 1;
}
