// Samples of instructions with the stall reason of their warp: CUPTI's PC Sampling API.
//
// Kernels are serialized, so that every record has the correlation number of its launch. CUPTI's
// threads decode the device's data into one buffer per context (`decoded`). After each call and at
// the end, the collector fetches from there into another one (`fetched`). It never fetches from a
// separate thread: CUPTI then copies names of kernels whose module may be unloading.
//
// Layouts and numbers are those of cupti_pcsampling.h, which is the same in CUDA 12.4, 12.6, 12.8,
// 13.0 and 13.5. Before 12.4, records are shorter and do not have the launch.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cupti.h"
#include "device.h"

namespace stepscope {
namespace {

constexpr CuptiResult kOutOfMemory = 8;
constexpr uint32_t kFirstVersion = 22;  // CUPTI_API_VERSION of CUDA 12.4

struct StallCount {  // CUpti_PCSamplingStallReason
  uint32_t reason, samples;
};
struct Record {  // CUpti_PCSamplingPCData
  size_t size;
  uint64_t cubin, offset;
  uint32_t function, pad;
  // Owned by CUPTI, possibly shared with records of another kind, so never freed.
  const char* symbol;
  size_t stall_count;
  StallCount* stalls;
  uint32_t launch;
};
struct Buffer {  // CUpti_PCSamplingData
  size_t size, most;
  uint64_t samples, dropped;
  size_t count, remaining;
  uint64_t range;
  Record* records;
  uint64_t foreign;  // samples of kernels of other programs, without records
  uint8_t is_full;   // the device's buffer
};
enum Kind : uint32_t { kScratchBytes = 3, kDeviceBytes = 4, kMode = 5, kDecoded = 8 };
constexpr uint32_t kSerialized = 2;
struct Attribute {  // CUpti_PCSamplingConfigurationInfo
  uint32_t kind;
  CuptiResult status;
  union {
    uint64_t data[3];
    uint32_t number;
    size_t bytes;
    void* buffer;
  };
};
struct Where {  // the first fields of CUpti_PCSampling…Params; all fields of Enable and Disable
  size_t size;
  void* none;
  void* context;
};
struct Attributes : Where {
  size_t count;
  Attribute* list;
};
struct Fetch : Where {
  Buffer* buffer;
};
struct ReasonCount : Where {
  size_t* count;
};
struct ReasonNames : Where {
  size_t count;
  uint32_t* numbers;
  char** names;
};
struct CubinCode {  // CUpti_GetCubinCrcParams
  size_t size, cubin_size;
  const void* cubin;
  uint64_t code;
};
struct Initialize {  // CUpti_Profiler_Initialize_Params
  size_t size;
  void* none;
};
static_assert(sizeof(StallCount) == 8 && sizeof(Record) == 64 && sizeof(Buffer) == 80);
static_assert(offsetof(Record, offset) == 16 && offsetof(Record, symbol) == 32);
static_assert(offsetof(Record, stalls) == 48 && offsetof(Record, launch) == 56);
static_assert(offsetof(Buffer, dropped) == 24 && offsetof(Buffer, remaining) == 40);
static_assert(offsetof(Buffer, records) == 56 && offsetof(Buffer, is_full) == 72);
static_assert(sizeof(Attribute) == 32 && offsetof(Attribute, data) == 8);
static_assert(sizeof(Where) == 24 && sizeof(Attributes) == 40 && sizeof(Fetch) == 32);
static_assert(sizeof(ReasonCount) == 32 && sizeof(ReasonNames) == 48 && sizeof(Initialize) == 16);
static_assert(sizeof(CubinCode) == 32 && offsetof(CubinCode, code) == 24);
constexpr size_t kNameBytes = 128;  // CUPTI_STALL_REASON_STRING_SIZE

struct Library {
  CuptiResult (*version)(uint32_t*);
  CuptiResult (*initialize)(Initialize*);
  CuptiResult (*enable)(Where*);
  CuptiResult (*disable)(Where*);
  CuptiResult (*configure)(Attributes*);
  CuptiResult (*fetch)(Fetch*);
  CuptiResult (*count_reasons)(ReasonCount*);
  CuptiResult (*name_reasons)(ReasonNames*);
  CuptiResult (*code_of)(CubinCode*);  // null where instructions have no lines
} api;

// -- one context

constexpr size_t kRecords = 1u << 14;
constexpr int kMostFetches = 1000;
constexpr size_t kDeviceBuffer = 128u << 20, kScratchBuffer = 16u << 20;
constexpr unsigned kDecodeMicroseconds = 200'000;  // twice what CUPTI's threads sleep

// Records with room for all stall reasons.
class Pool {
 public:
  void reserve(size_t reasons) {
    reasons_ = reasons;
    records_.resize(kRecords);
    stalls_.resize(kRecords * reasons);
    buffer.count = kRecords;
    empty();
  }
  void empty() {
    size_t used = std::min(buffer.count, kRecords);
    buffer = {sizeof(Buffer), kRecords, 0, 0, 0, 0, 0, records_.data(), 0, 0};
    for (size_t i = 0; i < used; i++) {
      records_[i] = {};
      records_[i].size = sizeof(Record);
      records_[i].stalls = &stalls_[i * reasons_];
    }
  }
  Buffer buffer{};

