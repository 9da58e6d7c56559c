#include "hardware_counters.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "collector.h"

namespace stepscope {

namespace {

struct Event {
  uint32_t type;
  uint64_t config;
  Metric metric;
};
// The first leads the group, as every system supports it.
const Event kEvents[HardwareCounters::kMost] = {
    {PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS, Metric::page_faults},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, Metric::cycles},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS, Metric::instructions},
    {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, Metric::cache_misses},
};

int open_counter(const Event& event, int group) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.exclude_kernel = 1;  // allowed for ordinary users
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_GROUP;
  return int(syscall(SYS_perf_event_open, &attributes, 0, -1, group, PERF_FLAG_FD_CLOEXEC));
}

}  // namespace

HardwareCounters::~HardwareCounters() {
  if (group_ >= 0) close(group_);
}

void HardwareCounters::open() {
  for (const Event& event : kEvents) {
    int counter = open_counter(event, group_);
    if (counter < 0) continue;
    if (group_ < 0) group_ = counter;
    metrics_[count_++] = uint32_t(event.metric);
  }
}

int HardwareCounters::read(Reading (&readings)[kMost]) {
  uint64_t found[1 + kMost];
  ssize_t expected = ssize_t(sizeof(uint64_t)) * (1 + count_);
  if (group_ < 0 || ::read(group_, found, sizeof found) != expected) return 0;
  for (int i = 0; i < count_; i++) {
    readings[i] = {metrics_[i], found[1 + i] - last_[i]};
    last_[i] = found[1 + i];
  }
  return count_;
}

std::string why_no_counters() {
  int counter = open_counter(kEvents[1], -1);
  if (counter >= 0) {
    close(counter);
    return "";
  }
  if (errno == EACCES || errno == EPERM)
    return "no permission for hardware counters (see /proc/sys/kernel/perf_event_paranoid, or the "
           "container's seccomp profile)";
  if (errno == ENOENT || errno == EOPNOTSUPP || errno == ENODEV)
    return "this machine has no hardware counters (common for virtual machines)";
  return std::string("perf_event_open failed: ") + strerror(errno);
}

}  // namespace stepscope
