// Source lines of bytecode, from a copy of a code object's line table.
#pragma once
#include <cstdint>
#include <string>

namespace stepscope {

// The line of the instruction at `offset` bytes; `first_line` if the table has none.
// `has_columns`: whether the table has the form of Python 3.11 and later.
int line_in_table(const std::string& table, int first_line, intptr_t offset, bool has_columns);

}  // namespace stepscope
