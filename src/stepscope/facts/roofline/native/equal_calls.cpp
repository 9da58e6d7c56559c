// Which calls of operators have equal arguments; `roofline/operator_work.py` calls it, and its
// function in Python is the specification.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "exported.h"

namespace {

using Number = std::int64_t;
using Text = std::string_view;

constexpr std::size_t MOST_KEYS = 8;
using Values = std::array<Text, MOST_KEYS>;  // empty where there is none

struct Call {
    Number name;
    Values values;

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
    Members(Text text, const std::vector<Text>& keys)
        : at_(text.data()), end_(text.data() + text.size()), keys_(keys) {}

    bool read(Values& values) {
        if (!take('{')) return false;
        if (take('}')) return at_end();
        do {
            if (!read_member(values)) return false;
        } while (take(','));
        return take('}') && at_end();
    }

private:
    bool read_member(Values& values) {
        skip_space();
        const char* begin = at_;
        if (!skip_string()) return false;
        const Text key(begin + 1, std::size_t(at_ - begin - 2));
        if (may_spell_another(key) || !take(':')) return false;
        skip_space();
        begin = at_;
        if (!skip_value()) return false;
        for (std::size_t place = 0; place < keys_.size(); ++place)
            if (key == keys_[place]) values[place] = Text(begin, std::size_t(at_ - begin));
        return true;
    }

    static bool may_spell_another(Text key) {
        return key.find("\\u") != Text::npos || key.find("\\/") != Text::npos;
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
    const std::vector<Text>& keys_;
};

// The lines of a text.
std::vector<Text> lines(Text text) {
    std::vector<Text> found;
    for (std::size_t end; (end = text.find('\n')) != Text::npos; text.remove_prefix(end + 1))
        found.push_back(text.substr(0, end));
    found.push_back(text);
    return found;
}

}  // namespace

// first: of each of `count` calls, the first whose name and arguments at `keys` are equal. The
// arguments of a call are `text` from its start to its end, none where these are equal. Where it has
// none of the first `decisive` keys, the others do not count. keys: one a line, ended by a NUL byte.
// Returns 1, or 0 where a text is no plain JSON object, or there are too many keys.
EXPORTED int stepscope_equal_calls(const char* text, Number count, const Number* starts,
                                   const Number* ends, const Number* names, const char* keys,
                                   Number decisive, Number* first) {
    const std::vector<Text> wanted = lines(keys);
    if (wanted.size() > MOST_KEYS || std::size_t(decisive) > wanted.size()) return 0;
    const auto is_empty = [](Text value) { return value.empty(); };
    std::unordered_map<Call, Number, Hash> known;
    for (Number row = 0; row < count; ++row) {
        Call call{names[row], {}};
        const Text given(text + starts[row], std::size_t(ends[row] - starts[row]));
        if (!given.empty() && !Members(given, wanted).read(call.values)) return 0;
        const auto others = call.values.begin() + decisive;
        if (std::all_of(call.values.begin(), others, is_empty))
            std::fill(others, call.values.end(), Text());
        first[row] = known.emplace(call, row).first->second;
    }
    return 1;
}
