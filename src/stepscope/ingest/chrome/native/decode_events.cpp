// Decodes the text of trace events, objects separated by commas, into columns of numbers and of
// places in the text. `compiled_decoder.py` calls it; `decode.py` does the same without it.
//
// It accepts only what msgspec accepts too, and gives up at anything else: a repeated key, half of
// a surrogate pair, a deep value, a name that is a number. Whoever calls it then reads the same text
// in Python, so that odd files are read by one program alone.
//
// The text must be followed by a NUL byte, as that of Python's `bytes` is. No JSON token contains
// one, so that every scan ends there and needs no other bound.
//
// Source: RFC 8259; Trace Event Format.

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "exported.h"

namespace {

constexpr int MOST_LEVELS = 64;
constexpr std::int64_t INVALID_NS = INT64_MIN;
constexpr std::int64_t LIMIT_US = (std::int64_t{1} << 62) / 1000;
constexpr std::size_t MOST_PROBES = 256;

struct Odd {};  // thrown at everything that Python shall read instead

struct Span {
    const char* begin = nullptr;
    const char* end = nullptr;

    std::size_t size() const { return std::size_t(end - begin); }
    explicit operator bool() const { return begin != nullptr; }
    bool operator==(const Span& other) const {
        return size() == other.size() && (!begin || !std::memcmp(begin, other.begin, size()));
    }
    template <std::size_t N>
    bool is(const char (&text)[N]) const {
        return size() == N - 1 && !std::memcmp(begin, text, N - 1);
    }
    bool contains(char wanted) const { return std::memchr(begin, wanted, size()); }
};

bool is_digit(char character) { return character >= '0' && character <= '9'; }

// -- tokens

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr std::uint64_t EACH = 0x0101010101010101, HIGH = 0x8080808080808080;

std::uint64_t below(std::uint64_t word, std::uint64_t limit) {
    return (word - EACH * limit) & ~word & HIGH;
}
#endif

// The first quote, backslash or control character.
const char* plain_end(const char* at, [[maybe_unused]] const char* end) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; end - at >= 8; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, at, 8);
        // A byte that is marked wrongly is above one that is marked rightly, and the lowest counts.
        std::uint64_t found = below(word ^ (EACH * '"'), 1) | below(word ^ (EACH * '\\'), 1) |
                              below(word, 0x20);
        if (found) return at + __builtin_ctzll(found) / 8;
    }
#endif
    while (static_cast<unsigned char>(*at) >= 0x20 && *at != '"' && *at != '\\') ++at;
    return at;
}

class Tokens {
public:
    Tokens(const char* text, std::int64_t size) : at_(text), end_(text + size) {}

    const char* at() const { return at_; }
    bool is_done() const { return at_ == end_; }
    char next() const { return *at_; }

