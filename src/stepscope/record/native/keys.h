// Interned frames: each distinct frame gets a small permanent number, its key.
#pragma once
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace stepscope {

enum class Kind : uint8_t {
  root, thread, python, module, op, annotation, runtime, native, kernel, instruction
};

// Bit mask of frame kinds.
enum : uint32_t { kPython = 1, kModules = 2, kOperators = 4, kNative = 8, kDevice = 16 };

struct Key {
  Kind kind;
  uint32_t name, file, line, type;
};

using KeyId = uint32_t;
constexpr KeyId kBackward = 1u << 31;  // set in a node's key: the node is backward of its parent
constexpr KeyId kRootKey = 0, kOthersKey = 1, kNoKey = 0x7fffffff;

// Every function locks; threads cache the results.
class Keys {
 public:
  Keys();
  KeyId find(Kind kind, const std::string& name, const std::string& file = "", uint32_t line = 0,
             const std::string& type = "");
  void locate(KeyId key, const std::string& file, uint32_t line);
  void rename(KeyId key, const std::string& name);
  // The Python frames in some files.
  struct Line {
    KeyId key;
    std::string file;
    uint32_t line;
  };
  std::vector<Line> lines_of(const std::set<std::string>& files) const;
  struct Text {
    Kind kind;
    std::string name, file;
    uint32_t line;
  };
  Text text(KeyId key) const;
  void copy(std::vector<Key>& keys, std::vector<std::string>& strings) const;

 private:
  uint32_t intern(const std::string& text);
  mutable std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> strings_;
  std::unordered_map<std::string, KeyId> index_;
  std::vector<Key> keys_;
};

}  // namespace stepscope
