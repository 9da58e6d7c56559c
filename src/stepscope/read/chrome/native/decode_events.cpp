// Decodes the text of trace events, objects separated by commas, into columns of numbers and of
// places in the text, for `compiled_decoder.py`.
//
// It gives up at what JSON forbids, but for numbers such as NaN in arguments, and at half of a
// surrogate pair, a deep value, a name that is a number. `tolerant_json.py` then reads the same text
// in Python, and writes its events as they are accepted here.
//
// Source: RFC 8259; Trace Event Format.

#include <cstdint>
#include <cstring>
#include <vector>

#include "decimal_numbers.h"
#include "exported.h"
#include "interner.h"
#include "json_text.h"

namespace {

constexpr std::int64_t INVALID_NS = INT64_MIN;

// -- distinct values

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

// -- fields

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

// Numbers that few events have: two fields, then the arguments that are columns, in the order of
// Python's `KnownArguments`.
enum Optional {
    THREAD_DURATION, IDENTITY,
    CORRELATION, SEQUENCE, FORWARD_THREAD, BYTES, ALLOCATION, ADDRESS, DEVICE_TYPE, DEVICE_ID,
    ALLOCATED, RESERVED, OPTIONALS
};

Optional argument_of(Span key) {
    switch (key.size()) {
        case 4: return key.is("Addr") ? ADDRESS : OPTIONALS;
        case 5: return key.is("bytes") ? BYTES : key.is("Bytes") ? ALLOCATION : OPTIONALS;
        case 9: return key.is("Device Id") ? DEVICE_ID : OPTIONALS;
        case 11:
            return key.is("correlation") ? CORRELATION
                   : key.is("Device Type") ? DEVICE_TYPE : OPTIONALS;
        case 13: return key.is("Fwd thread id") ? FORWARD_THREAD : OPTIONALS;
        case 14: return key.is("Total Reserved") ? RESERVED : OPTIONALS;
        case 15:
            return key.is("Sequence number") ? SEQUENCE
                   : key.is("Total Allocated") ? ALLOCATED : OPTIONALS;
        default: return OPTIONALS;
    }
}

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

// -- columns

// Columns of integers, in the order of Python's `_NUMBERS`; a double is an integer of its bits.
enum Number { TIME_NS, DURATION, ARGUMENTS_END, FIRST_OPTIONAL };

// Columns of codes and places, in the order of Python's `_CODES`; a text takes two, its start and
// its end.
enum Code {
    SOURCE, PLACE, NAME_CODE,
    // by event with arguments, and by event whose arguments Python shall decode:
    ARGUMENTS_SOURCE, ODD_EVENT, ODD_TEXT,
    // by label:
    LABEL_PLACE = ODD_TEXT + 2, LABEL_NAME, LABEL_ARGUMENTS = LABEL_NAME + 2,
    // by name, and by place:
    NAME_TEXT = LABEL_ARGUMENTS + 2, PHASE = NAME_TEXT + 2, CATEGORY = PHASE + 2,
    PROCESS = CATEGORY + 2, THREAD = PROCESS + 2
};

// Values whose places are kept where there is room for them, in the order of Python's `_TEXTS`.
constexpr Field KEPT_TEXTS[] = {TS, DUR, TDUR, ID, ID2};

// Counts of the result, in the order of Python's `_COUNTS`.
enum Count {
    RECORDS, EVENTS, LABELS, NAMES, PLACES, ARGUMENT_BYTES, WITH_ARGUMENTS, ODD_ARGUMENTS,
    ODD_TIMES, ODD_DURATIONS, ODD_THREAD_DURATIONS, ODD_IDENTITIES, USED, COUNTS
};

struct Room {
    std::int64_t rows;
    const std::int64_t* defaults;
    std::int64_t* numbers;
    std::int32_t *codes, *texts;
    char* arguments;
    std::int64_t* counts;
};

struct Event {
    Span fields[FIELDS];
    bool has_odd_arguments = false;
};

class Columns {
public:
    Columns(const char* text, const Room& room) : text_(text), room_(room) {
        std::memset(room.counts, 0, COUNTS * sizeof *room.counts);
    }

    // Makes room for an event.
    void begin() {
        if (count(RECORDS) == room_.rows) throw Odd();
        for (unsigned left = used_; left; left &= left - 1) {
            const int optional = __builtin_ctz(left);
            number(FIRST_OPTIONAL + optional, count(EVENTS)) = room_.defaults[optional];
        }
    }

