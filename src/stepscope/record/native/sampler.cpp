#include "sampler.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "collector.h"
#include "header_layout.h"
#include "hidden_thread.h"
#include "places.h"
#include "safe_memory.h"

namespace stepscope {

// -- sampled threads

Target::Target(NodeId root_node, bool has_counters)
    : thread_id(pthread_self()), last_node(root_node), system_id_(pid_t(syscall(SYS_gettid))),
      node_(root_node) {
  pthread_getcpuclockid(pthread_self(), &clock_);
  if (has_counters) counters.open();
  cpu_time(last_cpu);
  last_real = nanoseconds();
}

// A sequence lock: the version is odd while the rest is written.
void Target::publish(const Position& position) {
  uint32_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  state_.store(position.state, std::memory_order_relaxed);
  until_.store(position.until, std::memory_order_relaxed);
  node_.store(position.node, std::memory_order_relaxed);
  inside_.store(position.inside, std::memory_order_relaxed);
  version_.store(version + 2, std::memory_order_release);
}

bool Target::read(Position& position, uint32_t& version) const {
  version = version_.load(std::memory_order_acquire);
  position = {state_.load(std::memory_order_relaxed), until_.load(std::memory_order_relaxed),
              node_.load(std::memory_order_relaxed), inside_.load(std::memory_order_relaxed)};
  return !(version & 1) && has_version(version);
}

bool Target::has_version(uint32_t version) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return version_.load(std::memory_order_relaxed) == version;
}

bool Target::cpu_time(uint64_t& now) const {
  timespec time;
  if (clock_gettime(clock_, &time)) return false;
  now = uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
  return true;
}

// A thread that could run elsewhere may just have been woken and not have used CPU time yet.
bool Target::is_preempted() const {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", int(system_id_));
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t size = file < 0 ? -1 : ::read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  if (size <= 0) return false;
  text[size] = 0;
  const char* field = strrchr(text, ')');  // ends the second field; the state is the third
  if (!field || field[1] != ' ' || field[2] != 'R') return false;
  constexpr int kProcessorField = 39;
  for (int i = 2; field && i < kProcessorField; i++) field = strchr(field + 1, ' ');
  return field && atoi(field + 1) == sched_getcpu();
}

// -- the sampler's thread

Sampler::Sampler(Collector& collector, const SampleRates& rates)
    : collector_(collector), rates_(rates), reader_(memory_by_headers(), frame_flags) {}

std::string Sampler::start() {
  std::string missing = why_no_copies();
  if (!missing.empty()) return missing;
  int error = start_hidden_thread(thread_, this, [](void* self) -> void* {
    static_cast<Sampler*>(self)->run();
    return nullptr;
  });
  is_running_ = !error;
  return error ? std::string("cannot start a thread: ") + strerror(error) : "";
}

void Sampler::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  wakeup_.notify_all();
  if (is_running_) pthread_join(thread_, nullptr);
  is_running_ = false;
  std::vector<std::shared_ptr<Target>> rest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    rest = targets_;
  }
  for (auto& target : rest) remove(*target);
}

void Sampler::run() {
  using Clock = std::chrono::steady_clock;
  ask_for_short_delays();
  struct Timer {
    unsigned rate;
    Clock::time_point next;
  } timers[2] = {{rates_.cpu, Clock::now()}, {rates_.real, Clock::now()}};
  // Intervals are randomized around the requested one, so that samples do not synchronize with the program.
  auto advance = [&](Timer& timer, Clock::time_point now) {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    double share = 0.5 + double(random_ >> 11) / double(1ull << 53);
    timer.next += std::chrono::nanoseconds(int64_t(1e9 / timer.rate * share));
    if (timer.next < now) timer.next = now;
  };
  for (Timer& timer : timers) {
    if (timer.rate) advance(timer, Clock::now());
    else timer.next = Clock::time_point::max();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_) {
    Clock::time_point next = std::min(timers[0].next, timers[1].next);
    if (Clock::now() < next) {
      wakeup_.wait_until(lock, next);
      continue;
    }
    bool due[2];
    for (int i = 0; i < 2; i++)
      if ((due[i] = timers[i].next <= next)) advance(timers[i], next);
    sampled_ = targets_;
    lock.unlock();
    sample_all(due[0], due[1]);
    lock.lock();
  }
}

void Sampler::sample_all(bool cpu, bool real) {
  for (auto& target : sampled_) sample(*target, cpu, real);
}

// Elapsed time counts at the thread's current position. CPU time counts there only if the thread
// runs; the CPU time of a waiting thread counts when it next runs.
void Sampler::sample(Target& target, bool cpu, bool real) {
  uint64_t before = 0, after = 0, now = nanoseconds();
  NodeId node;
  if (!target.cpu_time(before)) return;
  bool may_run = before != target.last_cpu;
  if (!real && !may_run) return;
  if (!locate(target, node) || !target.cpu_time(after)) return;
  if (real) count(target, now, node, false);
  if (cpu && may_run && (after != before || target.is_preempted())) count(target, after, node, true);
}

