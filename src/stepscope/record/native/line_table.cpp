#include "line_table.h"

namespace stepscope {

namespace {

// Pairs of bytes: length in bytes, and line difference, -128 for no line.
int line_in_pairs(const std::string& table, int first_line, intptr_t offset) {
  intptr_t end = 0;
  int line = first_line;
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    int difference = static_cast<signed char>(table[i + 1]);
    end += uint8_t(table[i]);
    if (difference != -128) line += difference;
    if (offset < end) return difference == -128 ? first_line : line;
  }
  return first_line;
}

// An entry's first byte has bit 7 set, its form in bits 3 to 6, and its length minus 1 in bits 0 to 2.
enum Form { kOneLine = 10, kNoColumns = 13, kLong = 14, kNone = 15 };

int signed_number(const std::string& table, size_t at) {
  unsigned value = 0;
  for (unsigned shift = 0; at < table.size() && shift < 30; at++, shift += 6) {
    value |= (unsigned(table[at]) & 63) << shift;
    if (!(table[at] & 64)) break;
  }
  return value & 1 ? -int(value >> 1) : int(value >> 1);
}

int line_difference(const std::string& table, size_t at, int form) {
  if (form == kNoColumns || form == kLong) return signed_number(table, at + 1);
  return form >= kOneLine && form < kNoColumns ? form - kOneLine : 0;
}

int line_with_columns(const std::string& table, int first_line, intptr_t offset) {
  intptr_t end = 0;
  int line = first_line;
  for (size_t i = 0; i < table.size();) {
    int form = (uint8_t(table[i]) >> 3) & 15;
    end += ((uint8_t(table[i]) & 7) + 1) * intptr_t(sizeof(uint16_t));
    line += line_difference(table, i, form);
    if (offset < end) return form == kNone ? first_line : line;
    do i++;
    while (i < table.size() && !(table[i] & 0x80));
  }
  return first_line;
}

}  // namespace

int line_in_table(const std::string& table, int first_line, intptr_t offset, bool has_columns) {
  return (has_columns ? line_with_columns : line_in_pairs)(table, first_line, offset);
}

}  // namespace stepscope
