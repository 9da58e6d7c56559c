#include "flusher.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>

#include "collector.h"
#include "device.h"
#include "hidden_thread.h"

namespace stepscope {

namespace fs = std::filesystem;

namespace {

uint32_t checksum(const std::string& bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> table;
    for (uint32_t i = 0; i < 256; i++) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
      table[i] = value;
    }
    return table;
  }();
  uint32_t value = ~0u;
  for (unsigned char byte : bytes) value = table[(value ^ byte) & 255] ^ value >> 8;
  return ~value;
}

// A zip archive of stored members.
class Zip {
 public:
  void add(const std::string& name, const std::string& content) {
    std::string header = fields(name, content);
    uint32_t offset = uint32_t(body_.size());
    number(body_, 0x04034b50, 4);
    body_ += header + name + content;
    number(directory_, 0x02014b50, 4);
    number(directory_, 20, 2);
    directory_ += header;
    number(directory_, 0, 2);  // comment
    number(directory_, 0, 2);  // disk
    number(directory_, 0, 2);  // text or binary
    number(directory_, 0600u << 16, 4);
    number(directory_, offset, 4);
    directory_ += name;
    count_++;
  }
  std::string finish() {
    uint32_t start = uint32_t(body_.size()), size = uint32_t(directory_.size());
    body_ += directory_;
    number(body_, 0x06054b50, 4);
    number(body_, 0, 4);
    number(body_, count_, 2);
    number(body_, count_, 2);
    number(body_, size, 4);
    number(body_, start, 4);
    number(body_, 0, 2);
    return std::move(body_);
  }

 private:
  static void number(std::string& to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to += char(value >> 8 * i);
  }
  static std::string fields(const std::string& name, const std::string& content) {
    std::string header;
    number(header, 20, 2);
    number(header, 0, 2);            // flags
    number(header, 0, 2);            // stored
    number(header, 0, 2);            // time
    number(header, 1 << 5 | 1, 2);   // date: 1980-01-01
    number(header, checksum(content), 4);
    number(header, content.size(), 4);
    number(header, content.size(), 4);
    number(header, name.size(), 2);
    number(header, 0, 2);  // extra
    return header;
  }
  std::string body_, directory_;
  unsigned count_ = 0;
};

bool write_file(const std::string& path, const std::string& content) {
  FILE* file = fopen(path.c_str(), "wbe");
  if (!file) return false;
  bool is_written = fwrite(content.data(), 1, content.size(), file) == content.size();
  return fclose(file) == 0 && is_written;
}

FileVersion version_of(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found)) return {};
  uint64_t modified = uint64_t(found.st_mtim.tv_sec) * 1000000000u + uint64_t(found.st_mtim.tv_nsec);
  return {found.st_dev, found.st_ino, modified, uint64_t(found.st_size)};
}

std::map<std::string, std::shared_ptr<const std::string>> windows_of(Collector& collector) {
  std::lock_guard<std::mutex> lock(collector.mutex);
  return collector.windows;
}

constexpr size_t kLargest = 0xF0000000;  // larger archives would need ZIP64

// Waits for others that write in the folder, but not for one that keeps its lock: as in capture_file.py.
constexpr int kLockLooks = 20;
constexpr useconds_t kLockLookMicroseconds = 50'000;
void wait_for(int lock) {
  for (int looks = 0; flock(lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK && looks < kLockLooks; looks++)
    usleep(kLockLookMicroseconds);
}

}  // namespace

Flusher::Flusher(Collector& collector, FlushPlan plan)
    : collector_(collector), plan_(std::move(plan)) {}

bool Flusher::start() {
  is_running_ = !start_hidden_thread(thread_, this, [](void* self) -> void* {
    static_cast<Flusher*>(self)->run();
    return nullptr;
  });
  return is_running_;
}

void Flusher::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  wakeup_.notify_all();
  if (is_running_) pthread_join(thread_, nullptr);
  is_running_ = false;
}

// The first write comes early, as the run may be short.
void Flusher::run() {
  double wait = std::min(plan_.first_s, plan_.interval_s);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    auto duration = std::chrono::duration<double>(wait);
    if (wakeup_.wait_for(lock, duration, [&] { return is_stopping_; })) return;
    lock.unlock();
    flush();
    lock.lock();
    wait = std::min(wait * 2, plan_.interval_s);
  }
}

// Failures are reported at the end of the run, if the file cannot be written then either.
void Flusher::flush() {
  flush_devices();
  auto windows = windows_of(collector_);  // before the tree, which then has their contexts
  std::string content = snapshot(collector_, false);
  if (!plan_.keep_empty && content.find("\"operators\":0,") != std::string::npos) return;
  Zip zip;
  size_t size = content.size();
  for (auto& [name, text] : plan_.members) {
    zip.add(name, text);
    size += text.size();
  }
  for (auto& [name, profile] : windows) size += profile->size();
  if (size > kLargest) return;
  for (auto& [name, profile] : windows) zip.add(name, *profile);
  zip.add("contexts.json", content);
  std::error_code error;
  fs::path folder = fs::path(plan_.path).parent_path();
  if (!fs::is_directory(plan_.base, error)) return;
  fs::create_directories(folder, error);
  if (write_file(plan_.partial, zip.finish())) {
    int lock = open(folder.c_str(), O_RDONLY | O_CLOEXEC);
    if (lock >= 0) wait_for(lock);
    publish();
    if (lock >= 0) close(lock);
  }
  unlink(plan_.partial.c_str());
}

// As in capture_file.py, an earlier capture is never lost. If another process has written one
// meanwhile, the end of the run chooses another name.
void Flusher::publish() {
  FileVersion there = version_of(plan_.path);
  if (there != FileVersion() && there != own_ && there != plan_.before) return;
  if (there != FileVersion() && there != own_ && !plan_.kept.empty()) {
    std::error_code error;
    fs::create_directories(fs::path(plan_.kept).parent_path(), error);
    if (version_of(plan_.kept) != FileVersion() || rename(plan_.path.c_str(), plan_.kept.c_str()))
      return;
    has_kept_ = true;
  }
  if (!rename(plan_.partial.c_str(), plan_.path.c_str())) own_ = version_of(plan_.path);
}

}  // namespace stepscope
