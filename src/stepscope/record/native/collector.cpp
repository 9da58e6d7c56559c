#include "collector.h"

#include <pthread.h>
#include <unistd.h>

#include <linux/membarrier.h>
#include <sys/syscall.h>

#include <algorithm>

#include "monitor.h"
#include "native_frames.h"
#include "places.h"

namespace stepscope {

const bool steady = counter_is_steady();
std::atomic<Collector*> active{nullptr};
static std::atomic<uint32_t> sessions{0};
// `current_thread` is valid only if its session is the active one.
static __thread Thread* current_thread = nullptr;
static __thread uint32_t current_session = 0;
static __thread bool is_exiting = false;

Collector::Collector(const Options& options)
    : options(options), session(++sessions), process(getpid()), tree(options.limit) {
  started_ticks = ticks();
  started_ns = nanoseconds();
  started_unix_ns = nanoseconds(CLOCK_REALTIME);
}

void Collector::add(NodeId node, Metric metric, uint64_t value) {
  std::lock_guard<std::mutex> lock(mutex);
  ended[uint64_t(metric) << 32 | node].add(value);
}

void Collector::remember_module(const void* module, KeyId inside, KeyId key, uint32_t age) {
  std::lock_guard<std::mutex> lock(modules_mutex_);
  if (modules_age_ != age) modules_.clear();
  modules_age_ = age;
  modules_[call_of(module, inside)] = key;
}

KeyId Collector::known_module(const void* module, KeyId inside) {
  std::lock_guard<std::mutex> lock(modules_mutex_);
  if (modules_age_ != module_age.load()) return kNoKey;
  auto found = modules_.find(call_of(module, inside));
  return found == modules_.end() ? kNoKey : found->second;
}

Ring* Collector::ring_of(uint64_t framework_id) {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& [id, ring] : rings)
    if (id == framework_id) return ring;
  return nullptr;
}

// -- threads

void add_figures(Thread& thread, std::unordered_map<uint64_t, Stat>& figures) {
  // In reverse order: children are read before their parents, whose time is never less.
  for (uint32_t i = thread.slot_count.load(std::memory_order_acquire); i-- > 0;) {
    Slot& slot = thread.chunks[i / Thread::kChunk].load()[i % Thread::kChunk];
    if (slot.time.count) figures[slot.node].add(slot.time);
  }
  std::lock_guard<std::mutex> lock(thread.extra_mutex);
  for (auto& [place, stat] : thread.extra) figures[place].add(stat);
}

constexpr size_t kEndedRings = 64;

static void leave(Thread* thread) {
  Collector* collector = active.load();
  if (!collector || collector->session != current_session) return;  // its metrics were written already
  if (thread->target) collector->sampler->remove(*thread->target);
  current_thread = nullptr;
  std::lock_guard<std::mutex> lock(collector->mutex);
  add_figures(*thread, collector->ended);
  collector->ended_totals.add(thread->totals);
  auto& threads = collector->threads;
  threads.erase(std::find(threads.begin(), threads.end(), thread));
  if (thread->ring) collector->ended_rings.push_back(std::move(thread->ring));
  if (collector->ended_rings.size() > kEndedRings) {
    Ring* oldest = collector->ended_rings.front().get();
    auto& rings = collector->rings;
    for (size_t i = 0; i < rings.size(); i++)
      if (rings[i].second == oldest) rings.erase(rings.begin() + long(i));
    collector->ended_rings.erase(collector->ended_rings.begin());
  }
  delete thread;
}

struct ThreadExit {
  Thread* thread = nullptr;
  ~ThreadExit() {
    is_exiting = true;
    if (thread) leave(thread);
  }
};
static thread_local ThreadExit thread_exit;

// Publishes this thread's position to the sampler: an operator, or Python below the thread's node.
static void publish(Thread& thread) {
  if (!thread.target) return;
  Entry* top = thread.top;
  Entry* placed = top;
  while (placed && placed->is_pending) placed = placed->below;
  bool sees_python = thread.collector.options.sources & kPython &&
                     (!top || (placed == top && !top->encloses));
  thread.target->publish({sees_python ? python_state() : nullptr, top ? top->frame : nullptr,
                          placed ? placed->node : thread.root_slot->node,
                          placed ? placed->inside : kNoKey});
}

