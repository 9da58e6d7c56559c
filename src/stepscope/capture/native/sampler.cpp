#include "sampler.h"

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "collector.h"
#include "places.h"

namespace stepscope {

static SampleRates rates;

// -- hardware counters

struct Event {
  uint32_t type;
  uint64_t config;
  Metric metric;
};
// The first leads the group: every system counts it.
static const Event kEvents[kCounters] = {
    {PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, Metric::page_faults},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, Metric::cycles},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS, Metric::instructions},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, Metric::cache_misses},
};

static int open_counter(const Event& event, int group) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.exclude_kernel = 1;  // what an ordinary user may count
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_GROUP;
  return int(syscall(SYS_perf_event_open, &attributes, 0, -1, group, PERF_FLAG_FD_CLOEXEC));
}

static void open_counters(Samples& samples) {
  for (const Event& event : kEvents) {
    int counter = open_counter(event, samples.counters);
    if (counter < 0) continue;
    if (samples.counters < 0) samples.counters = counter;
    samples.metrics[samples.counted++] = uint8_t(event.metric);
  }
}

std::string counters_missing() {
  int counter = open_counter(kEvents[1], -1);
  if (counter >= 0) {
    close(counter);
    return "";
  }
  if (errno == EACCES || errno == EPERM)
    return "no permission for hardware counters (see /proc/sys/kernel/perf_event_paranoid, or the "
           "container's seccomp profile)";
  if (errno == ENOENT || errno == EOPNOTSUPP || errno == ENODEV)
    return "this machine gives us no hardware counters, as many virtual machines";
  return std::string("perf_event_open failed: ") + strerror(errno);
}

// -- in the handler: only what is allowed there

static constexpr int kDeepest = 160;
static constexpr size_t kLongestFile = 240, kLongestName = 120;

// A record: its size, the context it begins at, its figures, and its frames, outermost first. A
// frame is a key, or where that is not known yet kNoKey, a line, and two texts.
class Writer {
 public:
  explicit Writer(Samples& samples) : samples_(samples) {}
  template <class T>
  void put(T value) {
    bytes(&value, sizeof value);
  }
  void bytes(const void* from, size_t size) {
    if (used_ + size > sizeof scratch_) return void(fits_ = false);
    memcpy(scratch_ + used_, from, size);
    used_ += size;
  }
  void text(PyObject* object, size_t longest) {
    const char* start = "?";
    size_t size = 1;
    if (object && PyUnicode_Check(object) && PyUnicode_IS_COMPACT_ASCII(object)) {
      start = reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(object));
      size = size_t(PyUnicode_GET_LENGTH(object));
    }
    if (size > longest) start += size - longest, size = longest;
    put(uint16_t(size));
    bytes(start, size);
  }
  void commit() {
    uint64_t written = samples_.written.load(std::memory_order_relaxed);
    uint64_t room = Samples::kRoom - (written - samples_.read.load(std::memory_order_acquire));
    if (!fits_ || room < used_ + 4) return void(samples_.lost.fetch_add(1));
    uint32_t size = uint32_t(used_);
    copy(written, &size, 4);
    copy(written + 4, scratch_, used_);
    samples_.written.store(written + 4 + used_, std::memory_order_release);
  }

 private:
  void copy(uint64_t at, const void* from, size_t size) {
    for (size_t i = 0; i < size; i++)
      samples_.buffer[(at + i) % Samples::kRoom] = static_cast<const char*>(from)[i];
  }
  Samples& samples_;
  char scratch_[16384];
  size_t used_ = 0;
  bool fits_ = true;
};

static void put_unknown(Writer& writer, Frame* frame, uintptr_t position) {
  PyCodeObject* code = code_of(frame);
  if (!code || !PyCode_Check(code)) return;
  writer.put(kNoKey);
  writer.put(uint32_t(line_of(code, position)));
  writer.text(code->co_filename, kLongestFile);
#if PY_VERSION_HEX >= 0x030B0000
  writer.text(code->co_qualname, kLongestName);
#else
  writer.text(code->co_name, kLongestName);
#endif
}

