// A cubin is an ELF file. Its line table is that of DWARF, version 2 as ptxas writes it (CUDA 11 to 13);
// 3 and 4 are the same for what is read here. Each function has a sequence, whose relocation names it.
#include "cubin_lines.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace stepscope {

// Reads within its bytes; beyond them it yields zeros, and `is_good` is false.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <class Number>
  Number take() {
    Number value{};
    if (!has(sizeof value)) return value;
    memcpy(&value, data_ + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  uint64_t unsigned_leb() {
    uint64_t value = 0;
    for (int shift = 0; is_good_; shift += 7) {
      auto byte = take<uint8_t>();
      if (shift < 64) value |= uint64_t(byte & 0x7f) << shift;
      if (!(byte & 0x80)) break;
    }
    return value;
  }
  int64_t signed_leb() {
    uint64_t value = 0;
    for (int shift = 0; is_good_;) {
      auto byte = take<uint8_t>();
      if (shift < 64) value |= uint64_t(byte & 0x7f) << shift;
      shift += 7;
      if (byte & 0x80) continue;
      if (byte & 0x40 && shift < 64) value |= ~uint64_t(0) << shift;
      break;
    }
    return int64_t(value);
  }
  std::string text() {
    auto end = static_cast<const uint8_t*>(memchr(data_ + at_, 0, size_ - at_));
    if (!end) return fail(), "";
    std::string found(data_ + at_, end);
    at_ += found.size() + 1;
    return found;
  }
  void move_to(size_t at) { at <= size_ ? void(at_ = at) : fail(); }
  void skip(uint64_t count) { count <= size_ - at_ ? void(at_ += count) : fail(); }
  size_t at() const { return at_; }
  bool is_good() const { return is_good_; }
  bool has_more() const { return is_good_ && at_ < size_; }
  Bytes part(uint64_t from, uint64_t size) const {
    bool inside = from <= size_ && size <= size_ - from;
    return inside ? Bytes(data_ + from, size) : Bytes(data_, 0);
  }

 private:
  bool has(size_t count) { return size_ - at_ >= count || (fail(), false); }
  void fail() { is_good_ = false, at_ = size_; }
  const uint8_t* data_;
  size_t size_, at_ = 0;
  bool is_good_ = true;
};

namespace {

// Whether a text is UTF-8 (RFC 3629): what is written to the file has to be.
bool is_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    auto at = [&](size_t place) { return uint8_t(place < text.size() ? text[place] : 0); };
    uint8_t first = at(i), second = at(i + 1);
    int more = first < 0x80   ? 0
               : first < 0xc2 ? -1
               : first < 0xe0 ? 1
               : first < 0xf0 ? 2
               : first < 0xf5 ? 3
                              : -1;
    bool is_odd = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                  (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
    if (more < 0 || is_odd) return false;
    for (int n = 1; n <= more; n++)
      if ((at(i + size_t(n)) & 0xc0) != 0x80) return false;
    i += size_t(more) + 1;
  }
  return true;
}

struct Section {
  Elf64_Shdr head;
  std::string name;
};

class Elf {
 public:
  Elf(const uint8_t* data, size_t size) : all_(data, size) {
    auto head = Bytes(data, size).take<Elf64_Ehdr>();
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_ident[EI_CLASS] != ELFCLASS64) return;
    for (uint32_t i = 0; i < head.e_shnum; i++) {
      Bytes entry = all_.part(head.e_shoff + uint64_t(i) * sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
      sections_.push_back({entry.take<Elf64_Shdr>(), ""});
    }
    for (Section& one : sections_) one.name = text(head.e_shstrndx, one.head.sh_name);
  }
  const Section* find(const std::string& name) const {
    for (const Section& one : sections_)
      if (one.name == name) return &one;
    return nullptr;
  }
  Bytes content(const Section& one) const { return all_.part(one.head.sh_offset, one.head.sh_size); }
  std::string text(uint32_t section, uint64_t offset) const {
    if (section >= sections_.size()) return "";
    Bytes strings = content(sections_[section]);
    strings.move_to(offset);
    return strings.text();
  }
  // A function's name, for the symbol of a function or of its section.
  std::string symbol(const Section& relocations, uint32_t number) const {
    if (relocations.head.sh_link >= sections_.size()) return "";
    const Section& table = sections_[relocations.head.sh_link];
    Bytes entry = content(table).part(uint64_t(number) * sizeof(Elf64_Sym), sizeof(Elf64_Sym));
    auto symbol = entry.take<Elf64_Sym>();
    const std::string code = ".text.";
    if (ELF64_ST_TYPE(symbol.st_info) != STT_SECTION) return text(table.head.sh_link, symbol.st_name);
    if (symbol.st_shndx >= sections_.size()) return "";
    const std::string& name = sections_[symbol.st_shndx].name;
    return name.compare(0, code.size(), code) ? "" : name.substr(code.size());
  }

 private:
  Bytes all_;
  std::vector<Section> sections_;
};

struct Target {
  std::string function;
  uint64_t addend;
};
using Targets = std::map<size_t, Target>;  // by the place of an address in the line table

Targets targets_of(const Elf& elf) {
  Targets targets;
  for (bool has_addend : {true, false}) {
    const Section* found = elf.find(has_addend ? ".rela.debug_line" : ".rel.debug_line");
    if (!found) continue;
    for (Bytes entries = elf.content(*found); entries.has_more();) {
      auto one = entries.take<Elf64_Rel>();
      uint64_t addend = has_addend ? entries.take<uint64_t>() : 0;
      targets[one.r_offset] = {elf.symbol(*found, uint32_t(ELF64_R_SYM(one.r_info))), addend};
    }
  }
  return targets;
}

}  // namespace

