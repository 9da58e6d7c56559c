// Writes the capture periodically during the run, so that a killed run leaves a capture.
//
// Its thread has no Python state: the program cannot see it, join it, or block it.
#pragma once
#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace stepscope {

struct Collector;

// Identifies a version of a file.
struct FileVersion {
  unsigned long long device = 0, inode = 0, modified_ns = 0, size = 0;  // all 0 without a file
  bool operator==(const FileVersion&) const = default;
};

struct FlushPlan {
  std::string path, partial;  // the capture, and its temporary file
  std::string kept;           // the new name of an earlier file; empty to replace it
  std::string base;           // the folder, which must still exist
  FileVersion before;
  std::vector<std::pair<std::string, std::string>> members;  // files next to contexts.json, and their content
  double first_s = 0, interval_s = 0;
  bool keep_empty = true;  // write it even if no operator has run
};

class Flusher {
 public:
  Flusher(Collector& collector, FlushPlan plan);
  bool start();
  void stop();  // no write is in progress when it returns
  // The version written last, and whether an earlier file was renamed to keep it.
  FileVersion own() const { return own_; }
  bool has_kept() const { return has_kept_; }
  const FlushPlan& plan() const { return plan_; }

 private:
  void run();
  void flush();
  void publish();
  Collector& collector_;
  const FlushPlan plan_;
  std::mutex mutex_;
  std::condition_variable wakeup_;
  FileVersion own_;
  bool has_kept_ = false;
  bool is_stopping_ = false, is_running_ = false;
  pthread_t thread_{};
};

}  // namespace stepscope