static Thread* enter(Collector* collector) {
  Thread* thread = new Thread(*collector);
  thread->framework_id = 0;
  {
    std::lock_guard<std::mutex> lock(collector->mutex);
    collector->threads.push_back(thread);
  }
  thread_exit.thread = thread;
  current_session = collector->session;
  current_thread = thread;
  if (collector->sampler) thread->target = collector->sampler->add_this_thread(thread->root_slot->node);
  publish(*thread);
  return thread;
}

Thread* this_thread() {
  Collector* collector = active.load(std::memory_order_relaxed);
  if (!collector || is_exiting) return nullptr;
  if (current_thread && current_session == collector->session) return current_thread;
  return enter(collector);
}

// -- operators

constexpr size_t kMostNames = 1u << 14;

static Name* new_name(Thread& thread, const char* text, Kind kind, uint64_t hash) {
  bool is_kept = thread.name_store.size() < kMostNames;
  if (is_kept) thread.name_store.push_back(std::make_unique<Name>());
  Name* name = is_kept ? thread.name_store.back().get() : &thread.passing;
  name->text = text;
  name->is_engine = !name->text.rfind("autograd::engine::evaluate_function: ", 0);
  if (is_of_compiler(name->text)) kind = Kind::annotation;
  name->key = thread.collector.keys.find(kind, plain_name(thread.collector, name->text, kind));
  if (is_kept) thread.texts.put(hash, name);
  return name;
}

static Name* name_of(Thread& thread, const char* text, Kind kind) {
  uint64_t address = uint64_t(text) << 1 | uint64_t(kind == Kind::annotation);
  Name** known = thread.names.find(address);
  if (known && !strcmp((*known)->text.c_str(), text)) return *known;  // an address may be reused
  uint64_t hash = 1469598103934665603ull ^ uint64_t(kind);
  for (const char* c = text; *c; c++) hash = (hash ^ uint8_t(*c)) * 1099511628211ull;
  Name** same = thread.texts.find(hash);
  bool is_same = same && (*same)->text == text;
  Name* name = is_same ? *same : new_name(thread, text, kind, hash);
  if (known) *known = name;
  else if (thread.names.size() < kMostNames) thread.names.put(address, name);
  return name;
}

static void set_slot(Entry* entry, Slot* slot) {
  entry->is_pending = false;
  entry->slot = slot;
  entry->node = slot->node;
}

static void resolve_pending(Thread& thread, Entry* entry) {
  if (!entry || !entry->is_pending) return;
  resolve_pending(thread, entry->below);
  Slot* parent = parent_slot(thread, entry->below, entry->frame);
  entry->inside = thread.inside;
  set_slot(entry, thread.child(parent, entry->key));
}

// Attaches a backward operator and its engine's entry to the forward operator; false if unknown.
static bool attach_to_forward(Thread& thread, Entry* entry, const Operator& op) {
  thread.totals.backward++;
  Ring* ring = op.forward_id == thread.framework_id && thread.ring
                   ? thread.ring.get()
                   : thread.collector.ring_of(op.forward_id);
  NodeId forward = ring ? ring->find(uint64_t(op.sequence)) : kRoot;
  if (forward == kRoot) {
    thread.totals.missed++;
    return false;
  }
  thread.totals.linked++;
  Slot* parent = thread.of_node(forward);
  Entry* engine = thread.top;
  if (engine && engine->is_pending) {
    set_slot(engine, thread.child(parent, engine->key | kBackward));
    set_slot(entry, thread.child(engine->slot, entry->key));
  } else {
    set_slot(entry, thread.child(parent, entry->key | kBackward));
  }
  return true;
}

static void unlink_ended(Thread& thread) {
  while (thread.top && thread.top->has_ended.load(std::memory_order_acquire)) {
    Entry* ended = thread.top;
    thread.top = ended->below;
    ended->is_linked.store(false, std::memory_order_release);
  }
}

