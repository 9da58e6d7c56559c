// Decodes the events of an allocator's history, dicts in a pickle one after the other, into columns.
// `compiled_history.py` calls it; `safe_pickle.py` does the same without it, one opcode at a time.
//
// It knows only the opcodes that Python's pickler writes for such a dict at protocol 4 and 5, and
// stops before the first event that has anything else, which Python then reads. It builds nothing:
// it moves through the bytes, each read checked against their end, and writes numbers.
//
// Source: Python's Lib/pickletools.py; torch/csrc/cuda/Module.cpp for the keys of an event.

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>

#include "exported.h"

namespace {

// As `COLUMNS` in Python; what is no column is IGNORED.
enum Column { TIME_US, ACTION, ADDRESS, BYTES, STREAM, DEVICE_FREE, STACK, COLUMNS };
constexpr std::int8_t IGNORED = COLUMNS;
constexpr std::int64_t DEFAULTS[COLUMNS] = {-1, -1, -1, 0, 0, -1, -1};

// What is known of a value of the memo: a stack's number, or one of these. A stack of this call is
// FIRST_RUN - its number among the runs.
constexpr std::int32_t EMPTY = -1, NO_STACK = -2, FIRST_RUN = -10;

enum Opcode : std::uint8_t {
    EMPTY_DICT = '}', EMPTY_LIST = ']', MARK = '(', SETITEMS = 'u', APPENDS = 'e', APPEND = 'a',
    MEMOIZE = 0x94, FRAME = 0x95, BINGET = 'h', LONG_BINGET = 'j', NONE = 'N', BININT1 = 'K',
    BININT2 = 'M', BININT = 'J', LONG1 = 0x8a, NEWTRUE = 0x88, NEWFALSE = 0x89, TUPLE2 = 0x86,
};

struct Odd {};  // thrown at everything that Python shall read instead

struct Bytes {
    const std::uint8_t* data;
    std::int64_t size, at;

    std::uint8_t peek() const {
        if (at >= size) throw Odd{};
        return data[at];
    }
    std::int64_t number(int width) {
        if (width > size - at) throw Odd{};
        std::uint64_t value = 0;
        for (int i = 0; i < width; i++) value |= std::uint64_t(data[at + i]) << (8 * i);
        at += width;
        return std::int64_t(value);
    }
    // FRAME may come between any two opcodes, and says only how the file is written.
    std::uint8_t next() {
        while (peek() == FRAME) {
            if (size - at < 9) throw Odd{};
            at += 9;
        }
        return data[at++];
    }
    void expect(std::uint8_t opcode) {
        if (next() != opcode) throw Odd{};
    }
};

struct Memo {
    const std::int8_t* column;        // of a key, -1 for none
    const std::int32_t* action;       // of a text, -1 for none
    std::int64_t known;               // how many values have these
    std::int32_t* stack;              // of a list of frames
    std::int64_t next, capacity;

    void add(std::int32_t value) {
        if (next >= capacity) throw Odd{};
        stack[next++] = value;
    }
};

struct Runs {
    std::unordered_map<std::string, std::int32_t> number;  // of a list of references
    std::int32_t* references;
    std::int64_t used = 0, capacity;
    std::int64_t* ends;
    std::int64_t room;  // of `ends`