    void skip_blanks() {
        while (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t') ++at_;
    }

    bool take(char wanted) {
        if (*at_ != wanted) return false;
        ++at_;
        return true;
    }

    void require(char wanted) {
        if (!take(wanted)) throw Odd();
    }

    // A string with its quotes.
    Span string() {
        const char* begin = at_;
        require('"');
        while (*(at_ = plain_end(at_, end_)) == '\\') skip_escape();
        require('"');
        return {begin, at_};
    }

    // A key without its quotes, and the colon and blanks after it.
    Span key() {
        Span quoted = string();
        skip_blanks();
        require(':');
        skip_blanks();
        return {quoted.begin + 1, quoted.end - 1};
    }

    // Whether the number that was skipped is an integer.
    bool skip_number() {
        bool is_integer = true;
        take('-');
        if (!take('0')) skip_digits();
        if (take('.')) {
            is_integer = false;
            skip_digits();
        }
        if (take('e') || take('E')) {
            is_integer = false;
            take('-') || take('+');
            skip_digits();
        }
        return is_integer;
    }

    Span value(int level = 0) {
        const char* begin = at_;
        switch (*at_) {
            case '"': string(); break;
            case '{': object(level, [&](Span) { value(level + 1); }); break;
            case '[': skip_array(level); break;
            case 't': skip_word("true"); break;
            case 'f': skip_word("false"); break;
            case 'n': skip_word("null"); break;
            default: skip_number();
        }
        return {begin, at_};
    }

    // An object; `member` is called at each value with its key, and takes the value.
    template <typename Member>
    void object(int level, Member member) {
        if (level > MOST_LEVELS) throw Odd();
        require('{');
        skip_blanks();
        if (take('}')) return;
        do {
            skip_blanks();
            member(key());
            skip_blanks();
        } while (take(','));
        require('}');
    }

private:
    void skip_array(int level) {
        if (level > MOST_LEVELS) throw Odd();
        require('[');
        skip_blanks();
        if (take(']')) return;
        do {
            skip_blanks();
            value(level + 1);
            skip_blanks();
        } while (take(','));
        require(']');
    }

    void skip_digits() {
        if (!is_digit(*at_)) throw Odd();
        while (is_digit(*at_)) ++at_;
    }

    void skip_word(const char* word) {
        while (*word) require(*word++);
    }

    void skip_escape() {
        require('\\');
        if (take('u')) {
            unsigned unit = hexadecimal();
            if (unit < 0xD800 || unit > 0xDFFF) return;
            if (unit > 0xDBFF || !take('\\') || !take('u')) throw Odd();
            unit = hexadecimal();
            if (unit < 0xDC00 || unit > 0xDFFF) throw Odd();
            return;
        }
        if (!*at_ || !std::strchr("\"\\/bfnrt", *at_)) throw Odd();
        ++at_;
    }

    unsigned hexadecimal() {
        unsigned unit = 0;
        for (int digit = 0; digit < 4; ++digit, ++at_) {
            unsigned lower = static_cast<unsigned char>(*at_) | 0x20u;
            if (is_digit(*at_)) unit = unit * 16 + unsigned(*at_ - '0');
            else if (lower >= 'a' && lower <= 'f') unit = unit * 16 + (lower - 'a' + 10);
            else throw Odd();
        }
        return unit;
    }

    const char* at_;
    const char* end_;
};

// -- numbers

struct Decimal {
    bool is_negative = false;
    std::int64_t digits = 0;  // without the point
    int whole = 0, places = 0;  // how many before and after the point
    bool is_plain = false;  // no exponent, at most 19 digits
};

Decimal decimal(Span text) {
    Decimal result;
    const char* at = text.begin;
    std::uint64_t digits = 0;
    if (at != text.end && *at == '-') result.is_negative = true, ++at;
    if (text.end - at > 20) return result;
    for (; at != text.end && is_digit(*at); ++at, ++result.whole)
        digits = digits * 10 + unsigned(*at - '0');
    if (result.whole && at != text.end && *at == '.')
        for (++at; at != text.end && is_digit(*at); ++at, ++result.places)
            digits = digits * 10 + unsigned(*at - '0');
    result.is_plain = result.whole && at == text.end && result.whole + result.places <= 19 &&
                      digits <= INT64_MAX;
    result.digits = std::int64_t(digits);
    return result;
}

// Exact nanoseconds of plain microseconds; false for any other text.
bool nanoseconds(Span text, std::int64_t& result) {
    Decimal us = decimal(text);
    if (!us.is_plain || us.whole > 16 || us.places > 3) return false;
    constexpr std::int64_t scale[] = {1000, 100, 10, 1};
    if (us.digits / (1000 / scale[us.places]) >= LIMIT_US) return false;
    result = us.digits * scale[us.places];
    if (us.is_negative) result = -result;
    return true;
}

// The nearest double of a number whose digits and power of ten are doubles; false for any other.
bool real(Span text, double& result) {
    Decimal number = decimal(text);
    if (!number.is_plain || number.digits >= std::int64_t{1} << 53) return false;
    if (number.is_negative && !number.digits) return false;
    constexpr double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,
                                1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19};
    result = double(number.digits) / power[number.places];
    if (number.is_negative) result = -result;
    return true;
}

bool integer(Span text, std::int64_t& result) {
    Decimal number = decimal(text);
    if (!number.is_plain || number.places) return false;
    result = number.is_negative ? -number.digits : number.digits;
    return true;
}

// -- distinct values

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    return hash ^ (hash >> 32);
}

std::uint64_t mixed(std::uint64_t hash, Span text) {
    const char* at = text.begin;
    std::size_t left = text.size();
    hash = mixed(hash, left);
    for (; left >= 8; at += 8, left -= 8) {
        std::uint64_t word;
        std::memcpy(&word, at, 8);
        hash = mixed(hash, word);
    }
    std::uint64_t word = 0;
    if (left) std::memcpy(&word, at, left);
    return mixed(hash, word);
}

