#include "keys.h"

#include <cstring>

namespace stepscope {

Keys::Keys() {
  intern("");
  find(Kind::root, "");
  find(Kind::annotation, "(others)");
}

uint32_t Keys::intern(const std::string& text) {
  auto [place, is_new] = ids_.emplace(text, uint32_t(strings_.size()));
  if (is_new) strings_.push_back(text);
  return place->second;
}

KeyId Keys::find(Kind kind, const std::string& name, const std::string& file, uint32_t line,
                 const std::string& type) {
  std::lock_guard<std::mutex> lock(mutex_);
  Key key{kind, intern(name), intern(file), line, intern(type)};
  uint32_t fields[5] = {uint32_t(kind), key.name, key.file, key.line, key.type};
  std::string packed(reinterpret_cast<const char*>(fields), sizeof fields);
  auto [place, is_new] = index_.emplace(packed, KeyId(keys_.size()));
  if (is_new) keys_.push_back(key);
  return place->second;
}

void Keys::locate(KeyId key, const std::string& file, uint32_t line) {
  std::lock_guard<std::mutex> lock(mutex_);
  keys_[key & ~kBackward].file = intern(file);
  keys_[key & ~kBackward].line = line;
}

void Keys::rename(KeyId key, const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  keys_[key & ~kBackward].name = intern(name);
}

std::vector<Keys::Line> Keys::lines_of(const std::set<std::string>& files) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Line> lines;
  for (size_t id = 0; id < keys_.size(); id++) {
    const Key& key = keys_[id];
    if (key.kind == Kind::python && files.count(strings_[key.file]))
      lines.push_back({KeyId(id), strings_[key.file], key.line});
  }
  return lines;
}

Keys::Text Keys::text(KeyId id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Key& key = keys_[id & ~kBackward];
  return {key.kind, strings_[key.name], strings_[key.file], key.line};
}

void Keys::copy(std::vector<Key>& keys, std::vector<std::string>& strings) const {
  std::lock_guard<std::mutex> lock(mutex_);
  keys = keys_;
  strings = strings_;
}

}  // namespace stepscope
