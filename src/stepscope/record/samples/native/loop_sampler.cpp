// Samples of the Python stack of one thread, taken by a thread that has no Python state.
//
// It sends no signals, stops no threads and takes no lock of Python's: stacks are copies that may
// fail (stack_reader.h). Next to each sample is the time; equal stacks are kept once.
//
// Children of this process, such as workers of data loaders, are sampled in turns, one of them with
// each sample of the thread: what was its state is that of their main thread. One that was spawned
// has Python at another address; since Python 3.11 the state of the main thread has moved with it.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exported.h"
#include "../../native/hidden_thread.h"
#include "../../native/known_layouts.h"
#include "../../native/safe_memory.h"
#include "../../native/stack_reader.h"

namespace stepscope {
namespace {

// When there are as many samples, every other is dropped and the interval doubles.
constexpr size_t kMostSamples = 1 << 15;
constexpr int kSooner = 10;
constexpr uint32_t kNoId = ~uint32_t(0);

uint64_t nanoseconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

// A file that is mapped at an address, and where its first mapping begins.
struct Mapped {
  std::string file;
  uintptr_t begin;
};

// The file at an address of a process, or, if it is named, wherever that is mapped; none if it is not.
Mapped mapped_in(int process, uintptr_t address, const std::string& file = "") {
  std::ifstream maps("/proc/" + (process ? std::to_string(process) : "self") + "/maps");
  std::map<std::string, uintptr_t> begins;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    size_t path = line.find('/');
    if (path == std::string::npos || sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    std::string name = line.substr(path);
    begins.try_emplace(name, begin);
    if (file.empty() ? begin <= address && address < end : name == file) return {name, begins[name]};
  }
  return {};
}

// Whether a thread sleeps: the letter after its name, which may have parentheses (proc(5), stat).
bool is_waiting(int process, int thread) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  text[std::max<ssize_t>(size, 0)] = '\0';
  const char* name_ends = strrchr(text, ')');
  return name_ends && (strncmp(name_ends, ") S", 3) == 0 || strncmp(name_ends, ") D", 3) == 0);
}

class LoopSampler {
 public:
  LoopSampler(const PythonMemory& python, const void* state, int64_t interval_ns)
      : python_(python), reader_(python), state_(state), sampled_(pthread_self()),
        process_(getpid()), thread_number_(int(syscall(SYS_gettid))), interval_ns_(interval_ns) {
    has_clock_ = !pthread_getcpuclockid(sampled_, &clock_);
  }