struct Name {
    Span text;

    std::uint64_t hash() const { return mixed(0, text); }
    bool operator==(const Name& other) const { return text == other.text; }
};

struct Place {
    Span phase, category, process, thread;

    std::uint64_t hash() const {
        return mixed(mixed(mixed(mixed(0, phase), category), process), thread);
    }
    bool operator==(const Place& other) const {
        return phase == other.phase && category == other.category && process == other.process &&
               thread == other.thread;
    }
};

struct Label {
    std::int64_t place;
    Span name;

    std::uint64_t hash() const { return mixed(mixed(0, name), std::uint64_t(place)); }
    bool operator==(const Label& other) const {
        return place == other.place && name == other.name;
    }
};

// Numbers distinct values in order of first appearance.
template <typename Value>
class Interner {
public:
    std::int64_t code(const Value& value) {
        if (values_.size() * 2 >= slots_.size()) grow();
        std::uint64_t hash = value.hash();
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

// -- events

enum Field { PH, NAME, CAT, TS, DUR, TDUR, PID, TID, ID, ID2, ARGS, FIELDS };

Field field_of(Span key) {
    switch (key.size()) {
        case 2: return key.is("ph") ? PH : key.is("ts") ? TS : key.is("id") ? ID : FIELDS;
        case 3:
            return key.is("pid") ? PID : key.is("tid") ? TID : key.is("cat") ? CAT
                   : key.is("dur") ? DUR : key.is("id2") ? ID2 : FIELDS;
        case 4: return key.is("name") ? NAME : key.is("args") ? ARGS : key.is("tdur") ? TDUR : FIELDS;
        default: return FIELDS;
    }
}

// The arguments that are columns, in the order of Python's `KnownArguments`.
enum Argument {
    CORRELATION, SEQUENCE, FORWARD_THREAD, BYTES, ALLOCATION, ADDRESS, DEVICE_TYPE, DEVICE_ID,
    ALLOCATED, RESERVED, ARGUMENTS
};

Argument argument_of(Span key) {
    switch (key.size()) {
        case 4: return key.is("Addr") ? ADDRESS : ARGUMENTS;
        case 5: return key.is("bytes") ? BYTES : key.is("Bytes") ? ALLOCATION : ARGUMENTS;
        case 9: return key.is("Device Id") ? DEVICE_ID : ARGUMENTS;
        case 11:
            return key.is("correlation") ? CORRELATION
                   : key.is("Device Type") ? DEVICE_TYPE : ARGUMENTS;
        case 13: return key.is("Fwd thread id") ? FORWARD_THREAD : ARGUMENTS;
        case 14: return key.is("Total Reserved") ? RESERVED : ARGUMENTS;
        case 15:
            return key.is("Sequence number") ? SEQUENCE
                   : key.is("Total Allocated") ? ALLOCATED : ARGUMENTS;
        default: return ARGUMENTS;
    }
}

struct Event {
    Span fields[FIELDS];
    std::int64_t arguments[ARGUMENTS];
    bool has_odd_arguments = false;  // Python shall decode them

    explicit Event(const std::int64_t* defaults) {
        std::memcpy(arguments, defaults, sizeof arguments);
    }
};

bool is_null(Span text) { return text.is("null"); }
bool is_string(Span text) { return *text.begin == '"'; }
bool is_number(Span text) { return *text.begin == '-' || is_digit(*text.begin); }

void check_type(Field field, Span text) {
    bool is_right = true;
    switch (field) {
        case PH: is_right = is_string(text) && !text.contains('\\'); break;
        case NAME:
        case CAT: is_right = is_string(text); break;
        case DUR:
        case TDUR: is_right = is_number(text) || is_null(text); break;
        case PID:
        case TID:
        case ID: is_right = is_string(text) || is_number(text) || is_null(text); break;
        default: break;
    }
    if (!is_right) throw Odd();
}

Span read_arguments(Tokens& tokens, Event& event) {
    const char* begin = tokens.at();
    if (tokens.next() != '{') {
        event.has_odd_arguments = true;
        return tokens.value(1);
    }
    unsigned seen = 0;
    tokens.object(1, [&](Span key) {
        if (key.contains('\\')) throw Odd();  // it may be one of ours
        Argument argument = argument_of(key);
        Span text = tokens.value(2);
        if (argument == ARGUMENTS) return;
        if (seen >> argument & 1 || !integer(text, event.arguments[argument]))
            event.has_odd_arguments = true;
        seen |= 1u << argument;
    });
    return {begin, tokens.at()};
}

Event read_event(Tokens& tokens, const std::int64_t* defaults) {
    Event event(defaults);
    tokens.object(0, [&](Span key) {
        if (key.contains('\\')) throw Odd();
        Field field = field_of(key);
        if (field == FIELDS) {
            tokens.value(1);
            return;
        }
        if (event.fields[field]) throw Odd();
        Span text = field == ARGS ? read_arguments(tokens, event) : tokens.value(1);
        check_type(field, text);
        event.fields[field] = text;
    });
    return event;
}

// -- columns

// Columns of the result, in the order of Python's `compiled_decoder._Column`; a span takes two.
enum Column {
    SOURCE, PLACE, NAME_CODE, TIME_NS, TIME_TEXT, DURATION = TIME_TEXT + 2, DURATION_TEXT,
    THREAD_DURATION = DURATION_TEXT + 2, THREAD_DURATION_TEXT,
    IDENTITY = THREAD_DURATION_TEXT + 2, IDENTITY_TEXT, LOCAL_IDENTITY_TEXT = IDENTITY_TEXT + 2,
    ARGUMENTS_TEXT = LOCAL_IDENTITY_TEXT + 2, HAS_ODD_ARGUMENTS = ARGUMENTS_TEXT + 2,
    FIRST_ARGUMENT,
    // by label:
    LABEL_PLACE = FIRST_ARGUMENT + ARGUMENTS, LABEL_NAME, LABEL_ARGUMENTS = LABEL_NAME + 2,
    // by name, and by place:
    NAME_TEXT = LABEL_ARGUMENTS + 2, PHASE = NAME_TEXT + 2, CATEGORY = PHASE + 2,
    PROCESS = CATEGORY + 2, THREAD = PROCESS + 2, COLUMNS = THREAD + 2
};

// Counts of the result, in the order of Python's `compiled_decoder._Count`.
enum Count {
    RECORDS, EVENTS, LABELS, NAMES, PLACES, ARGUMENT_BYTES, ODD_TIMES, ODD_DURATIONS,
    ODD_THREAD_DURATIONS, IDENTITIES, ODD_IDENTITIES, LOCAL_IDENTITIES, ODD_ARGUMENTS,
    USED_ARGUMENTS, COUNTS
};

class Columns {
public:
    Columns(const char* text, std::int64_t rows, const std::int64_t* defaults,
            std::int64_t* table, char* arguments, std::int64_t* counts)
        : text_(text), rows_(rows), defaults_(defaults), table_(table), arguments_(arguments),
          counts_(counts) {
        std::memset(counts, 0, COUNTS * sizeof *counts);
    }

    void add(const Event& event) {
        if (counts_[RECORDS] == rows_) throw Odd();
        const Span* fields = event.fields;
        std::int64_t place = places_.code({fields[PH], fields[CAT], fields[PID], fields[TID]});
        if (fields[PH] && fields[PH].is("\"M\"")) add_label(event, place);
        else add_event(event, place);
        ++counts_[RECORDS];
    }

    void finish() {
        counts_[NAMES] = std::int64_t(names_.values().size());
        counts_[PLACES] = std::int64_t(places_.values().size());
        for (std::int64_t row = 0; row < counts_[NAMES]; ++row)
            put(NAME_TEXT, row, names_.values()[std::size_t(row)].text);
        for (std::int64_t row = 0; row < counts_[PLACES]; ++row) {
            const Place& place = places_.values()[std::size_t(row)];
            put(PHASE, row, place.phase);
            put(CATEGORY, row, place.category);
            put(PROCESS, row, place.process);
            put(THREAD, row, place.thread);
        }
    }

private:
    // Only the first label of a place and name counts, and some recorders repeat them endlessly.
    void add_label(const Event& event, std::int64_t place) {
        if (!event.fields[ARGS]) return;
        std::int64_t row = labels_.code({place, event.fields[NAME]});
        if (row < counts_[LABELS]) return;
        ++counts_[LABELS];
        cell(LABEL_PLACE, row) = place;
        put(LABEL_NAME, row, event.fields[NAME]);
        put(LABEL_ARGUMENTS, row, event.fields[ARGS]);
    }

    void add_event(const Event& event, std::int64_t place) {
        const Span* fields = event.fields;
        std::int64_t row = counts_[EVENTS]++;
        cell(SOURCE, row) = counts_[RECORDS];
        cell(PLACE, row) = place;
        cell(NAME_CODE, row) = names_.code({fields[NAME]});
        add_time(row, fields[TS]);
        add_real(DURATION, DURATION_TEXT, ODD_DURATIONS, row, fields[DUR]);
        add_real(THREAD_DURATION, THREAD_DURATION_TEXT, ODD_THREAD_DURATIONS, row, fields[TDUR]);
        add_identity(row, fields[ID], fields[ID2]);
        add_arguments(row, event);
    }

    void add_time(std::int64_t row, Span text) {
        std::int64_t time = INVALID_NS;
        if (!nanoseconds(text, time)) ++counts_[ODD_TIMES];
        cell(TIME_NS, row) = time;
        put(TIME_TEXT, row, text);
    }

    void add_real(Column column, Column text_column, Count odd, std::int64_t row, Span text) {
        double value = std::numeric_limits<double>::quiet_NaN();
        if (text && !real(text, value)) ++counts_[odd];
        std::memcpy(&cell(column, row), &value, sizeof value);
        put(text_column, row, text);
    }

    void add_identity(std::int64_t row, Span global, Span local) {
        std::int64_t value = 0;
        counts_[IDENTITIES] += bool(global);
        counts_[LOCAL_IDENTITIES] += bool(local);
        if (global && !integer(global, value)) ++counts_[ODD_IDENTITIES];
        cell(IDENTITY, row) = value;
        put(IDENTITY_TEXT, row, global);
        put(LOCAL_IDENTITY_TEXT, row, local);
    }

    void add_arguments(std::int64_t row, const Event& event) {
        Span text = event.fields[ARGS];
        put(ARGUMENTS_TEXT, row, text);
        if (text) std::memcpy(arguments_ + counts_[ARGUMENT_BYTES], text.begin, text.size());
        counts_[ARGUMENT_BYTES] += std::int64_t(text.size());
        counts_[ODD_ARGUMENTS] += event.has_odd_arguments;
        cell(HAS_ODD_ARGUMENTS, row) = event.has_odd_arguments;
        for (int argument = 0; argument < ARGUMENTS; ++argument) {
            cell(FIRST_ARGUMENT + argument, row) = event.arguments[argument];
            if (event.arguments[argument] != defaults_[argument])
                counts_[USED_ARGUMENTS] |= std::int64_t{1} << argument;
        }
    }

    std::int64_t& cell(int column, std::int64_t row) { return table_[column * rows_ + row]; }

    // The place of a text; an absent one is empty, which no JSON value is.
    void put(int column, std::int64_t row, Span text) {
        cell(column, row) = text ? text.begin - text_ : 0;
        cell(column + 1, row) = text ? text.end - text_ : 0;
    }

    const char* text_;
    std::int64_t rows_;
    const std::int64_t* defaults_;
    std::int64_t* table_;
    char* arguments_;
    std::int64_t* counts_;
    Interner<Name> names_;
    Interner<Place> places_;
    Interner<Label> labels_;
};

void read_events(Tokens& tokens, const std::int64_t* defaults, Columns& columns) {
    tokens.skip_blanks();
    if (tokens.is_done()) return;
    do {
        tokens.skip_blanks();
        columns.add(read_event(tokens, defaults));
        tokens.skip_blanks();
    } while (tokens.take(','));
    if (!tokens.is_done()) throw Odd();
}

}  // namespace

// Decodes `size` bytes of text, which a NUL byte follows.
//
// defaults: of each of ARGUMENTS arguments, where an event lacks it.
// table: room for COLUMNS columns of `rows` rows each.
// arguments: room for `size` bytes, the arguments of all events end to end.
// counts: room for COUNTS numbers.
// Returns 1, or 0 where the text is odd or has more events than rows.
EXPORTED int stepscope_decode_events(const char* text, std::int64_t size, std::int64_t rows,
                                     const std::int64_t* defaults, std::int64_t* table,
                                     char* arguments, std::int64_t* counts) {
    try {
        Tokens tokens(text, size);
        Columns columns(text, rows, defaults, table, arguments, counts);
        read_events(tokens, defaults, columns);
        columns.finish();
        return 1;
    } catch (...) {
        return 0;
    }
}