 private:
  size_t reasons_ = 0;
  std::vector<Record> records_;
  std::vector<StallCount> stalls_;
};

struct Reason {
  std::string name;
  bool is_latency;
};

struct Sampled {
  explicit Sampled(void* context) : context(context) {}
  void* const context;
  std::mutex mutex;  // guards what follows
  bool is_on = false;
  std::unordered_map<uint32_t, Reason> reasons;
  std::vector<Attribute> attributes;
  Pool decoded, fetched;
};

std::atomic<bool> is_sampling{false};
std::mutex contexts_mutex;
std::unordered_map<void*, std::shared_ptr<Sampled>>& contexts() {
  static auto* all = new std::unordered_map<void*, std::shared_ptr<Sampled>>;
  return *all;
}
// This thread is in a call of the collector: calls that CUPTI makes are not the program's.
thread_local bool is_within = false;
struct Within {
  Within() { is_within = true; }
  ~Within() { is_within = false; }
};

// NVIDIA's name without the common prefix. The suffix means that nothing was issued in these cycles;
// the reason without it counts these samples and all others.
Reason reason_of(std::string name) {
  const std::string shared = "smsp__pcsamp_warps_issue_stalled_", latency = "_not_issued";
  if (!name.compare(0, shared.size(), shared)) name.erase(0, shared.size());
  bool is_latency = name.size() > latency.size() &&
                    !name.compare(name.size() - latency.size(), latency.size(), latency);
  if (is_latency) name.resize(name.size() - latency.size());
  return {name, is_latency};
}

CuptiResult learn_reasons(Sampled& sampled) {
  size_t count = 0;
  ReasonCount counted{{sizeof counted, nullptr, sampled.context}, &count};
  CuptiResult result = api.count_reasons(&counted);
  if (result != kSuccess) return result;
  std::vector<uint32_t> numbers(count);
  std::vector<char> text(count * kNameBytes);
  std::vector<char*> names(count);
  for (size_t i = 0; i < count; i++) names[i] = &text[i * kNameBytes];
  ReasonNames named{{sizeof named, nullptr, sampled.context}, count, numbers.data(), names.data()};
  result = api.name_reasons(&named);
  if (result != kSuccess) return result;
  for (size_t i = 0; i < count; i++) {
    names[i][kNameBytes - 1] = 0;
    sampled.reasons[numbers[i]] = reason_of(names[i]);
  }
  sampled.decoded.reserve(count);
  sampled.fetched.reserve(count);
  return kSuccess;
}

CuptiResult configure(Sampled& sampled) {
  auto attribute = [](Kind kind) { return Attribute{kind, kSuccess, {{0, 0, 0}}}; };
  auto &list = sampled.attributes;
  for (Kind kind : {kMode, kDecoded, kDeviceBytes, kScratchBytes}) list.push_back(attribute(kind));
  list[0].number = kSerialized;
  list[1].buffer = &sampled.decoded.buffer;
  list[2].bytes = kDeviceBuffer;
  list[3].bytes = kScratchBuffer;
  Attributes wanted{{sizeof wanted, nullptr, sampled.context}, list.size(), list.data()};
  CuptiResult result = api.configure(&wanted);
  for (const Attribute& one : list)
    if (result == kSuccess) result = one.status;
  return result;
}

// CUPTI needs two libraries in its own folder, where the loader may not search.
void load_neighbors() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(api.enable), &info) || !info.dli_fname) return;
  std::string path = info.dli_fname;
  std::string folder = path.substr(0, path.rfind('/') + 1);
  for (const char* name : {"libnvperf_target.so", "libnvperf_host.so"})
    if (!folder.empty()) dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
}