    std::int32_t of(const std::string& run) {
        auto found = number.find(run);
        if (found != number.end()) return FIRST_RUN - found->second;
        const std::int64_t count = std::int64_t(run.size() / sizeof(std::int32_t));
        if (count > capacity - used || std::int64_t(number.size()) >= room) throw Odd{};
        std::memcpy(references + used, run.data(), run.size());
        used += count;
        const auto fresh = std::int32_t(number.size());
        ends[fresh] = used;
        number.emplace(run, fresh);
        return FIRST_RUN - fresh;
    }
};

// The index of a reference to the memo.
std::int64_t reference(Bytes& bytes, std::uint8_t opcode) {
    if (opcode == BINGET) return bytes.number(1);
    if (opcode == LONG_BINGET) return bytes.number(4);
    throw Odd{};
}

std::int64_t integer(Bytes& bytes, std::uint8_t opcode) {
    switch (opcode) {
        case BININT1: return bytes.number(1);
        case BININT2: return bytes.number(2);
        case BININT: return std::int32_t(bytes.number(4));
        case LONG1: {
            const auto width = int(bytes.number(1));
            if (width < 1 || width > 8) throw Odd{};
            const auto value = std::uint64_t(bytes.number(width));
            const int spare = 64 - 8 * width;
            return std::int64_t(value << spare) >> spare;
        }
        default: throw Odd{};
    }
}

bool is_reference(std::uint8_t opcode) { return opcode == BINGET || opcode == LONG_BINGET; }

// A value that is no column; or a pair of numbers, as `pool_id` is.
void ignored(Bytes& bytes, Memo& memo, std::uint8_t opcode) {
    if (opcode == NONE || opcode == NEWTRUE || opcode == NEWFALSE) return;
    if (is_reference(opcode)) {
        reference(bytes, opcode);
        return;
    }
    integer(bytes, opcode);
    const auto before = bytes.at;
    opcode = bytes.next();
    if (is_reference(opcode) || opcode == SETITEMS) {  // the next key, or the end of the event
        bytes.at = before;
        return;
    }
    integer(bytes, opcode);
    bytes.expect(TUPLE2);
    bytes.expect(MEMOIZE);
    memo.add(NO_STACK);
}

// A list of frames, or a reference to an earlier one.
std::int64_t stack(Bytes& bytes, Memo& memo, Runs& runs, std::string& run) {
    auto opcode = bytes.next();
    if (opcode != EMPTY_LIST) {
        const auto index = reference(bytes, opcode);
        if (index >= memo.next || memo.stack[index] == NO_STACK) throw Odd{};
        return memo.stack[index];
    }
    bytes.expect(MEMOIZE);
    run.clear();
    auto take = [&](std::uint8_t code) {
        const auto index = std::int32_t(reference(bytes, code));
        if (index < 0) throw Odd{};
        run.append(reinterpret_cast<const char*>(&index), sizeof index);
    };
    const auto before = bytes.at;
    const auto place = memo.next;
    memo.add(EMPTY);
    opcode = bytes.next();
    if (opcode == MARK) {
        while ((opcode = bytes.next()) != APPENDS) take(opcode);
    } else if (bytes.at < bytes.size && is_reference(opcode)) {
        take(opcode);
        // A key comes next, not the frame of a list, where APPEND does not follow.
        if (bytes.next() != APPEND) {
            bytes.at = before;
            return EMPTY;
        }
    } else {
        bytes.at = before;
        return EMPTY;
    }
    if (run.empty()) return EMPTY;
    return memo.stack[place] = runs.of(run);
}

// One event; throws Odd at anything that is not as usual.
void event(Bytes& bytes, Memo& memo, Runs& runs, std::string& run, std::int64_t* row) {
    std::memcpy(row, DEFAULTS, sizeof DEFAULTS);
    bytes.expect(EMPTY_DICT);
    bytes.expect(MEMOIZE);
    memo.add(NO_STACK);
    bytes.expect(MARK);
    while (true) {
        auto opcode = bytes.next();
        if (opcode == SETITEMS) break;
        const auto key = reference(bytes, opcode);
        const auto column = key < memo.known ? memo.column[key] : std::int8_t(-1);
        if (column < 0) throw Odd{};
        if (column == STACK) {
            row[STACK] = stack(bytes, memo, runs, run);
            continue;
        }
        opcode = bytes.next();
        if (column == ACTION) {
            const auto text = reference(bytes, opcode);
            if (text >= memo.known || memo.action[text] < 0) throw Odd{};
            row[ACTION] = memo.action[text];
        } else if (column == IGNORED) {
            ignored(bytes, memo, opcode);
        } else {
            row[column] = integer(bytes, opcode);
        }
    }
    if (row[ACTION] < 0) throw Odd{};
}

// Goes on to the next thousand events of the same list, where that is what comes.
bool next_batch(Bytes& bytes) {
    const auto before = bytes.at;
    if (bytes.next() == APPENDS && bytes.next() == MARK && bytes.peek() != FRAME &&
        bytes.peek() == EMPTY_DICT)
        return true;
    bytes.at = before;
    return false;
}

}  // namespace

// Decodes events until something else comes, or there is no room for more.
//
//   data, size, at   the pickle, and where the first event begins
//   column, action   of each of the first `known` values of the memo (struct Memo)
//   stack, next, memo_room   of each value of the memo; how many there are, and room for
//   rows, row_room   the columns of each event
//   references, reference_room, ends   the distinct stacks: values of the memo, and where each ends
//                    (room for as many as rows)
//   out              events, where the next begins, values in the memo, stacks
EXPORTED int stepscope_decode_history(
    const std::uint8_t* data, std::int64_t size, std::int64_t at, const std::int8_t* column,
    const std::int32_t* action, std::int64_t known, std::int32_t* stack, std::int64_t next,
    std::int64_t memo_room, std::int64_t* rows, std::int64_t row_room, std::int32_t* references,
    std::int64_t reference_room, std::int64_t* ends, std::int64_t* out) {
    Bytes bytes{data, size, at};
    Memo memo{column, action, known, stack, next, memo_room};
    Runs runs{{}, references, 0, reference_room, ends, row_room};
    std::string run;
    std::int64_t count = 0, end = at;
    std::int64_t kept = next;
    std::int64_t runs_kept = 0;
    try {
        while (count < row_room) {
            event(bytes, memo, runs, run, rows + count * COLUMNS);
            count++;
            end = bytes.at;
            kept = memo.next;
            runs_kept = std::int64_t(runs.number.size());
            if (bytes.peek() == APPENDS) {
                if (!next_batch(bytes)) break;
                end = bytes.at;
            }
        }
    } catch (const Odd&) {
    } catch (const std::bad_alloc&) {
    }
    out[0] = count;
    out[1] = end;
    out[2] = kept;
    out[3] = runs_kept;
    return 0;
}