static void remember_forward(Thread& thread, Entry* entry, const Operator& op,
                             uint64_t (*framework_thread)()) {
  if (!thread.ring) {
    thread.ring = std::make_unique<Ring>();
    thread.framework_id = framework_thread();
    std::lock_guard<std::mutex> lock(thread.collector.mutex);
    thread.collector.rings.emplace_back(thread.framework_id, thread.ring.get());
  }
  resolve_pending(thread, entry);
  thread.ring->put(uint64_t(op.sequence), entry->slot->node);
}

static void place(Thread& thread, Entry* entry, const Operator& op) {
  if (op.is_backward && op.sequence >= 0 && attach_to_forward(thread, entry, op)) return;
  resolve_pending(thread, thread.top);
  Slot* parent = parent_slot(thread, thread.top, entry->frame);
  entry->inside = thread.inside;
  if (thread.collector.options.sources & kNative && !thread.is_known(parent, entry->key))
    attach_below_native_frames(thread, parent, entry);
  set_slot(entry, thread.child(parent, entry->key));
}

static void emit_begin(Thread& thread, Entry* entry, const char* name) {
  uint64_t entered = ticks();
  emit({Domain::op, Phase::begin, name, 0, 0, 0, entry->node});
  thread.totals.own += ticks() - entered;  // a watcher's time is not part of the operator
}

static void emit_end(Thread& thread, Entry* entry) {
  std::string name = thread.collector.keys.text(entry->key).name;
  thread.toggle_busy();
  emit({Domain::op, Phase::end, name.c_str(), 0, 0, 0, entry->node});
  thread.toggle_busy();
}

void begin(Entry* entry, const Operator& op, uint64_t (*framework_thread)()) {
  uint64_t entered = ticks();
  entry->thread = 0;
  Thread* thread = this_thread();
  if (!thread || thread->is_busy) return;
  thread->toggle_busy();
  unlink_ended(*thread);
  if (thread->top && thread->top->encloses) return thread->toggle_busy();
  Name* name = op.key == kNoKey ? name_of(*thread, op.name, op.kind) : nullptr;
  entry->thread = thread->serial;
  entry->session = thread->collector.session;
  entry->key = name ? name->key : op.key;
  entry->stack = entry;
  entry->is_annotation = op.kind == Kind::annotation || op.is_from_python;
  entry->encloses = op.encloses;
  entry->has_ended.store(false, std::memory_order_relaxed);
  entry->frame = thread->collector.options.sources & kPython ? innermost() : nullptr;
  if (entry->is_annotation) anchor(*thread, entry);
  entry->position = entry->frame ? position_of(entry->frame) : 0;
  entry->below = thread->top;
  entry->is_pending = name && name->is_engine;
  entry->slot = nullptr;
  entry->inside = kNoKey;
  if (!entry->is_pending) place(*thread, entry, op);
  if (op.sequence >= 0 && !op.is_backward)
    remember_forward(*thread, entry, op, framework_thread);
  thread->top = entry;
  entry->is_linked.store(true, std::memory_order_relaxed);
  entry->measures_cpu = op.measures_cpu;
  if (op.measures_cpu) entry->cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  entry->start = ticks();
  thread->totals.own += entry->start - entered;
  entry->own = thread->totals.own;
  publish(*thread);
  thread->toggle_busy();
  if (is_watched(Domain::op)) emit_begin(*thread, entry, op.name);
}

static void unlink(Thread& thread, Entry* entry) {
  if (thread.top == entry) {
    thread.top = entry->below;
  } else {
    for (Entry* above = thread.top; above; above = above->below) {
      if (above->below != entry) continue;
      above->below = entry->below;
      break;
    }
  }
  entry->is_linked.store(false, std::memory_order_release);
}

void add_extra(Thread& thread, Metric metric, NodeId node, uint64_t value) {
  std::lock_guard<std::mutex> lock(thread.extra_mutex);
  thread.extra[uint64_t(metric) << 32 | node].add(value);
}

static void count_cpu(Thread& thread, Entry* entry) {
  uint64_t now = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  resolve_pending(thread, entry);
  add_extra(thread, Metric::thread_cpu, entry->node, now - entry->cpu_ns);
}