// The reason why the context's instructions are not sampled; empty if they are.
std::string enable(Sampled& sampled) {
  load_neighbors();
  Initialize initialize{sizeof initialize, nullptr};
  Where where{sizeof where, nullptr, sampled.context};
  CuptiResult result = api.initialize(&initialize);
  if (result != kSuccess) return cupti_reason("cuptiProfilerInitialize", result);
  result = api.enable(&where);
  if (result != kSuccess) return cupti_reason("cuptiPCSamplingEnable", result);
  sampled.is_on = true;
  result = learn_reasons(sampled);
  if (result == kSuccess) result = configure(sampled);
  if (result == kSuccess) return "";
  api.disable(&where);
  sampled.is_on = false;
  return cupti_reason("the configuration of samples", result);
}

// -- source lines

std::mutex lines_mutex;
std::unordered_map<uint64_t, CubinLines>& lines_by_code() {
  static auto* all = new std::unordered_map<uint64_t, CubinLines>;
  return *all;
}

SourceLine line_of(const std::string& symbol, const Stall& stall) {
  std::lock_guard<std::mutex> lock(lines_mutex);
  auto found = lines_by_code().find(stall.code);
  return found == lines_by_code().end() ? SourceLine() : found->second.find(symbol, stall.offset);
}

// -- samples

void take(Sampled& sampled, const Buffer& buffer) {
  std::map<std::pair<uint32_t, std::string_view>, std::vector<Stall>> kernels;
  for (size_t i = 0; i < buffer.count && i < kRecords; i++) {
    const Record& record = buffer.records[i];
    auto& stalls = kernels[{record.launch, record.symbol ? record.symbol : ""}];
    for (size_t j = 0; j < record.stall_count && j < sampled.reasons.size(); j++) {
      auto reason = sampled.reasons.find(record.stalls[j].reason);
      if (reason == sampled.reasons.end() || !record.stalls[j].samples) continue;
      const auto& [name, is_latency] = reason->second;
      stalls.push_back({&name, record.offset, record.stalls[j].samples, is_latency,
                        record.cubin});
    }
  }
  for (auto& [kernel, stalls] : kernels)
    kernel_sampled(kernel.first, std::string(kernel.second), stalls, line_of);
}

bool has_decoded(const Sampled& sampled) {
  const Buffer& buffer = sampled.decoded.buffer;  // written by CUPTI's threads
  return __atomic_load_n(&buffer.count, __ATOMIC_RELAXED) ||
         __atomic_load_n(&buffer.remaining, __ATOMIC_RELAXED);
}

void fetch(Sampled& sampled) {
  Buffer& buffer = sampled.fetched.buffer;
  for (int times = 0; sampled.is_on && times < kMostFetches; times++) {
    sampled.fetched.empty();
    Fetch wanted{{sizeof wanted, nullptr, sampled.context}, &buffer};
    CuptiResult result = api.fetch(&wanted);
    take(sampled, buffer);
    samples_dropped(buffer.dropped);
    if (buffer.is_full)
      add_note("samples of instructions were lost: the device's sample buffer was full");
    else if (result != kSuccess && result != kOutOfMemory)
      add_note("samples of instructions were lost: " +
                  cupti_reason("cuptiPCSamplingGetData", result));
    if (!buffer.count || (!buffer.remaining && !has_decoded(sampled))) return;
  }
}