    // A number of the event that was begun.
    void set(int optional, std::int64_t value) {
        if (value == room_.defaults[optional]) return;
        if (!(used_ >> optional & 1)) begin_column(optional);
        number(FIRST_OPTIONAL + optional, count(EVENTS)) = value;
    }

    void add(const Event& event) {
        const Span* fields = event.fields;
        std::int64_t place = places_.code({fields[PH], fields[CAT], fields[PID], fields[TID]});
        if (fields[PH] && fields[PH].is("\"M\"")) add_label(event, place);
        else add_event(event, place);
        ++count(RECORDS);
    }

    void finish() {
        count(USED) = used_;
        count(NAMES) = std::int64_t(names_.values().size());
        count(PLACES) = std::int64_t(places_.values().size());
        for (std::int64_t row = 0; row < count(NAMES); ++row)
            put(NAME_TEXT, row, names_.values()[std::size_t(row)].text);
        for (std::int64_t row = 0; row < count(PLACES); ++row) {
            const Place& place = places_.values()[std::size_t(row)];
            put(PHASE, row, place.phase);
            put(CATEGORY, row, place.category);
            put(PROCESS, row, place.process);
            put(THREAD, row, place.thread);
        }
    }

private:
    void begin_column(int optional) {
        used_ |= 1u << optional;
        for (std::int64_t row = 0; row < count(EVENTS); ++row)
            number(FIRST_OPTIONAL + optional, row) = room_.defaults[optional];
    }

    // Only the first label of a place and name counts, and some recorders repeat them endlessly.
    void add_label(const Event& event, std::int64_t place) {
        if (!event.fields[ARGS]) return;
        std::int64_t row = labels_.code({place, event.fields[NAME]});
        if (row < count(LABELS)) return;
        ++count(LABELS);
        code(LABEL_PLACE, row) = std::int32_t(place);
        put(LABEL_NAME, row, event.fields[NAME]);
        put(LABEL_ARGUMENTS, row, event.fields[ARGS]);
    }

    void add_event(const Event& event, std::int64_t place) {
        const Span* fields = event.fields;
        const std::int64_t row = count(EVENTS);
        code(SOURCE, row) = std::int32_t(count(RECORDS));
        code(PLACE, row) = std::int32_t(place);
        code(NAME_CODE, row) = std::int32_t(names_.code({fields[NAME]}));
        std::int64_t time = INVALID_NS;
        if (!nanoseconds(fields[TS], time)) ++count(ODD_TIMES);
        number(TIME_NS, row) = time;
        number(DURATION, row) = real_bits(fields[DUR], ODD_DURATIONS);
        set(THREAD_DURATION, real_bits(fields[TDUR], ODD_THREAD_DURATIONS));
        if (fields[ID] || fields[ID2]) add_identity(fields[ID], fields[ID2]);
        if (fields[ARGS]) add_arguments(row, event);
        if (room_.texts) put_texts(row, fields);
        ++count(EVENTS);
    }

    std::int64_t real_bits(Span text, Count odd) {
        if (!text) return room_.defaults[THREAD_DURATION];  // no number
        double value = 0;
        if (!real(text, value)) ++count(odd);
        std::int64_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return bits;
    }

    void add_identity(Span global, Span local) {
        std::int64_t value = 0;
        if (local || !integer(global, value)) ++count(ODD_IDENTITIES);
        set(IDENTITY, value);
    }

    void add_arguments(std::int64_t row, const Event& event) {
        const Span text = event.fields[ARGS];
        std::memcpy(room_.arguments + count(ARGUMENT_BYTES), text.begin, text.size());
        count(ARGUMENT_BYTES) += std::int64_t(text.size());
        code(ARGUMENTS_SOURCE, count(WITH_ARGUMENTS)) = std::int32_t(count(RECORDS));
        number(ARGUMENTS_END, count(WITH_ARGUMENTS)) = count(ARGUMENT_BYTES);
        ++count(WITH_ARGUMENTS);
        if (!event.has_odd_arguments) return;
        code(ODD_EVENT, count(ODD_ARGUMENTS)) = std::int32_t(row);
        put(ODD_TEXT, count(ODD_ARGUMENTS), text);
        ++count(ODD_ARGUMENTS);
    }