// One unit of the table: a header with the files, and the program that yields the rows.
class LineProgram {
 public:
  LineProgram(CubinLines& lines, Bytes unit, size_t begin, const Targets& targets)
      : lines_(lines), unit_(unit), begin_(begin), targets_(targets) {}

  void run() {
    if (!read_header()) return;
    while (unit_.has_more()) {
      auto code = unit_.take<uint8_t>();
      if (code >= first_special_) special(code);
      else if (code == 0) extended();
      else standard(code);
    }
  }

 private:
  bool read_header() {
    auto version = unit_.take<uint16_t>();
    if (version < 2 || version > 4) return false;
    auto length = unit_.take<uint32_t>();
    size_t program = unit_.at() + length;
    least_ = unit_.take<uint8_t>();
    if (version == 4) unit_.take<uint8_t>();  // operations of an instruction
    unit_.take<uint8_t>();                    // whether rows are statements
    line_base_ = unit_.take<int8_t>();
    line_range_ = unit_.take<uint8_t>();
    first_special_ = unit_.take<uint8_t>();
    for (int i = 1; i < first_special_; i++) operands_.push_back(unit_.take<uint8_t>());
    for (std::string name; !(name = unit_.text()).empty();) folders_.push_back(name);
    for (std::string name; !(name = unit_.text()).empty();) add_file(name);
    unit_.move_to(program);
    return unit_.is_good() && line_range_;
  }
  void add_file(std::string name) {
    uint64_t folder = unit_.unsigned_leb();
    unit_.unsigned_leb();  // time
    unit_.unsigned_leb();  // size
    bool is_whole = name[0] == '/' || !folder || folder > folders_.size();
    if (!is_whole) name = folders_[folder - 1] + "/" + name;
    if (!is_utf8(name))
      for (char& one : name)
        if (uint8_t(one) >= 0x80) one = '?';
    auto known = std::find(lines_.files_.begin(), lines_.files_.end(), name);
    numbers_.push_back(uint32_t(known - lines_.files_.begin()));
    if (known == lines_.files_.end()) lines_.files_.push_back(name);
  }
  void special(uint8_t code) {
    int shift = code - first_special_;
    offset_ += uint64_t(shift / line_range_) * least_;
    line_ += uint32_t(line_base_ + shift % line_range_);
    add_row(line_);
  }
  void standard(uint8_t code) {
    switch (code) {
      case 1: return add_row(line_);
      case 2: offset_ += unit_.unsigned_leb() * least_; return;
      case 3: line_ += uint32_t(unit_.signed_leb()); return;
      case 4: file_ = unit_.unsigned_leb(); return;
      case 8: offset_ += uint64_t((255 - first_special_) / line_range_) * least_; return;
      case 9: offset_ += unit_.take<uint16_t>(); return;
      default:
        for (int i = 0; i < operands_[code - 1]; i++) unit_.unsigned_leb();
    }
  }
  void extended() {
    uint64_t length = unit_.unsigned_leb();
    size_t begin = unit_.at();
    auto code = unit_.take<uint8_t>();
    if (code == 1) {
      add_row(0);
      begin_sequence();
    } else if (code == 2) {
      begin_at(unit_.at());
    }
    unit_.move_to(begin);
    unit_.skip(length);  // NVIDIA's own, about inlined functions, have a length as well
  }
  void begin_sequence() {
    function_.clear();
    offset_ = 0;
    file_ = line_ = 1;
  }
  void begin_at(size_t place) {
    auto target = targets_.find(begin_ + place);
    if (target == targets_.end()) return;
    function_ = target->second.function;
    offset_ = unit_.take<uint64_t>() + target->second.addend;
  }
  void add_row(uint32_t line) {
    if (function_.empty() || !file_ || file_ > numbers_.size()) return;
    lines_.functions_[function_].push_back({offset_, numbers_[file_ - 1], line});
  }