void leave(Sampled& sampled) {
  Within within;
  std::lock_guard<std::mutex> lock(sampled.mutex);
  if (!sampled.is_on) return;
  fetch(sampled);
  usleep(kDecodeMicroseconds);  // data that is not decoded before the end may be lost
  fetch(sampled);
  Where where{sizeof where, nullptr, sampled.context};
  api.disable(&where);
  sampled.is_on = false;
  take(sampled, sampled.decoded.buffer);  // data decoded meanwhile
}

std::shared_ptr<Sampled> find(void* context) {
  std::lock_guard<std::mutex> lock(contexts_mutex);
  auto found = contexts().find(context);
  return found == contexts().end() ? nullptr : found->second;
}

}  // namespace

std::string why_no_sampling() {
  uint32_t version = 0;
  if (!(resolve(api.version, "cuptiGetVersion") &&
        resolve(api.initialize, "cuptiProfilerInitialize") &&
        resolve(api.enable, "cuptiPCSamplingEnable") &&
        resolve(api.disable, "cuptiPCSamplingDisable") &&
        resolve(api.configure, "cuptiPCSamplingSetConfigurationAttribute") &&
        resolve(api.fetch, "cuptiPCSamplingGetData") &&
        resolve(api.count_reasons, "cuptiPCSamplingGetNumStallReasons") &&
        resolve(api.name_reasons, "cuptiPCSamplingGetStallReasons")))
    return "a CUPTI library without PC sampling; that of CUDA 12.4 or later is needed";
  CuptiResult result = api.version(&version);
  if (result != kSuccess) return cupti_reason("cuptiGetVersion", result);
  if (version < kFirstVersion)
    return "a CUPTI library (version " + std::to_string(version) +
           ") whose samples do not include their launch; that of CUDA 12.4 (version 22) or later is "
           "needed";
  return "";
}

void start_sampling() {
  resolve(api.code_of, "cuptiGetCubinCrc");
  is_sampling = true;
}

void module_loaded(const void* cubin, size_t size) {
  if (!cubin || !size || !is_sampling || !api.code_of || is_within) return;
  OwnTime own;
  Within within;
  CubinLines lines(static_cast<const uint8_t*>(cubin), size);
  CubinCode code{sizeof code, size, cubin, 0};
  if (lines.empty() || api.code_of(&code) != kSuccess) return;
  std::lock_guard<std::mutex> lock(lines_mutex);
  lines_by_code()[code.code] = std::move(lines);
}

void sample_context(void* context) {
  if (!context || !is_sampling || is_within || find(context)) return;
  auto sampled = std::make_shared<Sampled>(context);
  std::lock_guard<std::mutex> busy(sampled->mutex);  // until it is set up
  {
    std::lock_guard<std::mutex> lock(contexts_mutex);
    if (!is_sampling || !contexts().emplace(context, sampled).second) return;
  }
  OwnTime own;
  Within within;
  std::string problem = enable(*sampled);
  if (!problem.empty()) add_note("instructions are not sampled: " + problem);
}

void fetch_samples(void* context) {
  auto sampled = context && is_sampling && !is_within ? find(context) : nullptr;
  if (!sampled) return;
  std::unique_lock<std::mutex> lock(sampled->mutex, std::try_to_lock);
  if (!lock || !sampled->is_on || !has_decoded(*sampled)) return;
  OwnTime own;
  Within within;
  fetch(*sampled);
}

void leave_context(void* context) {
  std::shared_ptr<Sampled> sampled = find(context);
  if (!sampled || is_within) return;
  leave(*sampled);
  std::lock_guard<std::mutex> lock(contexts_mutex);
  contexts().erase(context);
}

void stop_sampling() {
  std::unordered_map<void*, std::shared_ptr<Sampled>> all;
  {
    std::lock_guard<std::mutex> lock(contexts_mutex);
    is_sampling = false;
    all.swap(contexts());
  }
  for (auto& [context, sampled] : all) leave(*sampled);
}

}  // namespace stepscope