    void put_texts(std::int64_t row, const Span* fields) {
        std::int32_t* at = room_.texts + 2 * row;
        for (Field field : KEPT_TEXTS) {
            place(fields[field], at[0], at[1]);
            at += 2 * room_.rows;
        }
    }

    std::int64_t& count(Count which) { return room_.counts[which]; }

    std::int64_t& number(int column, std::int64_t row) {
        return room_.numbers[column * room_.rows + row];
    }

    std::int32_t& code(int column, std::int64_t row) {
        return room_.codes[column * room_.rows + row];
    }

    void put(int column, std::int64_t row, Span text) {
        place(text, code(column, row), code(column + 1, row));
    }

    // The place of a text; an absent one is empty, which no JSON value is.
    void place(Span text, std::int32_t& begin, std::int32_t& end) const {
        begin = text ? std::int32_t(text.begin - text_) : 0;
        end = text ? std::int32_t(text.end - text_) : 0;
    }

    const char* text_;
    const Room room_;
    unsigned used_ = 0;
    Interner<Name> names_;
    Interner<Place> places_;
    Interner<Label> labels_;
};

// -- events

Span read_arguments(Tokens& tokens, Event& event, Columns& columns) {
    const char* begin = tokens.at();
    if (tokens.next() != '{') {
        event.has_odd_arguments = true;
        return tokens.value(1);
    }
    unsigned seen = 0;
    tokens.object(1, [&](Span key) {
        if (tokens.has_escape()) event.has_odd_arguments = true;  // it may be one of ours
        const Optional argument = tokens.has_escape() ? OPTIONALS : argument_of(key);
        const Span text = tokens.value(2);
        if (argument == OPTIONALS) return;
        std::int64_t value = 0;
        if (seen >> argument & 1 || !integer(text, value)) event.has_odd_arguments = true;
        else columns.set(argument, value);
        seen |= 1u << argument;
    });
    return {begin, tokens.at()};
}

Event read_event(Tokens& tokens, Columns& columns) {
    Event event;
    tokens.object(0, [&](Span key) {
        if (tokens.has_escape()) throw Odd();
        const Field field = field_of(key);
        if (field == FIELDS) {
            tokens.value(1);
            return;
        }
        if (field == ARGS && event.fields[ARGS]) event.has_odd_arguments = true;  // the last count
        const Span text = field == ARGS ? read_arguments(tokens, event, columns) : tokens.value(1);
        check_type(field, text);
        event.fields[field] = text;
    });
    return event;
}

void read_events(Tokens& tokens, Columns& columns) {
    tokens.skip_blanks();
    if (tokens.is_done()) return;
    do {
        tokens.skip_blanks();
        columns.begin();
        const Event event = read_event(tokens, columns);
        if (tokens.is_beyond()) throw Odd();
        columns.add(event);
        tokens.skip_blanks();
    } while (!tokens.is_done() && tokens.take(','));
    if (!tokens.is_done()) throw Odd();
}

}  // namespace

// Decodes `size` bytes of text, which more text may follow, and then a NUL byte.
//
// defaults: of each of OPTIONALS numbers, where an event lacks it.
// numbers, codes: room for their columns of `rows` rows each.
// texts: room for `rows` places of each of KEPT_TEXTS, or null.
// arguments: room for `size` bytes, the arguments of all events end to end.
// counts: room for COUNTS numbers.
// Returns 1, or 0 where the text is odd or has more events than rows.
EXPORTED int stepscope_decode_events(const char* text, std::int64_t size, std::int64_t rows,
                                     const std::int64_t* defaults, std::int64_t* numbers,
                                     std::int32_t* codes, std::int32_t* texts, char* arguments,
                                     std::int64_t* counts) {
    try {
        Tokens tokens(text, size);
        Columns columns(text, {rows, defaults, numbers, codes, texts, arguments, counts});
        read_events(tokens, columns);
        columns.finish();
        return 1;
    } catch (...) {
        return 0;
    }
}

// Returns 1 where no byte is above 127.
EXPORTED int stepscope_is_ascii(const char* text, std::int64_t size) {
    constexpr std::int64_t WORDS = 8;
    std::uint64_t seen = 0;
    std::int64_t at = 0;
    for (; size - at >= WORDS * 8; at += WORDS * 8)
        for (int word = 0; word < WORDS; ++word) seen |= loaded<std::uint64_t>(text + at + word * 8);
    for (; at < size; ++at) seen |= static_cast<unsigned char>(text[at]);
    return !(seen & 0x8080808080808080);
}
