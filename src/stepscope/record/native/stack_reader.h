// The Python stack of another running thread, read by copies that may fail.
//
// The thread keeps running meanwhile, so a stack may be torn: partly from before a call or return,
// partly from after. A stack is accepted only if every code object is valid, every position is inside
// its code, and every frame begins where its caller's ends.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "keys.h"
#include "known_layouts.h"

namespace stepscope {

// What is known of a code object, from copies.
struct Code {
  // Tells it from another one that the same address holds later.
  struct Identity {
    const void *file, *name, *lines;
    int first_line;
    intptr_t size;
    bool operator==(const Identity& other) const {
      return file == other.file && name == other.name && lines == other.lines &&
             first_line == other.first_line && size == other.size;
    }
  };
  Identity identity{};
  std::string file, name, lines;
  uint8_t flags = 0;  // kHidden, kBarrier
  std::unordered_map<intptr_t, KeyId> keys;  // by position
};

struct SampledFrame {
  const void* address;
  const void* code;  // only compared, never followed
  const void* first_argument;
  intptr_t offset;  // of the instruction, in bytes
  bool is_on_stack;  // of Python's frames; a generator's is elsewhere
  std::shared_ptr<Code> description;
};

enum class StackResult { complete, empty, torn };

class StackReader {
 public:
  // Flags of a frame by its file and function.
  using Flags = uint8_t (*)(const std::string& file, const std::string& name);
  explicit StackReader(const PythonMemory& python, Flags flags = nullptr)
      : python_(python), flags_(flags) {}
  // Reads the frames of a thread, innermost first, up to `until` (null for all).
  StackResult read(const void* state, unsigned long thread_id, const void* until);
  // The same from a frame on.
  StackResult read_from(const void* innermost, const void* until);
  const std::vector<SampledFrame>& frames() const { return frames_; }
  bool has_met_until() const { return has_met_until_; }
  // The line that a frame executes.
  int line_of(const SampledFrame& frame) const;

 private:
  bool keeps_a_stack() const { return stepscope::keeps_a_stack(python_.layout.version); }
  bool has_type(const void* object, const void* type) const;
  bool copy_text(const void* object, std::string& text) const;
  bool copy_bytes(const void* object, std::string& bytes) const;
  Code::Identity identity_of(const char* code) const;
  size_t frame_size(const char* code) const;
  bool is_frame(const char* frame) const;
  SampledFrame frame_at(const void* address, const char* frame) const;
  const void* head(const void* state, unsigned long thread_id, bool& is_valid);
  bool copy_frame(const void* from, char* frame);
  bool follow(const void* innermost, const void* until);
  bool describe();
  bool is_contiguous(const std::vector<char>& codes) const;
  std::shared_ptr<Code> code_at(const void* address, const char* copy);

  const PythonMemory python_;
  const Flags flags_;
  static constexpr size_t kPage = 4096;
  static constexpr size_t kMostCodes = 1u << 15;
  std::vector<SampledFrame> frames_;
  std::vector<std::unique_ptr<char[]>> pages_;
  std::vector<uintptr_t> page_addresses_;
  std::unordered_map<const void*, std::shared_ptr<Code>> codes_;
  bool has_met_until_ = false;
};

}  // namespace stepscope
