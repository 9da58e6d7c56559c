// The source lines of a GPU's instructions: the line table of a cubin (`.debug_line`: nvcc -lineinfo,
// Triton).
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace stepscope {

struct SourceLine {
  std::string file;  // empty: unknown
  uint32_t line = 0;
};

class CubinLines {
 public:
  CubinLines() = default;
  // A cubin without a table, or a damaged one, has no lines.
  CubinLines(const uint8_t* cubin, size_t size);
  bool empty() const { return functions_.empty(); }
  // Of the instruction at `offset`, in bytes, of a function by its symbol.
  SourceLine find(const std::string& function, uint64_t offset) const;

  struct Row {
    uint64_t offset;  // the row's line holds from here to the next row
    uint32_t file;    // in `files`
    uint32_t line;    // 0: no line
  };
  const std::unordered_map<std::string, std::vector<Row>>& functions() const { return functions_; }
  const std::vector<std::string>& files() const { return files_; }

 private:
  friend class LineProgram;
  std::vector<std::string> files_;
  std::unordered_map<std::string, std::vector<Row>> functions_;
};

// For tests: (cubin) -> {function: [(offset, file, line)]}.
PyObject* lines_of_cubin(PyObject*, PyObject* cubin);

}  // namespace stepscope