// A signal may come while Python returns from a function: it gives the stack's last block back to
// the system before it lets go of the frame in it. Where that cannot be asked all is taken for there.
static bool is_there(Frame* frame) {
  char copy[sizeof(Frame)];
  iovec here{copy, sizeof copy}, there{frame, sizeof copy};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) >= 0 || errno != EFAULT;
}

static bool has_frames() {
  PyThreadState* state = kReadsFrames ? PyGILState_GetThisThreadState() : nullptr;
  Frame* frame = state ? top_frame(state) : nullptr;
  return frame && is_there(frame);
}

static void put_frames(Writer& writer, Thread& thread) {
  Entry* top = thread.top;
  Frame* until = top ? top->frame : nullptr;
  Frame* frames[kDeepest];
  int depth = 0;
  for (Frame* f = innermost(); f && f != until && depth < kDeepest; f = outer(f)) {
    PlaceKey* place = thread.places.find(position_of(f));
    if (place && place->flags & kBarrier) break;
    frames[depth++] = f;
  }
  KeyId inside = top ? top->inside : kNoKey;
  while (depth-- > 0) {
    Frame* frame = frames[depth];
    KeyId module = known_module(thread, frame, inside);
    if (module != kNoKey) inside = module;
    PlaceKey* place = thread.places.find(position_of(frame));
    if (module != kNoKey) writer.put(module);
    else if (is_module_call(frame) || (place && place->flags & kHidden)) continue;
    else if (place) writer.put(place->key);
    else put_unknown(writer, frame, position_of(frame));
  }
}

static void put_figure(Writer& writer, uint8_t metric, uint64_t value) {
  writer.put(metric);
  writer.put(value);
}

static void put_figures(Writer& writer, Samples& samples, int which, uint64_t interval) {
  uint64_t found[1 + kCounters];
  ssize_t expected = ssize_t(sizeof(uint64_t)) * (1 + samples.counted);
  bool has_counters = !which && samples.counters >= 0 &&
                      read(samples.counters, found, sizeof found) == expected;
  writer.put(uint8_t(1 + (has_counters ? samples.counted : 0)));
  put_figure(writer, uint8_t(which ? Metric::sampled_real : Metric::sampled_cpu), interval);
  for (int i = 0; has_counters && i < samples.counted; i++) {
    put_figure(writer, samples.metrics[i], found[1 + i] - samples.last_counters[i]);
    samples.last_counters[i] = found[1 + i];
  }
}

static const clockid_t kClocks[2] = {CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC};

static void take(Thread& thread, int which) {
  Samples& samples = *thread.samples;
  uint64_t now = nanoseconds(kClocks[which]);
  uint64_t interval = now - samples.last[which];
  samples.last[which] = now;
  Writer writer(samples);
  Entry* top = thread.top;
  bool is_placed = top && !top->is_pending;
  writer.put(is_placed ? top->node : thread.ground->node);
  put_figures(writer, samples, which, interval);
  // In the middle of a callback of ours the tables are not to be read.
  bool is_quiet = !(thread.turn.load(std::memory_order_relaxed) & 1);
  bool is_alone = !top || (is_placed && !top->encloses);
  if (is_quiet && is_alone && has_frames() && (!top || top->is_annotation || innermost() != top->frame) &&
      thread.collector.options.sources & kPython)
    put_frames(writer, thread);
  writer.commit();
}

static void on_signal(int, siginfo_t* info, void*) {
  int reason = errno;
  if (Thread* thread = sampled_thread()) {
    thread->samples->is_handling.store(true);
    if (active.load() == &thread->collector) take(*thread, info->si_value.sival_int);
    thread->samples->is_handling.store(false);
  }
  errno = reason;
}

// -- outside

