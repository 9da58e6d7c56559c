// Columns by rows, by codes and by groups; `trace/columns.py`, `trace/sets.py` and
// `trace/row_order.py` call it.

#include <cstdint>

#include "exported.h"

using Number = std::int64_t;

namespace {

template <typename Item, typename Row>
int take(Number size, const Item* column, Number count, const Row* rows, Item* taken) {
    for (Number at = 0; at < count; ++at) {
        Number row = rows[at];
        if (row < 0) row += size;
        if (std::uint64_t(row) >= std::uint64_t(size)) return 0;
        taken[at] = column[row];
    }
    return 1;
}

template <typename Item>
int take(Number size, const void* column, Number count, Number width, const void* rows,
         void* taken) {
    const auto* items = static_cast<const Item*>(column);
    auto* result = static_cast<Item*>(taken);
    if (width == 4)
        return take(size, items, count, static_cast<const std::int32_t*>(rows), result);
    return take(size, items, count, static_cast<const std::int64_t*>(rows), result);
}

template <typename Code>
int members(Number count, const void* codes, Number size, const bool* chosen, bool* found) {
    for (Number row = 0; row < count; ++row) {
        const Number code = static_cast<const Code*>(codes)[row];
        if (code >= size) return 0;
        found[row] = code >= 0 && chosen[code];
    }
    return 1;
}

}  // namespace

// taken: `count` items of a column of `size` items of `item` bytes, by rows of `width` bytes.
// Returns 1, or 0 where a row does not exist or the sizes are none of these.
EXPORTED int stepscope_take(Number item, Number size, const void* column, Number count,
                            Number width, const void* rows, void* taken) {
    if (width != 4 && width != 8) return 0;
    switch (item) {
        case 1: return take<std::uint8_t>(size, column, count, width, rows, taken);
        case 2: return take<std::uint16_t>(size, column, count, width, rows, taken);
        case 4: return take<std::uint32_t>(size, column, count, width, rows, taken);
        case 8: return take<std::uint64_t>(size, column, count, width, rows, taken);
        default: return 0;
    }
}

// found: of each of `count` codes of `width` bytes, whether it is chosen among `size` codes.
// Returns 1, or 0 where a code is beyond them.
EXPORTED int stepscope_members(Number width, Number count, const void* codes, Number size,
                               const bool* chosen, bool* found) {
    switch (width) {
        case 1: return members<std::int8_t>(count, codes, size, chosen, found);
        case 4: return members<std::int32_t>(count, codes, size, chosen, found);
        case 8: return members<std::int64_t>(count, codes, size, chosen, found);
        default: return 0;
    }
}

// first: `groups + 1`; where the rows of each group begin in `order`, and where the last one ends.
// order: the `count` rows by key, those of one key as they are.
// Returns 1, or 0 where a key is no group.
EXPORTED int stepscope_grouped(Number count, const std::int32_t* keys, Number groups, Number* first,
                               std::int32_t* order) {
    for (Number group = 0; group <= groups; ++group) first[group] = 0;
    for (Number row = 0; row < count; ++row) {
        if (std::uint64_t(Number(keys[row])) >= std::uint64_t(groups)) return 0;
        ++first[keys[row]];
    }
    for (Number group = 0, before = 0; group <= groups; ++group) {
        const Number size = first[group];
        first[group] = before;
        before += size;
    }
    for (Number row = 0; row < count; ++row) order[first[keys[row]]++] = std::int32_t(row);
    for (Number group = groups; group > 0; --group) first[group] = first[group - 1];
    first[0] = 0;
    return 1;
}