  bool start() {
    if (!has_clock_) return false;
    is_stopping_ = false;  // it may have been stopped to be read
    return !start_hidden_thread(thread_, this, [](void* self) -> void* {
      static_cast<LoopSampler*>(self)->run();
      return nullptr;
    });
  }

  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_stopping_ = true;
    }
    wakeup_.notify_all();
    pthread_join(thread_, nullptr);
  }

  // Takes one sample now; false if the stack could not be read.
  bool take() {
    uint64_t now = unix_ns(), cpu = nanoseconds_of(clock_);
    if (cpu != seen_cpu_ || seen_ == kNoId) {  // else the thread has not run since
      if ((seen_ = read(reader_, state_, (unsigned long)sampled_)) == kNoId) return false;
      seen_cpu_ = cpu;
    }
    samples_.push_back({now, seen_, 0, has_children_ && is_waiting(process_, thread_number_)});
    return true;
  }

  // Sample a child of this process, too.
  void follow(int process) {
    std::lock_guard<std::mutex> lock(mutex_);
    new_.push_back({process, 0, nullptr});
    has_children_ = true;
  }

  // The number of samples; of each the time, the stack, the process if it is of a child, else 0, and,
  // once there are children, whether the thread slept. Then fields that end with a zero byte, of what
  // was found since the call before: the number of places, function, file and line of each; the number
  // of stacks, the places of each, innermost first. It stays where it is until the next call.
  const std::string& found() {
    found_.clear();
    add_number(int64_t(samples_.size()));
    for (const Sample& sample : samples_) {
      add_number(int64_t(sample.time_ns)), add_number(sample.stack);
      add_number(sample.child), add_number(sample.waits);
    }
    add_field(std::to_string(places_.size() - told_places_));
    for (; told_places_ < places_.size(); told_places_++) {
      const Place& place = places_[told_places_];
      add_field(place.code->name), add_field(place.code->file), add_field(std::to_string(place.line));
    }
    add_field(std::to_string(stacks_.size() - told_stacks_));
    for (; told_stacks_ < stacks_.size(); told_stacks_++) add_field(*stacks_[told_stacks_]);
    return found_;
  }

 private:
  struct Place {
    std::shared_ptr<Code> code;
    int line;
  };
  struct Sample {
    uint64_t time_ns;
    uint32_t stack;
    int child;
    bool waits;
  };
  struct Child {
    int process;
    intptr_t moved;  // bytes, of Python's static memory
    std::unique_ptr<StackReader> reader;  // null before the child has loaded Python
  };

  // Time since 1970, as it was when sampling began: the clock may be set meanwhile.
  uint64_t unix_ns() const { return ahead_ns_ + nanoseconds_of(CLOCK_MONOTONIC); }

  void run() {
    using Clock = std::chrono::steady_clock;
    ask_for_short_delays();
    Clock::time_point next = Clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_stopping_) {
      if (Clock::now() < next) {
        wakeup_.wait_until(lock, next);
        continue;
      }
      children_.splice(children_.begin(), new_);
      lock.unlock();
      bool is_taken = take();
      if (is_taken) take_of_child();
      thin_out();
      lock.lock();
      // Code that calls and returns fast is torn more often: it is tried again soon.
      next = std::max(next + (is_taken ? pause() : pause() / kSooner), Clock::now());
    }
  }

  void take_of_child() {
    if (children_.empty()) return;
    children_.splice(children_.end(), children_, children_.begin());
    Child& child = children_.back();
    if (!child.reader && !find_python(child)) {
      if (kill(child.process, 0) && errno == ESRCH) children_.pop_back();
      return;
    }
    uint64_t now = unix_ns();
    errno = 0;
    copy_from_process(child.process);
    const char* state = static_cast<const char*>(state_) + child.moved;
    unsigned long thread = 0;  // its only thread, or the main one
    uint32_t stack = kNoId;
    if (copy_memory(state + python_.layout.thread_id, &thread, sizeof thread) && thread)
      stack = read(*child.reader, state, thread);
    copy_from_process(0);
    if (stack != kNoId)
      samples_.push_back({now, stack, child.process, is_waiting(child.process, child.process)});
    else if (errno == ESRCH || errno == EPERM)  // it has ended, or the system refuses
      children_.pop_back();
  }

  bool find_python(Child& child) {
    Mapped here = mapped_in(0, uintptr_t(python_.code_type));
    Mapped there = mapped_in(child.process, 0, here.file);
    if (here.file.empty() || there.file.empty()) return false;
    PythonMemory python = python_;
    child.moved = intptr_t(there.begin - here.begin);
    for (const void** type : {&python.code_type, &python.text_type, &python.bytes_type, &python.frame_type})
      *type = static_cast<const char*>(*type) + child.moved;
    child.reader = std::make_unique<StackReader>(python);
    return true;
  }

  // Randomized around the interval, so that samples do not synchronize with the program.
  std::chrono::nanoseconds pause() {
    double share = 0.5 + double(next_random() >> 11) / double(1ull << 53);
    return std::chrono::nanoseconds(int64_t(double(interval_ns_) * share));
  }

  uint64_t next_random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return random_;
  }

  void thin_out() {
    if (samples_.size() < kMostSamples) return;
    // One of each pair at random: they may be of the thread and of a child in turns.
    for (size_t i = 0; 2 * i + 1 < samples_.size(); i++) samples_[i] = samples_[2 * i + (next_random() >> 63)];
    samples_.resize(samples_.size() / 2);
    interval_ns_ *= 2;
  }

  uint32_t read(StackReader& reader, const void* state, unsigned long thread) {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; i++)
      if (reader.read(state, thread, nullptr) != StackResult::torn) return stack_id(reader);
    return kNoId;
  }

  uint32_t stack_id(const StackReader& reader) {
    std::string stack;
    for (const SampledFrame& frame : reader.frames())
      stack.append(std::to_string(place_id(frame, reader))).push_back(' ');
    auto found = stack_ids_.try_emplace(stack, uint32_t(stacks_.size()));
    if (found.second) stacks_.push_back(&found.first->first);
    return found.first->second;
  }

  uint32_t place_id(const SampledFrame& frame, const StackReader& reader) {
    auto found = frame.description->keys.try_emplace(frame.offset, uint32_t(places_.size()));
    if (found.second) places_.push_back({frame.description, reader.line_of(frame)});
    return found.first->second;
  }

  void add_field(const std::string& field) { found_.append(field).push_back('\0'); }
  void add_number(int64_t number) { found_.append(reinterpret_cast<const char*>(&number), sizeof number); }

  const PythonMemory python_;
  StackReader reader_;
  const void* const state_;
  const pthread_t sampled_;
  const int process_, thread_number_;
  const uint64_t ahead_ns_ = nanoseconds_of(CLOCK_REALTIME) - nanoseconds_of(CLOCK_MONOTONIC);
  int64_t interval_ns_;
  clockid_t clock_{};
  bool has_clock_ = false;
  std::atomic<bool> has_children_{false};  // whether somebody asks who waits: a look takes 10 us
  uint64_t seen_cpu_ = 0;
  uint32_t seen_ = kNoId;
  std::vector<Place> places_;
  std::map<std::string, uint32_t> stack_ids_;
  std::vector<const std::string*> stacks_;  // the keys of `stack_ids_`, in order
  std::string found_;
  size_t told_places_ = 0, told_stacks_ = 0;
  std::list<Child> children_, new_;
  std::vector<Sample> samples_;
  uint64_t random_ = 88172645463325252u;
  std::mutex mutex_;
  std::condition_variable wakeup_;
  bool is_stopping_ = false;
  pthread_t thread_{};
};

}  // namespace
}  // namespace stepscope