std::string prepare_sampling(const SampleRates& wanted) {
  rates = wanted;
  if (!rates.cpu && !rates.real) return "";
  struct sigaction before {};
  sigaction(SIGPROF, nullptr, &before);
  bool is_free = before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN;
  if (!is_free && before.sa_sigaction != on_signal) {
    rates = SampleRates();
    return "another profiler of this process uses SIGPROF, so nothing is sampled";
  }
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(SIGPROF, &action, nullptr);
  return "";
}

static void start_timer(Thread& thread, int which, unsigned rate) {
  Samples& samples = *thread.samples;
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event.sigev_value.sival_int = which;
  event._sigev_un._tid = pid_t(thread.system_id);
  samples.last[which] = nanoseconds(kClocks[which]);
  if (!rate || timer_create(kClocks[which], &event, &samples.timers[which])) return;
  samples.has_timer[which] = true;
  itimerspec every{};
  every.it_interval.tv_sec = rate == 1 ? 1 : 0;
  every.it_interval.tv_nsec = rate == 1 ? 0 : long(1000000000 / rate);
  every.it_value = every.it_interval;
  timer_settime(samples.timers[which], 0, &every, nullptr);
}

void sample_thread(Thread& thread) {
  if (!rates.cpu && !rates.real) return;
  thread.samples = std::make_unique<Samples>();
  if (rates.counters) open_counters(*thread.samples);
  start_timer(thread, 0, rates.cpu);
  start_timer(thread, 1, rates.real);
}

Samples::~Samples() {
  if (counters >= 0) close(counters);
}

void end_sampling(Thread& thread) {
  if (!thread.samples) return;
  for (int which = 0; which < 2; which++)
    if (thread.samples->has_timer[which]) timer_delete(thread.samples->timers[which]);
  thread.samples->has_timer[0] = thread.samples->has_timer[1] = false;
}

// -- the reader of the buffers

namespace {

class Reader {
 public:
  Reader(const Samples& samples, uint64_t at) : samples_(samples), at_(at) {}
  template <class T>
  T get() {
    T value;
    bytes(&value, sizeof value);
    return value;
  }
  std::string text() {
    std::string text(get<uint16_t>(), ' ');
    bytes(text.data(), text.size());
    return text;
  }
  uint64_t at() const { return at_; }

 private:
  void bytes(void* to, size_t size) {
    for (size_t i = 0; i < size; i++)
      static_cast<char*>(to)[i] = samples_.buffer[(at_ + i) % Samples::kRoom];
    at_ += size;
  }
  const Samples& samples_;
  uint64_t at_;
};

KeyId read_key(Collector& collector, Reader& reader) {
  KeyId key = reader.get<KeyId>();
  if (key != kNoKey) return key;
  uint32_t line = reader.get<uint32_t>();
  std::string file = reader.text(), name = reader.text();
  return collector.keys.find(Kind::python, name, file, line);
}

void count_sample(Collector& collector, Reader& reader, uint64_t end) {
  NodeId node = reader.get<NodeId>();
  std::pair<uint8_t, uint64_t> figures[1 + kCounters];
  int count = reader.get<uint8_t>();
  for (int i = 0; i < count; i++) {
    figures[i].first = reader.get<uint8_t>();
    figures[i].second = reader.get<uint64_t>();
  }
  bool dropped = false;
  while (reader.at() < end) node = collector.tree.child(node, read_key(collector, reader), dropped);
  for (int i = 0; i < count; i++)
    collector.ended[uint64_t(figures[i].first) << 32 | node].add(figures[i].second);
}

}  // namespace

void drain(Collector& collector, Thread& thread) {
  if (!thread.samples) return;
  Samples& samples = *thread.samples;
  uint64_t at = samples.read.load(), end = samples.written.load(std::memory_order_acquire);
  while (at < end) {
    Reader reader(samples, at);
    uint64_t next = at + 4 + reader.get<uint32_t>();
    count_sample(collector, reader, next);
    samples.read.store(at = next, std::memory_order_release);
  }
  collector.dropped_samples += samples.lost.exchange(0);
}

}  // namespace stepscope