bool Sampler::locate(Target& target, NodeId& node) {
  constexpr int kTries = 4;
  Position position;
  uint32_t version;
  uint64_t cpu = 0;
  NodeId fallback = kRoot;
  bool has_fallback = false, is_moving = false;
  target.cpu_time(cpu);
  for (int i = 0; i < kTries; i++) {
    if (!target.read(position, version)) continue;
    if (position.until || !has_fallback) fallback = position.node;
    has_fallback = true;
    if (cpu == target.seen_cpu && version == target.seen_version) {
      node = target.seen_node;  // it has not run since then
      return true;
    }
    if (find_node(target, position, node)) {
      target.seen_cpu = cpu, target.seen_version = version, target.seen_node = node;
      return true;
    }
    is_moving = !target.has_version(version);
  }
  if (has_fallback && is_moving) {  // operators change faster than stacks can be read
    node = fallback;  // an operator, if there was one
    return true;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  torn_++;
  return false;
}

// A stack counts if the thread is at the same position before and after it is read. Operators may have
// begun and ended meanwhile: short ones do in most reads, and would never be seen between two of them.
bool Sampler::find_node(const Target& target, const Position& position, NodeId& node) {
  node = position.node;
  if (!position.state) return true;
  StackResult result = reader_.read(position.state, target.thread_id, position.until);
  Position afterward;
  uint32_t version;
  if (result == StackResult::torn || !target.read(afterward, version)) return false;
  if (!(afterward == position)) return false;
  if (position.until && !reader_.has_met_until()) return true;
  node = descend(position);
  return true;
}

KeyId Sampler::key_of(const SampledFrame& frame) {
  Code& code = *frame.description;
  auto [place, is_new] = code.keys.try_emplace(frame.offset, kNoKey);
  if (is_new) {
    uint32_t line = uint32_t(reader_.line_of(frame));
    place->second = collector_.keys.find(Kind::python, code.name, code.file, line);
  }
  return place->second;
}

NodeId Sampler::descend(const Position& position) {
  const auto& frames = reader_.frames();
  size_t depth = 0;
  while (depth < frames.size() && !(frames[depth].description->flags & kBarrier)) depth++;
  NodeId node = position.node;
  KeyId inside = position.inside;
  bool dropped = false;
  while (depth-- > 0) {
    const SampledFrame& frame = frames[depth];
    bool is_module = is_module_call(frame.code);
    KeyId key = is_module ? collector_.known_module(frame.first_argument, inside) : kNoKey;
    if (key != kNoKey) inside = key;
    else if (is_module || frame.description->flags & kHidden) continue;
    else key = key_of(frame);
    node = collector_.tree.child(node, key, dropped);
  }
  return node;
}

void Sampler::count(Target& target, uint64_t now, NodeId node, bool is_cpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (target.has_ended) return;
  uint64_t& last = is_cpu ? target.last_cpu : target.last_real;
  Metric metric = is_cpu ? Metric::sampled_cpu : Metric::sampled_real;
  if (now <= last) return;
  figures_[uint64_t(metric) << 32 | node].add(now - last);
  last = now;
  target.last_node = node;
  if (!is_cpu) return;
  HardwareCounters::Reading readings[HardwareCounters::kMost];
  for (int i = 0, found = target.counters.read(readings); i < found; i++)
    figures_[uint64_t(readings[i].metric) << 32 | node].add(readings[i].value);
}

// -- other threads

std::shared_ptr<Target> Sampler::add_this_thread(NodeId root_node) {
  auto target = std::make_shared<Target>(root_node, rates_.counters);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_stopping_) targets_.push_back(target);
  return target;
}

// The time since the last sample counts at its position.
void Sampler::remove(Target& target) {
  uint64_t cpu = 0, real = nanoseconds();
  if (rates_.cpu && target.cpu_time(cpu)) count(target, cpu, target.last_node, true);
  if (rates_.real) count(target, real, target.last_node, false);
  std::lock_guard<std::mutex> lock(mutex_);
  target.has_ended = true;
  std::erase_if(targets_, [&](auto& one) { return one.get() == &target; });
}

void Sampler::add_figures(std::unordered_map<uint64_t, Stat>& figures) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [place, stat] : figures_) figures[place].add(stat);
}

uint64_t Sampler::torn() {
  std::lock_guard<std::mutex> lock(mutex_);
  return torn_;
}

std::string why_no_frames() {
  if (kReadsFrames) return "";
  return "samples show operators without Python frames: stepscope does not know how Python " +
         std::string(PY_VERSION) + " stores its frames";
}

}  // namespace stepscope