  CubinLines& lines_;
  Bytes unit_;
  size_t begin_;  // of the unit in the table
  const Targets& targets_;
  std::vector<uint8_t> operands_;  // how many each standard code has
  std::vector<std::string> folders_;
  std::vector<uint32_t> numbers_;  // of the unit's files
  uint8_t least_ = 1, line_range_ = 1, first_special_ = 10;
  int8_t line_base_ = 0;
  std::string function_;
  uint64_t offset_ = 0, file_ = 1;
  uint32_t line_ = 1;
};

CubinLines::CubinLines(const uint8_t* cubin, size_t size) {
  Elf elf(cubin, size);
  const Section* table = elf.find(".debug_line");
  if (!table) return;
  Targets targets = targets_of(elf);
  Bytes all = elf.content(*table);
  while (all.has_more()) {
    auto length = all.take<uint32_t>();
    LineProgram(*this, all.part(all.at(), length), all.at(), targets).run();
    all.move_to(all.at() + length);
  }
  // Of several rows of one instruction the last counts: the innermost inlined function's.
  for (auto& [function, rows] : functions_)
    std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.offset < b.offset; });
}

SourceLine CubinLines::find(const std::string& function, uint64_t offset) const {
  auto found = functions_.find(function);
  if (found == functions_.end()) return {};
  const auto& rows = found->second;
  auto next = std::upper_bound(rows.begin(), rows.end(), offset,
                               [](uint64_t at, const Row& row) { return at < row.offset; });
  if (next == rows.begin() || !std::prev(next)->line) return {};
  return {files_[std::prev(next)->file], std::prev(next)->line};
}

PyObject* lines_of_cubin(PyObject*, PyObject* cubin) {
  if (!PyBytes_Check(cubin)) return PyErr_Format(PyExc_TypeError, "expected the bytes of a cubin");
  CubinLines lines(reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(cubin)),
                   size_t(PyBytes_GET_SIZE(cubin)));
  PyObject* found = PyDict_New();
  for (auto& [function, rows] : lines.functions()) {
    PyObject* list = PyList_New(0);
    for (const CubinLines::Row& row : rows) {
      PyObject* item = Py_BuildValue("KsI", static_cast<unsigned long long>(row.offset),
                                     lines.files()[row.file].c_str(), row.line);
      if (item) PyList_Append(list, item);
      Py_XDECREF(item);
    }
    PyObject* name = PyUnicode_DecodeUTF8(function.data(), Py_ssize_t(function.size()), "replace");
    PyDict_SetItem(found, name, list);
    Py_DECREF(name);
    Py_DECREF(list);
  }
  return found;
}

}  // namespace stepscope