void end(Entry* entry) {
  uint64_t ended = ticks();
  Thread* thread = this_thread();
  if (!thread || !entry->thread || entry->session != thread->collector.session) return;
  thread->toggle_busy();
  if (entry->thread == thread->serial) {
    if (entry->measures_cpu) count_cpu(*thread, entry);
    uint64_t time = ended - entry->start - (thread->totals.own - entry->own);
    resolve_pending(*thread, entry);
    if (is_watched(Domain::op)) emit_end(*thread, entry);
    entry->slot->time.add(time);
    unlink(*thread, entry);
    publish(*thread);
    thread->totals.operators++;
    if (!thread->top) thread->totals.time += time;
    thread->totals.own += ticks() - ended;
  } else if (!entry->is_pending) {  // begun in another thread, whose collector time is unknown here
    thread->of_node(entry->node)->time.add(ended - entry->start);
    thread->totals.operators++;
    entry->has_ended.store(true, std::memory_order_release);
  }
  thread->toggle_busy();
}

// -- start and stop

Slot* current_slot(Thread* thread) {
  if (!thread) return nullptr;
  bool is_outside = !(thread->activity.load(std::memory_order_relaxed) & 1);
  if (is_outside) thread->toggle_busy();
  Entry* top = thread->top;
  while (top && top->is_pending) top = top->below;  // its context is not known yet
  if (top && top->encloses) {
    if (is_outside) thread->toggle_busy();
    return top->slot;
  }
  Frame* frame = thread->is_busy ? thread->interrupted : innermost();
  if (!(thread->collector.options.sources & kPython)) frame = nullptr;
  Slot* slot = parent_slot(*thread, top, frame);
  if (is_outside) thread->toggle_busy();
  return slot;
}

void add_call(Thread& thread, const Spent& spent) {
  Slot* slot = current_slot(&thread);
  thread.toggle_busy();
  for (KeyId key : spent.path) slot = thread.child(slot, key);
  slot->time.add(spent.time);
  bool is_outermost = !thread.top || !thread.top->encloses;  // else its CPU time is counted there
  if (spent.cpu_ns && is_outermost)
    add_extra(thread, Metric::thread_cpu, slot->node, spent.cpu_ns);
  if (!thread.top) thread.totals.time += spent.time;
  thread.totals.operators++;
  thread.toggle_busy();
}

double nanoseconds_per_tick(const Collector& collector) {
  if (!steady) return 1;
  uint64_t ns = nanoseconds() - collector.started_ns, passed = ticks() - collector.started_ticks;
  return passed ? double(ns) / double(passed) : 1;
}

static void start_sampling(Collector& collector) {
  auto sampler = std::make_unique<Sampler>(collector, collector.options.rates);
  std::string problem = sampler->start();
  if (!problem.empty()) return collector.notes.push_back("nothing is sampled: " + problem);
  collector.sampler = sampler.release();
  std::string missing = why_no_frames();
  if (!missing.empty()) collector.notes.push_back(missing);
}

Collector* start(const Options& options) {
  Collector* collector = new Collector(options);
  if (options.rates.cpu || options.rates.real) start_sampling(*collector);
  active.store(collector);
  return collector;
}

static bool is_at_work(Thread& thread) { return &thread != current_thread && thread.activity.load() & 1; }

// Wait until no thread is in a callback that began while `collector` was active.
static void wait_for_callbacks(Collector& collector) {
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0);
  std::lock_guard<std::mutex> lock(collector.mutex);
  for (Thread* thread : collector.threads)
    for (int tries = 0; is_at_work(*thread) && tries < 1000; tries++) usleep(100);
}

void stop() {
  Collector* collector = active.exchange(nullptr);
  if (!collector) return;
  if (collector->flusher) collector->flusher->stop();
  wait_for_callbacks(*collector);
  if (collector->sampler) collector->sampler->stop();
}

void release(Collector* collector) {
  if (collector->process != getpid()) return;  // belongs to the parent of this fork: leave it
  delete collector->flusher;
  delete collector->sampler;
  for (Thread* thread : collector->threads) delete thread;
  delete collector;
}

// Only this thread is left, and other threads may have held locks: leave everything as it is.
void forget_after_fork() {
  active.store(nullptr);
  current_thread = nullptr;
  thread_exit.thread = nullptr;
}

__attribute__((constructor)) static void watch_forks() {
  syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0);
  pthread_atfork(nullptr, nullptr, forget_after_fork);
}

}  // namespace stepscope