using stepscope::LoopSampler;

// A sampler of the thread that calls, whose state is given; null if stepscope does not know how this
// version of Python, such as 0x030B, keeps its frames. The types are those of code, text, bytes and
// frames.
EXPORTED void* stepscope_new_sampler(uint32_t version, const void* state, const void* code,
                                     const void* text, const void* bytes, const void* frame,
                                     int64_t interval_ns) {
  stepscope::PythonLayout layout = stepscope::known_layout(version);
  if (!layout.code_bytes || sizeof(void*) != 8) return nullptr;
  return new LoopSampler({layout, code, text, bytes, frame}, state, interval_ns);
}

// Whether this process may copy its own memory: some containers forbid it.
EXPORTED int stepscope_may_copy() { return stepscope::why_no_copies().empty(); }
// Takes a single sample in this thread, before it starts or after it was stopped.
EXPORTED int stepscope_sample_once(LoopSampler* sampler) { return sampler->take(); }
// Whether a thread samples now.
EXPORTED int stepscope_start_sampler(LoopSampler* sampler) { return sampler->start(); }
EXPORTED void stepscope_stop_sampler(LoopSampler* sampler) { sampler->stop(); }
// Sample a child of this process, too.
EXPORTED void stepscope_follow_child(LoopSampler* sampler, int process) { sampler->follow(process); }

// What was found, and of how many bytes, while nothing samples; until the next call.
EXPORTED const char* stepscope_samples(LoopSampler* sampler, int64_t* size) {
  const std::string& found = sampler->found();
  *size = int64_t(found.size());
  return found.data();
}

EXPORTED void stepscope_free_sampler(LoopSampler* sampler) { delete sampler; }

// For tests: the numbers of a version's layout, in order; how many there are.
EXPORTED int stepscope_known_layout(uint32_t version, uint32_t* numbers) {
  stepscope::PythonLayout layout = stepscope::known_layout(version);
  if (layout.code_bytes) memcpy(numbers, &layout, sizeof layout);
  return layout.code_bytes ? int(sizeof layout / sizeof *numbers) : 0;
}
