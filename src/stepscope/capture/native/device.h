// Device work, attributed to the context that launched it.
//
// A vendor's library says twice what happens: in the launching thread, with a number, and later in
// a thread of its own, with the number and the times. The first is remembered until the second.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace stepscope {

struct Collector;

// -- what a vendor's side calls

// A call into the driver's library begins in this thread; `number` is that of the work it launches.
void call_begins(const char* function, uint64_t number);
void call_ends(uint64_t number);

// Work that was launched under `number` ran from `begin_ns` to `end_ns`, by the device's clock.
// `type` is kernel, memcpy or memset.
void work_done(uint64_t number, const std::string& name, const char* type, uint64_t begin_ns,
               uint64_t end_ns);

// A kernel as people know it.
std::string readable_kernel(const char* symbol);

// Samples of one instruction of a kernel that found a warp stalled.
struct Stall {
  const std::string* reason;
  uint64_t offset;  // of the instruction in its kernel, bytes
  uint32_t samples;
  bool is_latency;  // those of them in whose cycle nothing was issued
};
// What was sampled of a kernel that was launched under `number`.
void kernel_sampled(uint64_t number, const std::string& symbol, std::vector<Stall>& stalls);
void samples_dropped(uint64_t count);
// A sentence for the file, told once.
void tell_reader(const std::string& sentence);

// Time of ours in a call: it is none of the program's.
class OwnTime {
 public:
  OwnTime();
  ~OwnTime();

 private:
  uint64_t since_;
};

// -- what the collector calls

// Whether any device is followed now. `hindered` says why one that is there is not. With `stalls`
// instructions are sampled too; `unsampled` says why those of a device are not.
bool start_devices(bool stalls, std::string& hindered, std::string& unsampled);
// Fetch what the devices have finished.
void flush_devices();
void stop_devices();

struct Vendor {
  const char* name;
  bool (*is_here)();       // whether this machine, or this process, has the vendor's driver
  std::string (*probe)();         // why its devices cannot be followed here
  std::string (*probe_stalls)();  // else why their instructions cannot be sampled
  std::string (*start)(bool stalls);
  void (*flush)();
  void (*stop)();
};
extern const Vendor kNvidia, kAmd;

}  // namespace stepscope
